//! What the command refuses: one test for each message. Each says what happened, to which device, what that means
//! for the data, and what to do next; and nothing is changed.

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Contents, MIB, Yard, have};
use headpond_host::claim::Claim;

fn shell(command: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(command).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The identity and epoch of the pool of a device, as `--discard-dirty` wants them.
fn identity(yard: &Yard, device: &str) -> String {
    let list = yard.run(&["pool", "list", device, "--json"]).good().out;
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let pool = &list[0]["pool"];
    format!("{}:{}", pool["id"].as_str().unwrap(), pool["epoch"])
}

/// A pool with a volume that has dirty data, and no daemon.
fn with_dirty_data() -> Yard {
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 4 * MIB);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.nbd("v").write(0, &[3; 4096], true).unwrap();
    daemon.kill();
    yard
}

#[test]
fn a_device_that_another_process_has_claimed() {
    let yard = Yard::new();
    let a = yard.file("a", 64 * MIB);
    yard.file("b", 64 * MIB);
    let before = Contents::of(&[&a, &yard.path("b")]);
    let claim = Claim::take(&a, Duration::ZERO).unwrap();
    let parts = ["a is in use: process", "has it open", "Nothing was read or written", "Release it there"];
    yard.run(&["pool", "create", "pool", "a", "b"]).said(1, &parts);
    yard.run(&["pool", "create", "pool", "a", "b", "--force"]).said(1, &parts);
    yard.run(&["pool", "destroy", "a"]).said(1, &parts);
    before.unchanged();
    drop(claim);
    // Another file: what another test starts at this moment has a copy of the claim on this one, up to its exec.
    fs::remove_file(&a).unwrap();
    yard.pool();
    let _daemon = yard.serve(&["a", "b"]);
    let refused = yard.serve_with(&["a", "b", "--state", "state", "--socket", "other", "--wait", "0"]);
    refused.err().expect("a pool is served once").said(1, &["a is in use"]);
}

#[test]
fn a_device_that_is_mounted() {
    if shell("id", &["-u"]).as_deref() != Some("0") || !have("losetup") || !have("mkfs.ext4") {
        return println!("skipped: needs root, losetup and mkfs.ext4");
    }
    let yard = Yard::new();
    let file = yard.file("file", 64 * MIB);
    shell("mkfs.ext4", &["-q", file.to_str().unwrap()]).unwrap();
    let Some(device) = shell("losetup", &["--find", "--show", file.to_str().unwrap()]) else {
        return println!("skipped: there is no loop device");
    };
    let point = yard.path("point");
    fs::create_dir(&point).unwrap();
    let mounted = shell("mount", &[&device, point.to_str().unwrap()]).is_some();
    let created = yard.run(&["pool", "create", "pool", &device, "--copies", "1", "--force"]);
    yard.pool();
    let _daemon = yard.serve(&["a", "b"]);
    let attached = yard.run(&["attach", "v", &device]);
    if mounted {
        shell("umount", &[point.to_str().unwrap()]).unwrap();
    }
    shell("losetup", &["--detach", &device]).unwrap();
    if !mounted {
        return println!("skipped: cannot mount");
    }
    let parts = [&device, "is mounted at", point.to_str().unwrap(), "Nothing was read or written", "Release it there"];
    created.said(1, &parts);
    attached.said(3, &parts);
}

#[test]
fn a_device_of_another_pool() {
    let yard = Yard::new();
    yard.pool();
    yard.file("c", 64 * MIB);
    let before = Contents::of(&[&yard.path("a"), &yard.path("c")]);
    let id = identity(&yard, "a");
    let (id, _) = id.split_once(':').unwrap();
    let parts = ["a is a cache device of pool pool", id, "Nothing was changed", "headpond pool destroy"];
    yard.run(&["pool", "create", "new", "a", "c"]).said(3, &parts);
    before.unchanged();
    // Nothing is dirty on it: it may go, if that is wished.
    yard.run(&["pool", "create", "new", "a", "c", "--force"]).good();
}

#[test]
fn a_file_system_on_a_cache_device() {
    if !have("mkfs.ext4") {
        return;
    }
    let yard = Yard::new();
    let a = yard.file("a", 64 * MIB);
    yard.file("b", 64 * MIB);
    shell("mkfs.ext4", &["-q", a.to_str().unwrap()]).unwrap();
    let before = Contents::of(&[&a, &yard.path("b")]);
    let parts = ["a holds an ext2, ext3 or ext4 file system", "Nothing was changed", "--force"];
    yard.run(&["pool", "create", "pool", "b", "a"]).said(3, &parts);
    yard.run(&["pool", "destroy", "a"]).said(1, &["a is no cache device of a pool", "Nothing was changed"]);
    before.unchanged();
    yard.run(&["pool", "create", "pool", "b", "a", "--force"]).good();
    assert!(!yard.run(&["pool", "list", "a"]).good().out.contains("ext"));
}

/// They were looked for where they are on a device of whole pages alone, and what is behind its last whole page was neither read nor cleared.
#[test]
fn what_lies_at_the_end_of_a_device_of_no_whole_number_of_pages_is_seen_and_cleared() {
    let size = 64 * MIB + 5 * 512;
    let put = |device: &Path, at: u64, bytes: &[u8]| {
        OpenOptions::new().write(true).open(device).unwrap().write_all_at(bytes, at).unwrap();
    };
    let yard = Yard::new();
    yard.file("b", 64 * MIB);
    // 8 KiB before the end, rounded down to a page, as the kernel places it; and in the last sector.
    let md = (size - 8192) / 4096 * 4096;
    for (at, bytes, what) in
        [(md, &b"\xfc\x4e\x2b\xa9"[..], "a member of an md array"), (size - 512, b"EFI PART", "a partition table")]
    {
        let a = yard.file("a", size);
        let listed: serde_json::Value = serde_json::from_str(&yard.run(&["pool", "list", "a", "--json"]).good().out).unwrap();
        if listed[0]["bytes"] != size {
            return println!("skipped: the file system has no blocks of 512 bytes");
        }
        put(&a, at, bytes);
        let before = Contents::of(&[&a]);
        yard.run(&["pool", "create", "pool", "a", "b"]).said(3, &[&format!("a holds {what}"), "Nothing was changed"]);
        before.unchanged();
        yard.run(&["pool", "create", "pool", "a", "b", "--force"]).good();
        yard.run(&["pool", "destroy", "a", "b"]).good();
        assert_eq!(fs::read(&a).unwrap()[at as usize..][..bytes.len()], vec![0; bytes.len()]);
    }
}

/// Numbers of devices that were taken out were waited for: what was known of the pool stayed for ever.
#[test]
fn a_pool_whose_devices_are_all_freed_is_forgotten_though_one_was_taken_out_before() {
    let yard = Yard::new();
    yard.pool();
    yard.file("c", 64 * MIB);
    let id = identity(&yard, "a");
    let (id, _) = id.split_once(':').unwrap();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["pool", "replace", "b", "c"]).good();
    daemon.stop();
    let known = || fs::read_dir(yard.path("state")).unwrap().flatten().map(|it| it.file_name().into_string().unwrap());
    let known = || known().filter(|name| name.contains(id)).collect::<Vec<_>>();
    yard.run(&["pool", "destroy", "a"]).good();
    assert!(known().iter().any(|name| name.starts_with("witness")), "c is there yet: {:?}", known());
    yard.run(&["pool", "destroy", "c"]).good();
    yard.pool();
    yard.file("c", 64 * MIB);
    let id = identity(&yard, "a");
    let (id, _) = id.split_once(':').unwrap();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["pool", "replace", "b", "c"]).good();
    daemon.stop();
    yard.run(&["pool", "destroy", "a", "c"]).good();
    let left = fs::read_dir(yard.path("state")).unwrap().flatten().map(|it| it.file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.contains(id)).collect::<Vec<_>>(), Vec::<String>::new());
}

/// The first of them was no cache device any more, and what was known of the pool stayed for ever.
#[test]
fn a_pool_whose_end_was_cut_off_is_ended_by_the_same_command() {
    let yard = Yard::new();
    yard.pool();
    let id = identity(&yard, "a");
    let (id, _) = id.split_once(':').unwrap();
    yard.file("a", 64 * MIB);
    yard.file("other", 64 * MIB);
    // Where no device of the pool is known to have been, nothing is taken for one.
    yard.run(&["pool", "destroy", "other", "b"]).said(1, &["other is no cache device of a pool", "Nothing was changed"]);
    fs::write(yard.path("a"), "somebody's by now").unwrap();
    fs::File::options().write(true).open(yard.path("a")).unwrap().set_len(64 * MIB).unwrap();
    yard.run(&["pool", "destroy", "a", "b"]).told(&["a: free", "b: free"]);
    assert!(fs::read(yard.path("a")).unwrap().starts_with(b"somebody's by now"), "nothing is written to what is free already");
    yard.run(&["pool", "list", "b"]).told(&["nothing known"]);
    let left = fs::read_dir(yard.path("state")).unwrap().flatten().map(|it| it.file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.contains(id)).collect::<Vec<_>>(), Vec::<String>::new());
}

/// Minix was overwritten without a word.
#[test]
fn what_the_tools_of_this_host_make_is_not_overwritten() {
    for (tool, args, what) in [
        ("mkfs.minix", &["-1"][..], "a Minix file system"),
        ("mkfs.minix", &["-2"], "a Minix file system"),
        ("mkfs.minix", &["-3"], "a Minix file system"),
        ("mkfs.bfs", &[], "a BFS file system"),
        ("mkfs.f2fs", &["-q"], "an F2FS file system"),
        ("mkfs.nilfs2", &["-q"], "a NILFS2 file system"),
        ("mkfs.gfs2", &["-q", "-O", "-p", "lock_nolock"], "a GFS2 file system"),
        ("mkfs.bcachefs", &["-q"], "a bcachefs file system"),
        ("mkfs.jfs", &["-q"], "a JFS file system"),
        ("mkswap", &["-q"], "swap space"),
    ] {
        let yard = Yard::new();
        let a = yard.file("a", 256 * MIB);
        yard.file("b", 64 * MIB);
        if shell(tool, &[args, &[a.to_str().unwrap()]].concat()).is_none() {
            println!("skipped: {tool} is not installed, or makes none in a file");
            continue;
        }
        let before = Contents::of(&[&a]);
        yard.run(&["pool", "create", "pool", "b", "a"]).said(3, &[&format!("a holds {what}"), "Nothing was changed"]);
        before.unchanged();
    }
}

#[test]
fn force_where_dirty_data_would_be_lost() {
    let yard = with_dirty_data();
    let before = Contents::of(&[&yard.path("a"), &yard.path("b"), &yard.path("disk")]);
    let name = identity(&yard, "a");
    let (id, epoch) = name.split_once(':').unwrap();
    let parts = ["belongs to pool pool", "volume v", "would lose that data", "Nothing was changed", "detach", &name];
    yard.run(&["pool", "create", "new", "a", "b", "--force"]).said(3, &parts);
    yard.run(&["pool", "destroy", "a", "b"]).said(3, &parts);
    yard.run(&["pool", "destroy", "b"]).said(3, &parts);
    for wrong in [format!("{id}:{}", epoch.parse::<u64>().unwrap() + 1), format!("{}:{epoch}", "0".repeat(32))] {
        yard.run(&["pool", "destroy", "a", "b", "--discard-dirty", &wrong]).said(3, &parts);
        yard.run(&["pool", "create", "new", "a", "b", "--force", "--discard-dirty", &wrong]).said(3, &parts);
    }
    yard.run(&["pool", "destroy", "a", "b", "--discard-dirty", "all"]).said(2, &["identity", "colon"]);
    before.unchanged();
    yard.run(&["pool", "create", "new", "a", "b", "--force", "--discard-dirty", &name]).good();
    // The name of a pool that is not there is a mistake, even where nothing would be lost.
    yard.run(&["pool", "destroy", "a", "b", "--discard-dirty", &name]).said(3, &[&name, "no such pool", "Nothing was changed"]);
    yard.run(&["pool", "destroy", "a", "b"]).good();
    assert!(fs::read_dir(yard.path("state")).unwrap().flatten().all(|it| !it.path().ends_with(format!("witness-{name}"))));
}

#[test]
fn dirty_marks_that_cannot_be_read() {
    let yard = with_dirty_data();
    // The intent pages lie behind the two superblocks at the start.
    let a = OpenOptions::new().write(true).open(yard.path("a")).unwrap();
    a.write_all_at(&vec![0xee; 128 << 10], 128 << 10).unwrap();
    let before = Contents::of(&[&yard.path("a")]);
    yard.run(&["pool", "destroy", "a"]).said(3, &["does not tell any more", "volume v", "Nothing was changed"]);
    before.unchanged();
}

/// The other slot of the page was believed, which is from before the data became dirty: the device was wiped.
#[test]
fn dirty_marks_of_which_the_newest_cannot_be_read() {
    let yard = with_dirty_data();
    yard.file("c", 64 * MIB);
    // The two slots of the volume's only page lie behind the two superblocks at the start.
    let a = OpenOptions::new().read(true).write(true).open(yard.path("a")).unwrap();
    for at in [128 << 10, 132 << 10] {
        let mut slot = vec![0; 4096];
        a.read_exact_at(&mut slot, at).unwrap();
        assert!(slot.iter().any(|byte| *byte != 0), "a page is at {at}");
        a.write_all_at(&[0xee; 4096], at).unwrap();
        let before = Contents::of(&[&yard.path("a"), &yard.path("c")]);
        let parts = ["does not tell any more", "volume v", "Nothing was changed"];
        yard.run(&["pool", "destroy", "a"]).said(3, &parts);
        yard.run(&["pool", "create", "new", "a", "c", "--force"]).said(3, &parts);
        before.unchanged();
        a.write_all_at(&slot, at).unwrap();
    }
}

#[test]
fn sizes_that_do_not_fit() {
    let yard = Yard::new();
    let a = yard.file("a", 64 * MIB);
    let small = yard.file("small", MIB / 2);
    let before = Contents::of(&[&a, &small]);
    yard.run(&["pool", "create", "p", "a", "small"]).said(1, &["small: ", "524288 bytes", "needs", "Nothing was changed"]);
    fs::write(&small, vec![0; 2 * MIB as usize]).unwrap();
    let before_2 = Contents::of(&[&small]);
    yard.run(&["pool", "create", "p", "a", "small", "--segment", "8MiB"]).said(1, &["small: ", "smaller --segment"]);
    yard.run(&["pool", "create", "p", "a", "small", "--segment", "64MiB"]).said(1, &["67108864", "Nothing was changed"]);
    yard.run(&["pool", "create", "p", "a"]).said(1, &["Two copies", "--copies 1", "Nothing was changed"]);
    // Also "..", whose folder of volumes would be another program's.
    for name in ["p q", "..", ".p", "../p", ""] {
        let said = format!("{name:?} is not a name for a pool");
        yard.run(&["pool", "create", name, "a", "small"]).said(1, &[&said, "Nothing was changed"]);
    }
    yard.run(&["pool", "create", "p", "a", "small", "--copies", "3"]).said(2, &["3"]);
    yard.run(&["pool", "create", "p", "a", "small", "--segment", "1x"]).said(2, &["1x", "KiB"]);
    yard.run(&["pool", "create", "p", "a", "./a"]).said(1, &["./a was named twice", "Nothing was changed"]);
    before_2.unchanged();
    let before_a = Contents::of(&[&a]);
    before_a.unchanged();
    drop(before);

    let yard = with_dirty_data();
    let b = OpenOptions::new().write(true).open(yard.path("b")).unwrap();
    b.set_len(32 * MIB).unwrap();
    let before = Contents::of(&[&yard.path("a"), &yard.path("b")]);
    let parts = ["b has 33554432 bytes", "it had 67108864", "nothing was changed", "Give the device its size back"];
    yard.try_serve(&["a", "b"]).err().expect("refused").said(3, &parts);
    before.unchanged();
}

#[test]
fn a_disk_that_has_changed_its_size_or_is_another_one() {
    let yard = with_dirty_data();
    let disk = yard.path("disk");
    fs::rename(&disk, yard.path("real")).unwrap();
    yard.file("disk", 4 * MIB);
    let before = Contents::of(&[&yard.path("disk")]);
    let daemon = yard.serve(&["a", "b"]);
    assert!(daemon.said.contains("volume v NOT served"), "{}", daemon.said);
    let complaints = daemon.complaints();
    for part in ["Volume v is not served", "is another device", "the one that the volume was made on", "--backing v=PATH"] {
        assert!(complaints.contains(part), "{part:?} is not in: {complaints}");
    }
    yard.run(&["detach", "v"]).said(3, &["not being served"]);
    daemon.stop();
    before.unchanged();
    OpenOptions::new().write(true).open(yard.path("real")).unwrap().set_len(3 * MIB).unwrap();
    let daemon = yard.serve(&["a", "b", "--backing", "v=real"]);
    let complaints = daemon.complaints();
    assert!(complaints.contains("3145728 bytes, fewer than the 4194304 of the volume"), "{complaints}");
    daemon.stop();
    OpenOptions::new().write(true).open(yard.path("real")).unwrap().set_len(4 * MIB).unwrap();
    let refused = yard.try_serve(&["a", "b", "--backing", "w=real"]).err().expect("there is no such volume");
    refused.said(2, &["no volume w", "Its volumes are: v"]);
    let _daemon = yard.serve(&["a", "b", "--backing", "v=real"]);
    assert_eq!(yard.nbd("v").read(0, 4096).unwrap(), [3; 4096]);
}

#[test]
fn a_missing_device_and_no_witness() {
    let yard = with_dirty_data();
    fs::rename(yard.path("b"), yard.path("away")).unwrap();
    for entry in fs::read_dir(yard.path("state")).unwrap().flatten() {
        if entry.file_name().to_str().unwrap().starts_with("witness") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let before = Contents::of(&[&yard.path("a"), &yard.path("disk")]);
    let parts = ["Pool pool does not start", "No data was touched", "cache device 1 or the witness", "last seen at", "/b"];
    yard.try_serve(&["a"]).err().expect("too few votes").said(1, &parts);
    yard.try_serve(&["a", "b", "--wait", "0"]).err().expect("not there").said(1, &["b cannot be opened", "Check that it exists"]);
    before.unchanged();
    fs::rename(yard.path("away"), yard.path("b")).unwrap();
    let _daemon = yard.serve(&["a", "b"]);
    assert_eq!(yard.nbd("v").read(0, 4096).unwrap(), [3; 4096]);
}

/// A member is who its superblock says, whatever it is called today and in whatever order it is named: the two files have
/// changed names, as disks do from boot to boot.
#[test]
fn cache_devices_under_each_others_names() {
    let yard = with_dirty_data();
    fs::rename(yard.path("a"), yard.path("was-a")).unwrap();
    fs::rename(yard.path("b"), yard.path("a")).unwrap();
    fs::rename(yard.path("was-a"), yard.path("b")).unwrap();
    let daemon = yard.serve(&["a", "b"]);
    assert_eq!(yard.nbd("v").read(0, 4096).unwrap(), [3; 4096]);
    yard.nbd("v").write(4096, &[4; 4096], true).unwrap();
    daemon.kill();
    fs::rename(yard.path("a"), yard.path("somewhere-else")).unwrap();
    let _daemon = yard.serve(&["b", "somewhere-else"]);
    let mut nbd = yard.nbd("v");
    assert_eq!((nbd.read(0, 4096).unwrap(), nbd.read(4096, 4096).unwrap()), (vec![3; 4096], vec![4; 4096]));
}

/// Four cache devices, a volume with something dirty, and no daemon.
fn four_with_dirty_data() -> Yard {
    let yard = Yard::new();
    for device in ["a", "b", "c", "d"] {
        yard.file(device, 64 * MIB);
    }
    yard.run(&["pool", "create", "pool", "a", "b", "c", "d"]).good();
    yard.file("disk", 4 * MIB);
    let daemon = yard.serve(&["a", "b", "c", "d"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.nbd("v").write(0, &[3; 4096], true).unwrap();
    daemon.kill();
    yard
}

/// Four cache devices, of which two are only late at a boot: a start on the others takes the late ones for left.
#[test]
fn as_many_missing_devices_as_there_are_copies() {
    let yard = four_with_dirty_data();
    let all = ["a", "b", "c", "d", "disk"].map(|name| yard.path(name));
    let before = Contents::of(&all.each_ref().map(PathBuf::as_path));
    let parts =
        ["Cache devices 2, 3 are missing", "Nothing that was acknowledged was changed", "Bring them back", "--without-missing"];
    let moved = |from: [&str; 2], to: [&str; 2]| {
        from.iter().zip(to).for_each(|(from, to)| fs::rename(yard.path(from), yard.path(to)).unwrap());
    };
    moved(["c", "d"], ["later-c", "later-d"]);
    // They may only be late: whoever starts daemons tries again.
    yard.try_serve(&["a", "b"]).err().expect("the other copies").said(1, &parts);
    moved(["later-c", "later-d"], ["c", "d"]);
    before.unchanged();
    let daemon = yard.serve(&["a", "b", "c", "d"]);
    assert_eq!(yard.nbd("v").read(0, 4096).unwrap(), [3; 4096]);
    daemon.kill();
    let _daemon = yard.serve(&["a", "b", "--without-missing"]);
    let status = yard.run(&["status"]).good().out;
    assert!(status.contains("Cache device 2") && status.contains("Cache device 3"), "{status}");
}

/// `headpond status` told to put them back, and that cleared what only they had, without a question.
#[test]
fn a_device_that_comes_back_and_may_hold_the_only_copies_is_not_taken_for_out_of_date() {
    let yard = four_with_dirty_data();
    let _daemon = yard.serve(&["a", "b", "--without-missing"]);
    yard.run(&["status"]).told(&["what it holds may be nowhere else", "Keep it as it is, and do not put it back"]);
    let c = yard.path("c");
    let before = Contents::of(&[&c]);
    let name = identity(&yard, "c");
    let parts =
        ["/c was a cache device of pool pool", "may hold what is nowhere else", "Nothing was changed", "Keep it as it is", &name];
    yard.run(&["pool", "add", "c"]).said(3, &parts);
    yard.run(&["pool", "replace", "2", "c"]).said(3, &parts);
    yard.run(&["pool", "add", "c", "--force"]).said(3, &["Overwriting it would lose that data", "Nothing was changed", &name]);
    let wrong = format!("{name}1");
    yard.run(&["pool", "add", "c", "--force", "--discard-dirty", &wrong]).said(3, &["Nothing was changed", &name]);
    before.unchanged();
    yard.run(&["pool", "add", "c", "--force", "--discard-dirty", &name]).told(&["/c: cache device"]);
    // When nothing is missing any more, what has left is out of date.
    yard.run(&["detach", "v", "--throw-away"]).good();
    yard.run(&["pool", "add", "d"]).told(&["/d: cache device"]);
}

/// Its disk is gone for good, and with it what the dirty data belonged to: the volume can be let go of all the same.
#[test]
fn a_volume_that_will_never_be_served_can_be_thrown_away() {
    let yard = with_dirty_data();
    fs::rename(yard.path("disk"), yard.path("real")).unwrap();
    yard.file("disk", 4 * MIB);
    let before = Contents::of(&[&yard.path("disk"), &yard.path("real")]);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["detach", "v", "--throw-away", "--give-up-lost"]).said(2, &["cannot be used with"]);
    let gone = yard.run(&["detach", "v", "--throw-away", "--json"]).good().out;
    let gone: serde_json::Value = serde_json::from_str(&gone).unwrap();
    assert!(gone["thrown_away_bytes"].as_u64().unwrap() >= 4096, "{gone}");
    yard.run(&["detach", "v", "--throw-away"]).said(1, &["There is no volume v"]);
    let events = yard.run(&["events"]).good().out;
    assert!(events.contains("taken off the pool") && events.contains("Check its file system"), "{events}");
    // Longer than it takes to see that it is gone.
    std::thread::sleep(Duration::from_secs(3));
    let events = yard.run(&["events"]).good().out;
    assert!(!events.contains("can be used by itself"), "{events}");
    daemon.kill();
    before.unchanged();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    let mut nbd = yard.nbd("v");
    assert_eq!(nbd.read(0, 4096).unwrap(), [0; 4096], "what was thrown away is there");
    nbd.write(0, &[9; 4096], true).unwrap();
    yard.run(&["detach", "v", "--throw-away"]).said(1, &["is being served", "Nothing was changed", "Detach it"]);
    assert_eq!(nbd.read(0, 4096).unwrap(), [9; 4096]);
    drop(nbd);
    yard.run(&["detach", "v"]).good();
    daemon.stop();
}

#[test]
fn a_stale_device() {
    let yard = with_dirty_data();
    let moved = |from: &str, to: &str| fs::rename(yard.path(from), yard.path(to)).unwrap();
    moved("b", "away");
    let daemon = yard.serve(&["a"]);
    yard.nbd("v").write(4096, &[4; 4096], true).unwrap();
    daemon.kill();
    moved("away", "b");
    let before = Contents::of(&[&yard.path("a"), &yard.path("b"), &yard.path("disk")]);
    moved("a", "away");
    let parts = ["out of date", "No data was touched", "Bring back cache device 0", "last seen at", "/a"];
    yard.try_serve(&["b", "--wait", "1"]).err().expect("stale").said(1, &parts);
    moved("away", "a");
    before.unchanged();
    // With the newer one it starts, and does not believe the stale one.
    let daemon = yard.serve(&["a", "b"]);
    assert!(daemon.complaints().contains("Cache device 1"), "{}", daemon.complaints());
    assert_eq!(yard.nbd("v").read(4096, 4096).unwrap(), [4; 4096]);
}

#[test]
fn devices_of_different_pools_and_devices_of_none() {
    let yard = Yard::new();
    yard.pool();
    yard.file("c", 64 * MIB);
    yard.file("d", 64 * MIB);
    yard.run(&["pool", "create", "second", "c", "d"]).good();
    let blank = yard.file("blank", 64 * MIB);
    let before = Contents::of(&[&yard.path("a"), &yard.path("c"), &blank]);
    let parts = ["c belongs to pool second", "a to pool pool", "Nothing was changed", "the devices of one pool"];
    yard.try_serve(&["a", "c"]).err().expect("two pools").said(3, &parts);
    let parts = ["blank is no cache device", "nothing known", "Nothing was changed", "headpond pool list"];
    yard.try_serve(&["blank"]).err().expect("blank").said(2, &parts);
    yard.try_serve(&["a", "a"]).err().expect("twice").said(2, &["named twice"]);
    fs::copy(yard.path("a"), yard.path("copy")).unwrap();
    yard.try_serve(&["a", "copy", "b"]).err().expect("a copy").said(3, &["found twice", "Nothing was changed"]);
    before.unchanged();
}

/// All four superblock slots of a device, changed.
fn each_superblock(path: &Path, change: impl Fn(&mut [u8])) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let tail = file.metadata().unwrap().len() - (128 << 10);
    for at in [0, 64 << 10, tail, tail + (64 << 10)] {
        let mut bytes = vec![0; 64 << 10];
        file.read_exact_at(&mut bytes, at).unwrap();
        change(&mut bytes);
        file.write_all_at(&bytes, at).unwrap();
    }
}

#[test]
fn a_damaged_device() {
    let yard = with_dirty_data();
    each_superblock(&yard.path("b"), |bytes| bytes[100] ^= 1);
    let before = Contents::of(&[&yard.path("a"), &yard.path("b")]);
    let parts = ["b is a cache device", "no copy of its superblock is whole", "Nothing was changed", "leave it out"];
    yard.try_serve(&["a", "b"]).err().expect("damaged").said(3, &parts);
    yard.run(&["pool", "create", "new", "b", "--copies", "1", "--force"]).said(3, &parts);
    yard.run(&["pool", "destroy", "b"]).said(3, &parts);
    assert!(yard.run(&["pool", "list", "b"]).good().out.contains("damaged"));
    before.unchanged();
    // As the message says: without it, the pool starts.
    let _daemon = yard.serve(&["a"]);
    assert_eq!(yard.nbd("v").read(0, 4096).unwrap(), [3; 4096]);
}

#[test]
fn a_pool_of_a_newer_format() {
    let yard = with_dirty_data();
    each_superblock(&yard.path("b"), |bytes| {
        let len = u32::from_le_bytes(bytes[20..24].try_into().unwrap()) as usize;
        bytes[16..20].copy_from_slice(&2u32.to_le_bytes());
        bytes[8..16].fill(0);
        let sum = headpond_format::checksum(0, &bytes[..len]);
        bytes[8..16].copy_from_slice(&sum.to_le_bytes());
    });
    yard.file("c", 64 * MIB);
    let before = Contents::of(&[&yard.path("a"), &yard.path("b")]);
    let parts = ["b belongs to a pool of a newer format (0x2)", "Nothing was changed", "Use the version of Headpond"];
    yard.try_serve(&["a", "b"]).err().expect("newer").said(3, &parts);
    yard.run(&["pool", "create", "new", "b", "c", "--force"]).said(3, &parts);
    yard.run(&["pool", "destroy", "b"]).said(3, &parts);
    before.unchanged();
}

#[test]
fn a_configuration_with_a_key_that_is_not_known() {
    let yard = Yard::new();
    yard.pool();
    let text = "devices = ['a', 'b']\nstate = 'state'\n\n[engine]\nlarge_byte = '1MiB'\n";
    fs::write(yard.path("headpond.toml"), text).unwrap();
    let before = Contents::of(&[&yard.path("a"), &yard.path("b")]);
    let refused = yard.serve_with(&["--config", "headpond.toml"]).err().expect("not understood");
    refused.said(2, &["headpond.toml", "line 5", "large_byte", "nothing was done", "large_bytes"]);
    let refused = yard.serve_with(&["--config", "missing.toml"]).err().expect("not there");
    refused.said(2, &["missing.toml", "Nothing was done"]);
    before.unchanged();
}

#[test]
fn a_volume_that_cannot_be_attached() {
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 4 * MIB);
    yard.file("other", 4 * MIB);
    yard.file("tiny", 512);
    yard.file("c", 64 * MIB);
    yard.run(&["pool", "create", "second", "c", "--copies", "1"]).good();
    let before = Contents::of(&[&yard.path("other"), &yard.path("c"), &yard.path("tiny")]);
    let _daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.run(&["attach", "v", "other"])
        .said(1, &["There is a volume v on pool pool already", "Nothing was changed", "another name"]);
    yard.run(&["attach", "w", "disk"]).said(3, &["disk is in use"]);
    yard.run(&["attach", "w", "c"]).said(3, &["cache device of pool second", "Nothing was changed"]);
    yard.run(&["attach", "w", "a"]).said(3, &["a is in use"]);
    yard.run(&["attach", "w", "tiny"]).said(3, &["tiny has 512 bytes", "Nothing was changed"]);
    yard.run(&["attach", "w", "missing"]).said(1, &["missing cannot be opened"]);
    yard.run(&["attach", "a/b", "other"]).said(1, &["\"a/b\" is not a name", "Nothing was changed"]);
    yard.run(&["attach", "w", "other", "--mode", "fast"]).said(2, &["write-back"]);
    yard.run(&["attach", "w", "other", "--phase", "8"]).said(2, &["0 to 7"]);
    yard.run(&["mode", "w", "write-back"]).said(1, &["There is no volume w", "Its volumes are: v"]);
    yard.run(&["detach", "w"]).said(1, &["There is no volume w"]);
    yard.run(&["detach", "v", "--cancel"]).said(1, &["Nothing that could be cancelled"]);
    before.unchanged();
}

#[test]
fn no_daemon_runs() {
    let yard = Yard::new();
    let parts = ["No daemon answers at", "control", "Nothing was done", "headpond serve"];
    for args in [&["status"][..], &["flush", "v"], &["detach", "v"], &["mode", "v", "write-back"], &["attach", "v", "x"]] {
        yard.run(args).said(4, &parts);
    }
    // A socket that a dead daemon left is no daemon either.
    let path: PathBuf = yard.path("control");
    drop(UnixListener::bind(&path).unwrap());
    // What another test starts at this moment has a copy of it, up to its exec.
    while UnixStream::connect(&path).is_ok() {}
    yard.run(&["status"]).said(4, &parts);
}

#[test]
fn the_witness_on_a_member_is_refused() {
    if shell("id", &["-u"]).as_deref() != Some("0") || !have("losetup") || !have("mkfs.ext4") {
        return println!("skipped: needs root, losetup and mkfs.ext4");
    }
    // The state folder lies on a file system in a file that is to become a cache device.
    let yard = Yard::new();
    let a = yard.file("a", 64 * MIB);
    yard.file("b", 64 * MIB);
    shell("mkfs.ext4", &["-q", a.to_str().unwrap()]).unwrap();
    let point = yard.path("state");
    fs::create_dir(&point).unwrap();
    if shell("mount", &["-o", "loop", a.to_str().unwrap(), point.to_str().unwrap()]).is_none() {
        return println!("skipped: cannot mount");
    }
    let refused = yard.run(&["pool", "create", "pool", "a", "b", "--force"]);
    shell("umount", &[point.to_str().unwrap()]).unwrap();
    refused.said(3, &["The state folder", "belongs to the pool itself", "Nothing was changed", "--state"]);
}

/// It was told as one that is in use.
#[test]
fn a_device_to_look_at_that_is_not_there() {
    let yard = Yard::new();
    yard.pool();
    let listed = yard.run(&["pool", "list", "a", "nope", "--json"]).said(1, &["Not looked at: nope"]);
    let listed: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    assert_eq!((&listed[0]["pool"]["name"], &listed[1]["in_use"]), (&"pool".into(), &false.into()), "{listed}");
}

/// It was told in one line with what had gone well, and to a script all had.
#[test]
fn what_was_done_in_part_is_told_and_fails() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        println!("skipped: it takes root, /dev/fuse and loop devices");
        return;
    }
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 4 * MIB);
    // Where the mounts would be.
    yard.file("pool", 0);
    let _daemon = yard.serve_with(&["a", "b", "--frontend", "fuse", "--socket", "control", "--state", "state"]).unwrap();
    let attached = yard.run(&["attach", "v", "disk", "--json"]).said(1, &["Volume v is at work but has no block device"]);
    let answer: serde_json::Value = serde_json::from_str(&attached.out).unwrap();
    assert_eq!(answer["bytes"], 4 * MIB);
    yard.run(&["volume", "create", "j", "--size", "4KiB"]).said(1, &["Volume j is at work but has no block device"]);
}

/// A limit that no clock has ended the daemon in a panic when it was to stop.
#[test]
fn times_that_make_no_sense_are_refused_with_those_that_do() {
    let yard = Yard::new();
    yard.pool();
    for (option, time, range) in [
        ("--stop-within", "0", "1..=86400"),
        ("--stop-within", "18446744073709551615", "1..=86400"),
        ("--wait", "86401", "0..=86400"),
        ("--wait", "-1", "--wait"),
    ] {
        let refused = yard.try_serve(&["a", "b", &format!("{option}={time}")]).err().expect("it is refused");
        refused.said(2, &[option, range]);
    }
}

/// Found by reading. `writeback --wait` with the largest number panicked, and `pool list` of a FIFO waited for ever for somebody to write to it.
#[test]
fn what_is_no_time_to_wait_and_what_is_no_device_is_refused_and_not_waited_for() {
    let yard = Yard::new();
    yard.pool();
    let forever = u64::MAX.to_string();
    for tool in [&["writeback", "--backing", "disk"][..], &["check"], &["repair", "--dry-run"]] {
        yard.run(&[tool, &["a", "b", "--wait", &forever]].concat()).said(2, &["--wait", "86400"]);
    }
    rustix::fs::mknodat(rustix::fs::CWD, yard.path("fifo"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let listed = yard.run(&["pool", "list", "fifo", "a"]).said(1, &["Not looked at: fifo"]);
    assert!(listed.out.contains("neither a block device nor a regular file") && listed.out.contains("pool pool"), "{listed:?}");
}

/// Found by reading. Two pools of one name have one control socket, which was tried last: the second daemon raised its pool's epoch, served its volumes,
/// took a checkpoint and ended, and systemd started it again, for ever.
#[test]
fn a_control_socket_that_another_daemon_has_is_found_before_anything_is_served() {
    let yard = Yard::new();
    yard.pool();
    yard.file("c", 64 * MIB);
    yard.run(&["pool", "create", "pool", "c", "--copies", "1"]).good();
    let _daemon = yard.serve(&["a", "b"]);
    let before = Contents::of(&[&yard.path("c")]);
    let args = ["--frontend", "nbd", "--nbd", "nbd2", "--socket", "control", "--state", "state", "c"];
    yard.serve_with(&args).err().expect("the socket is in use").said(1, &["control"]);
    before.unchanged();
}
