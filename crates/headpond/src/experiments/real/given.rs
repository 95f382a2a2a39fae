//! Block devices that a user gave, to be overwritten: that they are fit, and what would be lost on them.

use headpond_host::claim::Claim;
use headpond_host::pool::probe::{Found, probe};
use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the experiments of the NFS server need of a disk and of an SSD, in bytes.
const LEAST: [u64; 2] = [DISK_BYTES, SSD_BYTES];
/// Bytes of a disk, which files of all clients fit on.
pub const DISK_BYTES: u64 = 1 << 30;
/// Bytes of an SSD, two of which keep all of it, and one of which takes half of it.
pub const SSD_BYTES: u64 = 512 << 20;
/// How many of each there must be: a disk for each way to one; two SSDs for the pool, and two that are measured alone.
pub const COUNT: usize = 4;

/// The devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Given {
    /// The disks.
    pub disks: Vec<PathBuf>,
    /// The SSDs.
    pub ssds: Vec<PathBuf>,
    /// How many times slower than what they stand for all of them are.
    pub slower: u64,
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |of: &[PathBuf]| of.iter().map(|it| it.display().to_string()).collect::<Vec<_>>().join(", ");
        write!(f, "disks {}; SSDs {}", list(&self.disks), list(&self.ssds))
    }
}

impl Given {
    /// Looks at all of them, and changes nothing. What is on them, a line for each; an error says what is wrong with which.
    pub fn look(&self) -> Result<Vec<String>, String> {
        for (what, all) in [("--disk", &self.disks), ("--ssd", &self.ssds)] {
            if all.len() != COUNT {
                return Err(format!("{COUNT} times {what} is needed, and it was given {} times", all.len()));
            }
        }
        let mut seen = BTreeSet::new();
        let mut lines = Vec::new();
        for (all, least) in [&self.disks, &self.ssds].into_iter().zip(LEAST) {
            for path in all {
                if !seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                    return Err(format!("{} was given twice", path.display()));
                }
                lines.push(look(path, least)?);
            }
        }
        Ok(lines)
    }
}

/// Looks at one, which must be free and have `least` bytes, and be no part of a pool. What is on it.
pub fn look(path: &Path, least: u64) -> Result<String, String> {
    let shown = path.display();
    let claim = Claim::take(path, Duration::ZERO).map_err(|error| error.to_string())?;
    let bytes = claim.facts().size;
    if bytes < least {
        return Err(format!("{shown} has {} MiB, and {} are needed", bytes >> 20, least >> 20));
    }
    match probe(claim.as_fd(), bytes).map_err(|error| format!("{shown} cannot be read: {error}"))? {
        Found::Nothing => Ok(format!("{shown}: nothing that is known")),
        Found::Signature(what) => Ok(format!("{shown}: {what}")),
        // Whatever is dirty on it would be lost: who wants that says so to the command that knows how much that is.
        Found::Member(_) | Found::Newer(_) | Found::Damaged(_) => {
            Err(format!("{shown} is a cache device of a pool; free it with `headpond pool destroy {shown}` if nothing needs it"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn given(folder: &Path, bytes: u64) -> Given {
        let make = |name: &str| {
            (0..COUNT)
                .map(|n| {
                    let path = folder.join(format!("{name}{n}"));
                    File::create(&path).unwrap().set_len(bytes).unwrap();
                    path
                })
                .collect()
        };
        Given { disks: make("disk"), ssds: make("ssd"), slower: 1 }
    }

    #[test]
    fn devices_that_are_fit_are_named_with_what_is_on_them() {
        let folder = tempfile::tempdir().unwrap();
        let lines = given(folder.path(), DISK_BYTES).look().unwrap();
        assert_eq!(lines.len(), 2 * COUNT);
        assert!(lines.iter().all(|line| line.ends_with(": nothing that is known")), "{lines:?}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_device() {
        let folder = tempfile::tempdir().unwrap();
        let good = given(folder.path(), DISK_BYTES);
        let small = folder.path().join("small");
        File::create(&small).unwrap().set_len(1 << 20).unwrap();
        let with = |path: &Path| Given { ssds: vec![path.to_owned(); COUNT], ..good.clone() }.look().unwrap_err();
        assert_eq!(with(&small), format!("{} has 1 MiB, and 512 are needed", small.display()));
        assert_eq!(with(&good.disks[1]), format!("{} was given twice", good.disks[1].display()));
        let absent = folder.path().join("absent");
        assert!(with(&absent).contains(&absent.display().to_string()));
        let few = Given { ssds: good.ssds[..2].to_vec(), ..good.clone() }.look().unwrap_err();
        assert_eq!(few, "4 times --ssd is needed, and it was given 2 times");
    }
}
