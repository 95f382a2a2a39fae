//! Which volume a block device of this host is, for the rule of udev that gives it a name that lasts.
//!
//! Numbers of devices are given anew at each start, and one that is ours today is another program's tomorrow. So nothing here
//! is kept by number. A ublk device carries its volume's mark, which the kernel keeps also while no daemon serves it; what
//! the mark stands for, a daemon notes before the device can be seen. A loop device's file lies in a folder named after the
//! pool and the volume.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use headpond_engine::create::is_a_name;

use crate::daemon::run_folder;
use crate::ublk;

/// A name that cannot be part of a path.
#[derive(Debug, thiserror::Error)]
#[error(
    "The name {0:?} is on the devices, and no file can be named after it in our folders: it would lead to another folder, or to none. Nothing was \
     changed. See that these are the devices that you mean: no Headpond gives such names. Name the sockets with --socket and --nbd, and \
     serve without FUSE, to have what is on them all the same"
)]
pub struct Unfit(String);

/// A pool's or a volume's name as part of a path. It is read from devices, which may be a stranger's: what leads elsewhere is refused; what is only
/// unusual, as names from before there was a rule for new ones, is not.
///
/// # Errors
/// It would lead elsewhere.
pub fn fits_a_path(name: &str) -> Result<&str, Unfit> {
    let fits = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
    fits.then_some(name).ok_or_else(|| Unfit(name.to_owned()))
}

/// The pool's name, a slash, and the volume's; `None` of a device that is no volume of ours. `device` is the kernel's name of
/// it, such as `ublkb0`.
pub fn of(device: &str) -> Option<String> {
    let run = run_folder();
    if let Some(id) = device.strip_prefix("ublkb") {
        return noted(&run, ublk::mark_of(id.parse().ok()?)?);
    }
    let number: u32 = device.strip_prefix("loop")?.parse().ok()?;
    let file = fs::read_to_string(format!("/sys/block/loop{number}/loop/backing_file")).ok()?;
    of_file(&run, Path::new(file.trim_end_matches('\n')))
}

/// The name that lasts of a volume's block device, `/dev/headpond/POOL/VOLUME`: if udev has made it by now, and it leads to `device`.
#[must_use]
pub fn lasting(pool: &str, volume: &str, device: &str) -> Option<String> {
    Some(lasting_in(Path::new("/dev"), pool, volume, Path::new(device))?.display().to_string())
}

fn lasting_in(dev: &Path, pool: &str, volume: &str, device: &Path) -> Option<PathBuf> {
    let link = dev.join("headpond").join(joined(pool, volume)?);
    (link.canonicalize().ok()? == device.canonicalize().ok()?).then_some(link)
}

/// Notes what a mark stands for, until the next boot. A mark is one volume's for ever, so that an old note is a right one.
pub(crate) fn note(run: &Path, mark: u64, pool: &str, volume: &str) -> io::Result<()> {
    let folder = run.join("names");
    fs::create_dir_all(&folder)?;
    let new = folder.join(format!(".{mark:016x}"));
    fs::write(&new, format!("{pool}/{volume}"))?;
    fs::rename(new, place(run, mark))
}

fn noted(run: &Path, mark: u64) -> Option<String> {
    let text = fs::read_to_string(place(run, mark)).ok()?;
    let (pool, volume) = text.split_once('/')?;
    joined(pool, volume)
}

fn place(run: &Path, mark: u64) -> PathBuf {
    run.join("names").join(format!("{mark:016x}"))
}

/// By the file behind a loop device.
fn of_file(run: &Path, file: &Path) -> Option<String> {
    let parts: Vec<&str> = file.strip_prefix(run).ok()?.iter().map(|part| part.to_str()).collect::<Option<_>>()?;
    match parts[..] {
        [pool, volume, file] if volume == file => joined(pool, volume),
        _ => None,
    }
}

/// Both, if they can be a folder and a file in it, and nothing else.
fn joined(pool: &str, volume: &str) -> Option<String> {
    (is_a_name(pool) && is_a_name(volume)).then(|| format!("{pool}/{volume}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_known_by_what_was_noted_last_and_no_other_mark_is() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(noted(run.path(), 7), None);
        note(run.path(), 7, "tank", "home").unwrap();
        note(run.path(), 7, "tank", "home").unwrap();
        assert_eq!(noted(run.path(), 7).as_deref(), Some("tank/home"));
        assert_eq!(noted(run.path(), 8), None);
    }

    #[test]
    fn a_loop_device_is_known_by_its_file_in_our_own_folder_alone() {
        let of = |file: &str| of_file(Path::new("/run/headpond"), Path::new(file));
        assert_eq!(of("/run/headpond/tank/home/home").as_deref(), Some("tank/home"));
        for other in ["/srv/tank/home/home", "/run/headpond/tank/home/other", "/run/headpond/home", "/run/headpond/a/b/b/b"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn the_name_that_lasts_is_told_while_it_leads_to_the_device_and_no_other() {
        let dev = tempfile::tempdir().unwrap();
        let (device, other) = (dev.path().join("ublkb0"), dev.path().join("ublkb1"));
        for node in [&device, &other] {
            fs::write(node, "").unwrap();
        }
        let lasting = |device: &Path| lasting_in(dev.path(), "tank", "home", device);
        assert_eq!(lasting(&device), None);
        fs::create_dir_all(dev.path().join("headpond/tank")).unwrap();
        let link = dev.path().join("headpond/tank/home");
        std::os::unix::fs::symlink("../../ublkb0", &link).unwrap();
        assert_eq!((lasting(&device), lasting(&other)), (Some(link), None));
        assert_eq!(lasting_in(dev.path(), "..", "home", &device), None);
    }

    #[test]
    fn a_name_never_leads_out_of_its_folder() {
        for name in ["tank", "Bank 2", "größe", ".hidden", "a..b", "..."] {
            assert_eq!(fits_a_path(name).ok(), Some(name));
        }
        for name in ["", ".", "..", "../x", "/", "/etc", "a/b", "a\0b"] {
            assert!(fits_a_path(name).is_err(), "{name:?}");
        }
        for (pool, volume) in [("..", "home"), ("tank", ".."), ("", "home"), ("tank", ""), ("a b", "c"), ("a", "b/c")] {
            assert_eq!(joined(pool, volume), None);
        }
        let run = tempfile::tempdir().unwrap();
        note(run.path(), 1, "..", "passwd").unwrap();
        assert_eq!(noted(run.path(), 1), None);
    }
}
