//! Names on devices that no Headpond has given: they are no way to another folder.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use common::{Contents, Ended, MIB, Yard, forge};

fn called(yard: &Yard, name: &str) {
    yard.pool();
    for device in ["a", "b"] {
        forge(&yard.path(device), |superblock| superblock.name = name.to_owned());
    }
    fs::create_dir(yard.path("run")).unwrap();
}

const SERVE: [&str; 8] = ["a", "b", "--socket", "run/control", "--state", "state", "--frontend", "nbd"];

#[test]
fn a_pool_whose_name_leads_to_another_folder_is_refused_and_nothing_is_made_there() {
    for name in ["../stray", "", "..", "/tmp/headpond-stray"] {
        let yard = Yard::new();
        called(&yard, name);
        let refused = yard.serve_with(&SERVE).err().unwrap_or_else(|| panic!("{name:?} is served"));
        refused.said(3, &[&format!("{name:?}"), "another folder", "Nothing was changed", "Name the sockets"]);
        assert!(!yard.path("stray.nbd").exists() && !Path::new("/tmp/headpond-stray.nbd").exists());
    }
}

#[test]
fn a_pool_with_such_a_name_is_served_where_nothing_is_named_after_it_and_one_whose_name_is_only_unusual_is_in_any_case() {
    let yard = Yard::new();
    called(&yard, "../stray");
    yard.serve_with(&[&SERVE[..], &["--nbd", "nbd"]].concat()).unwrap().stop();
    let yard = Yard::new();
    called(&yard, "Bank 2");
    yard.serve_with(&SERVE).unwrap().stop();
}

/// Found by reading. A name from a stranger's cache device was printed as it is: a line of its own, with whatever it liked to say, and colours.
#[test]
fn a_name_that_would_forge_a_line_or_colour_the_terminal_is_shown_by_its_characters_numbers() {
    let yard = Yard::new();
    let name = "p\nclean\x1b[2J";
    called(&yard, name);
    for device in ["a", "b"] {
        forge(&yard.path(device), |superblock| superblock.members[1].id = [7; 16]);
    }
    fs::write(yard.path("b"), vec![0; 64 << 20]).unwrap();
    for tool in ["check", "list-damaged", "dump"] {
        let ended = yard.run(&[tool, "a"]);
        let all = format!("{}{}", ended.out, ended.err);
        assert!(!all.contains('\x1b') && !all.contains("\nclean"), "{tool}: {all}");
        assert!(all.contains("p\\nclean\\u{1b}[2J"), "{tool}: {all}");
    }
}

#[test]
fn a_volume_whose_name_leads_to_another_folder_is_not_mounted_there() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        println!("skipped: it takes root, /dev/fuse and loop devices");
        return;
    }
    let yard = Yard::new();
    yard.pool();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["volume", "create", "v", "--size", &MIB.to_string()]).good();
    daemon.stop();
    for device in ["a", "b"] {
        forge(&yard.path(device), |superblock| superblock.volumes[0].name = "../../stray".into());
    }
    let daemon = yard.serve_with(&["a", "b", "--socket", "control", "--state", "state", "--frontend", "fuse"]).unwrap();
    assert!(daemon.complaints().contains("another folder"), "{}", daemon.complaints());
    assert!(!yard.path("stray").exists());
    daemon.stop();
}

/// Whoever listed, checked or destroyed such a pool saw a panic, at times after the deed; one that was made so took no volume.
#[test]
fn a_cache_device_whose_path_is_no_text_is_looked_at_mended_and_freed_but_taken_into_no_pool() {
    let yard = Yard::new();
    yard.pool();
    let odd = OsStr::from_bytes(b"b\xff");
    fs::rename(yard.path("b"), yard.path("").join(odd)).unwrap();
    let run = |before: &[&str], devices: &[&OsStr], after: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headpond"));
        Ended::of(&command.args(before).args(devices).args(after).current_dir(yard.path("")).output().unwrap())
    };
    let both = [OsStr::new("a"), odd];
    let shown = "\"path\":\"b\u{fffd}\"";
    run(&["pool", "list", "--json"], &both, &[]).told(&[shown]);
    run(&["dump", "--json"], &both, &[]).told(&[shown]);
    // Of the second copy of a superblock, on the odd one.
    let mut bytes = fs::read(yard.path("").join(odd)).unwrap();
    bytes[(64 << 10) + 60] ^= 1;
    fs::write(yard.path("").join(odd), bytes).unwrap();
    let found = run(&["check", "--json"], &both, &[]);
    assert!(found.code == Some(1) && found.out.contains(shown), "{found:?}");
    run(&["repair", "--save", "saved"], &both, &[]).told(&["1 places"]);
    let before = Contents::of(&[&yard.path("a"), &yard.path("").join(odd)]);
    let refused: &[&str] = &["is not UTF-8 text", "Nothing was changed", "a link to it"];
    run(&["serve"], &both, &["--frontend", "none", "--socket", "control", "--state", "state"]).said(2, refused);
    run(&["pool", "create", "other"], &both, &["--force", "--state", "state"]).said(2, refused);
    before.unchanged();
    std::os::unix::fs::symlink(odd, yard.path("link")).unwrap();
    let daemon = yard.serve(&["a", "link"]);
    fs::copy(yard.path("a"), yard.path("").join(OsStr::from_bytes(b"c\xff"))).unwrap();
    run(&["pool", "add"], &[OsStr::from_bytes(b"c\xff")], &["--socket", "control"]).said(2, refused);
    daemon.stop();
    run(&["pool", "destroy", "--json"], &both, &["--state", "state"]).told(&[shown]);
    run(&["pool", "list", "--json"], &both, &[]).told(&["\"holds\":null"]);
}
