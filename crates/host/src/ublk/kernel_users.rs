//! Who uses a block device from within the kernel. No process has it open for them, and they ask for no claim: to whoever looks for
//! these alone the device is unused. (An array, the device mapper, and the SCSI target's `iblock` do ask for one.)

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where the kernel shows block devices.
pub const BLOCK: &str = "/sys/block";
/// Where it is told what its targets export.
pub const CONFIG: &str = "/sys/kernel/config";

/// A user of a block device in the kernel, in words. `is_it` tells whether a path leads to the device, or to a part of it; the folders are like
/// [`BLOCK`] and [`CONFIG`].
pub fn kernel_user_in(block: &Path, config: &Path, is_it: impl Fn(&Path) -> bool) -> Option<String> {
    let places = [
        (block, "*/loop/backing_file", "a loop device lies on it"),
        (config, "nvmet/subsystems/*/namespaces/*/device_path", "the kernel's NVMe target exports it"),
        (config, "target/core/*/*/udev_path", "the kernel's SCSI target exports it"),
    ];
    for (top, pattern, uses) in places {
        let untold = |error| format!("whether {uses} cannot be told, as {} cannot be read ({error})", top.display());
        let files = match matching(top, pattern) {
            Ok(files) => files,
            Err(error) => return Some(untold(error)),
        };
        for file in files {
            match leads_to(&file) {
                Ok(Some(path)) if is_it(&path) => return Some(format!("{uses}, see {}", file.display())),
                Ok(_) => {}
                Err(error) => return Some(untold(error)),
            }
        }
    }
    None
}

/// The path that is in a file of the kernel's; `None` where there is no such file, or where what it tells of is not enabled.
fn leads_to(file: &Path) -> io::Result<Option<PathBuf>> {
    if fs::read(file.with_file_name("enable")).is_ok_and(|text| text.trim_ascii() == b"0") {
        return Ok(None);
    }
    match fs::read(file) {
        Ok(text) => Ok(Some(OsStr::from_bytes(text.trim_ascii_end()).into())),
        Err(error) => unless_gone(error).map(|()| None),
    }
}

/// All below a folder that a pattern leads to, in which a `*` is whatever there is in a folder. The last part of it need not be there.
fn matching(top: &Path, pattern: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![top.to_owned()];
    for part in pattern.split('/') {
        let mut next = Vec::new();
        for path in found {
            match part {
                "*" => match fs::read_dir(&path) {
                    Ok(entries) => next.extend(entries.flatten().map(|entry| entry.path())),
                    Err(error) => unless_gone(error)?,
                },
                name => next.push(path.join(name)),
            }
        }
        found = next;
    }
    Ok(found)
}

/// A target that is not loaded has no folder, a device that is no loop device none with its file, and both may go while they are looked at.
fn unless_gone(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ENXIO) => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folders of a kernel that has these files.
    fn kernel(files: &[(&str, &str)]) -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        for (name, text) in [&[("block/vda/size", "4096\n"), ("config/target/core/alua/lu_gps", "")][..], files].concat() {
            let path = top.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        top
    }

    fn user(top: &Path) -> Option<String> {
        kernel_user_in(&top.join("block"), &top.join("config"), |path| path == Path::new("/dev/ublkb7"))
    }

    /// A volume with a loop device on it, or exported by the kernel, was taken for unused, and was removed under its users.
    #[test]
    fn what_the_kernel_itself_has_open_is_in_use() {
        let namespace = "config/nvmet/subsystems/backup/namespaces/1";
        let (path, enable) = (format!("{namespace}/device_path"), format!("{namespace}/enable"));
        for (files, says) in [
            (&[("block/loop3/loop/backing_file", "/dev/ublkb7\n")][..], "a loop device lies on it, see "),
            (&[(&*path, "/dev/ublkb7\n"), (&*enable, "1\n")], "the kernel's NVMe target exports it, see "),
            (&[("config/target/core/fileio_0/lun/udev_path", "/dev/ublkb7\n")], "the kernel's SCSI target exports it, see "),
        ] {
            let top = kernel(files);
            let user = user(top.path()).unwrap_or_default();
            assert!(user.starts_with(says) && user.ends_with(files[0].0), "{user}");
        }
    }

    #[test]
    fn what_is_of_another_device_or_not_enabled_is_no_use_of_it() {
        let top = kernel(&[
            ("block/loop3/loop/backing_file", "/dev/ublkb70\n"),
            ("block/loop4/size", "0\n"),
            ("config/nvmet/subsystems/backup/namespaces/1/device_path", "/dev/ublkb7\n"),
            ("config/nvmet/subsystems/backup/namespaces/1/enable", "0\n"),
            ("config/target/core/iblock_0/lun/udev_path", "/dev/sda\n"),
        ]);
        assert_eq!(user(top.path()), None);
        assert_eq!(user(Path::new("/nowhere")), None, "no sysfs, and no targets");
    }

    #[test]
    fn what_cannot_be_read_may_be_a_use_of_it() {
        let top = kernel(&[("block/loop3/loop/backing_file/is", "a folder, as root may read all files")]);
        assert!(user(top.path()).is_some_and(|user| user.contains("cannot be told")), "{:?}", user(top.path()));
    }
}
