//! Disks without a name of their own, which have another number after a boot.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use common::{Contents, Loop, MIB, Yard};

const BLOCKS: u64 = 64;

fn place(number: u64) -> u64 {
    number * 7 % BLOCKS * 65536
}

fn block(number: u64) -> Vec<u8> {
    let mut bytes = vec![0x9d; 4096];
    bytes[..8].copy_from_slice(&(number ^ 0x72_656e_756d).to_le_bytes());
    bytes
}

/// The file behind a device gets another one, as at a boot that counts otherwise.
fn renumbered(device: Loop, file: &Path) -> Option<Loop> {
    let other = Loop::over(file)?;
    assert_ne!(other.0, device.0);
    Some(other)
}

/// Makes `link` lead there.
fn lead(link: &Path, device: &Loop) {
    let _ = fs::remove_file(link);
    symlink(&device.0, link).unwrap();
}

fn write_and_flush(yard: &Yard) {
    let mut nbd = yard.nbd("v");
    for number in 0..BLOCKS {
        nbd.write(place(number), &block(number), false).unwrap();
    }
    nbd.flush().unwrap();
}

fn reads_well(yard: &Yard) {
    let mut nbd = yard.nbd("v");
    for number in 0..BLOCKS {
        assert_eq!(nbd.read(place(number), 4096).unwrap(), block(number), "block {number}");
    }
}

/// md127 of one boot is md126 of the next, and a zvol, a loop device or a virtio disk without a serial has no name of its own either. The
/// link that was given at attaching was resolved and the number recorded, and the volume was not served after such a boot.
#[test]
fn a_disk_that_was_attached_by_a_link_is_served_by_it_whatever_its_number_and_another_one_behind_it_is_noticed() {
    let yard = Yard::new();
    yard.pool();
    let (file, link) = (yard.file("disk", 16 * MIB), yard.path("link"));
    let Some(disk) = Loop::over(&file) else { return };
    lead(&link, &disk);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "link"]).good();
    write_and_flush(&yard);
    yard.run(&["flush", "v"]).good();
    daemon.stop();

    let Some(disk) = renumbered(disk, &file) else { return };
    lead(&link, &disk);
    let daemon = yard.serve(&["a", "b"]);
    assert!(!daemon.said.contains("NOT served"), "{}: {:?}", daemon.said, yard.run(&["status"]));
    reads_well(&yard);
    daemon.stop();

    // One that is too small is refused, and the data of one that is large enough is not taken for the volume's.
    let small = Loop::over(&yard.file("small", 8 * MIB)).unwrap();
    lead(&link, &small);
    let daemon = yard.serve(&["a", "b"]);
    assert!(daemon.said.contains("volume v NOT served"), "{}", daemon.said);
    yard.run(&["status"]).told(&["fewer than the"]);
    daemon.stop();
    let other = Loop::over(&yard.file("other", 16 * MIB)).unwrap();
    lead(&link, &other);
    let daemon = yard.serve(&["a", "b"]);
    assert_eq!(yard.nbd("v").read(place(1), 4096).unwrap(), vec![0; 4096], "another disk's clean data");
    daemon.stop();
}

/// Found by reading. `--other-disk` asked whether the disk has the very name that another volume's is known by: by a link to it the one's data was written over the other's.
/// Later it asked for that one's own disk where there was none any more, and took a disk with `modelled:` before its path for another one.
#[test]
fn a_disk_that_another_volume_is_known_to_have_is_not_written_to_by_another_path_either() {
    let yard = Yard::new();
    yard.pool();
    let files = ["disk", "other", "third"].map(|name| yard.file(name, 16 * MIB));
    let Some(disk) = Loop::over(&files[0]) else { return };
    let other = Loop::over(&files[1]).unwrap();
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    yard.run(&["attach", "v", disk.0.to_str().unwrap()]).good();
    yard.run(&["attach", "w", other.0.to_str().unwrap()]).good();
    yard.nbd("v").write(0, &block(1), true).unwrap();
    yard.nbd("w").write(0, &block(2), true).unwrap();
    yard.nbd("w").write(place(5), &block(3), true).unwrap();
    daemon.kill();
    lead(&yard.path("link"), &other);
    let content = Contents::of(&files.each_ref().map(|file| file.as_path()));
    let args = ["writeback", "a", "b", "--state", "state", "--other-disk", "--backing", "v=link"];
    let parts = ["link is the disk of volume w", "Nothing was changed", "volume w's own disk as well", "--backing w=FILE"];
    yard.run(&args).said(3, &parts);
    yard.run(&[&args[..7], &["v=modelled:link"]].concat()).said(3, &parts[..2]);
    content.unchanged();
    // As after a boot that counts otherwise: it is said where the other one's disk is. That is gone for good, and a new file has what the cache has of it.
    yard.run(&[&args[..], &["--backing", "w=third"]].concat()).good();
    for (file, number) in [(&files[1], 1), (&files[2], 2)] {
        assert!(fs::read(file).unwrap().starts_with(&block(number)), "{}", file.display());
    }
    assert_eq!(fs::read(&files[2]).unwrap()[place(5) as usize..][..4096], block(3));
}

/// What was recorded of a disk before it was known by more than its number is that number. Such a volume is served by the name that it was
/// served by last, online and offline, and by no other.
#[test]
fn a_disk_that_was_recorded_by_its_number_is_served_by_the_name_it_had_last_and_by_no_other() {
    let yard = Yard::new();
    yard.pool();
    let (file, link, other) = (yard.file("disk", 16 * MIB), yard.path("link"), yard.path("other"));
    let Some(disk) = Loop::over(&file) else { return };
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", disk.0.to_str().unwrap()]).good();
    write_and_flush(&yard);
    daemon.stop();
    // The number that was recorded still leads to the device.
    lead(&link, &disk);
    let daemon = yard.serve(&["a", "b", "--backing", "v=link"]);
    reads_well(&yard);
    daemon.stop();

    let Some(disk) = renumbered(disk, &file) else { return };
    lead(&link, &disk);
    lead(&other, &disk);
    let content = Contents::of(&[&file]);
    let daemon = yard.serve(&["a", "b", "--backing", "v=other"]);
    assert!(daemon.said.contains("volume v NOT served"), "{}", daemon.said);
    yard.run(&["status"]).told(&["other is another device (path:", "known by its path alone", "--other-disk"]);
    daemon.stop();
    let offline = |backing: &str| yard.run(&["writeback", "a", "b", "--keep", "--state", "state", "--backing", backing]);
    offline("v=other").said(3, &["other is another device (path:", "Nothing was changed", "--other-disk"]);
    content.unchanged();

    let daemon = yard.serve(&["a", "b"]);
    assert!(!daemon.said.contains("NOT served"), "{}: {:?}", daemon.said, yard.run(&["status"]));
    reads_well(&yard);
    daemon.stop();
    offline("v=link").good();
}
