//! The state folder: the witness of each pool, and where its devices were last seen.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};
use serde::{Deserialize, Serialize};

use crate::device::facts::sysfs;
use crate::events::before;
use crate::report::{LostRange, Scrub};

/// Bytes of a witness file.
const WITNESS_FILE_BYTES: u64 = 64 << 10;

/// A pool's identity as people see it.
pub fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The folder in which this host keeps what it knows of its pools beside them.
#[derive(Clone, Debug)]
pub struct State(PathBuf);

/// Where the devices of a pool were last seen: hints, never proof.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Places {
    /// Cache devices by number.
    #[serde(default)]
    pub members: BTreeMap<u8, PathBuf>,
    /// Specs of backing devices by volume.
    #[serde(default)]
    pub volumes: BTreeMap<String, String>,
    /// Numbers of ublk devices by volume.
    #[serde(default)]
    pub ublk: BTreeMap<String, u32>,
}

/// What is pinned, by volume.
pub type Pins = BTreeMap<String, Vec<[u64; 2]>>;

/// Least and most percent of the pool that a volume has, by volume; none where nothing was said.
pub type Shares = BTreeMap<String, [u8; 2]>;

/// What is known of a pool's scrubs on this host.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Scrubbed {
    /// The next one is due so long after this moment, in seconds since 1970: the last one's end, or the first start here.
    pub since: u64,
    /// What the last one found.
    pub last: Scrub,
}

/// What was lost of a pool's volumes when it was last noticed: kept for whoever restores it.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Lost {
    /// When that was, in seconds since 1970.
    pub time: u64,
    /// Bytes, by volume.
    pub bytes: BTreeMap<String, u64>,
    /// Where they are; no more than 4,096 ranges are named.
    pub ranges: Vec<LostRange>,
}

impl State {
    /// `/var/lib/headpond` for root; for others `headpond` in `$XDG_STATE_HOME` or `~/.local/state`.
    pub fn default_path() -> PathBuf {
        if rustix::process::geteuid().is_root() {
            return "/var/lib/headpond".into();
        }
        let home = std::env::var_os("XDG_STATE_HOME").filter(|home| Path::new(home).is_absolute()).map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")));
        home.unwrap_or_else(std::env::temp_dir).join("headpond")
    }

    /// The folder at `path`, made if it is missing.
    pub fn open(path: &Path) -> io::Result<State> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(State(path.canonicalize()?))
    }

    /// The folder at `path`, to be read: it need not be there.
    pub(crate) fn at(path: &Path) -> State {
        State(path.to_owned())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a pool's witness.
    pub fn witness(&self, pool: &[u8; 16]) -> PathBuf {
        self.0.join(format!("witness-{}", hex(pool)))
    }

    /// Makes the witness file of a pool if there is none, or one that was never written whole and so never had a vote; whether
    /// there was one.
    pub fn make_witness(&self, pool: &[u8; 16]) -> io::Result<bool> {
        let path = self.witness(pool);
        match fs::metadata(&path) {
            Ok(meta) if is_whole_witness(meta.len()) => return Ok(true),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Written, not left as a hole: a vote must not fail for want of space later. And under its name only when it is whole: one that is
        // too short could never vote, and would pass for a witness at every start.
        replace(&self.0.join(format!(".witness-{}.new", hex(pool))), &path, &vec![0; WITNESS_FILE_BYTES as usize])?;
        Ok(false)
    }

    /// The path of the block device under this folder that the given devices, or a volume of Headpond, carry.
    ///
    /// A witness there would be lost together with what it is to vote about.
    pub fn carried_by(&self, members: &[PathBuf]) -> io::Result<Option<PathBuf>> {
        let number = fs::metadata(&self.0)?.dev();
        let below = fs::read_to_string(sysfs(number).join("loop/backing_file")).unwrap_or_default();
        let below = Path::new(below.trim_end_matches('\n'));
        let carries = |member: &PathBuf| {
            fs::metadata(member).is_ok_and(|it| it.rdev() == number && number != 0)
                || member.canonicalize().is_ok_and(|it| it == below)
        };
        if let Some(member) = members.iter().find(|member| carries(member)) {
            return Ok(Some(member.clone()));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let ours = mounts.lines().filter(|line| line.contains(" - fuse.headpond ")).any(|line| {
            let point = line.split(' ').nth(4).unwrap_or_default();
            !point.is_empty() && below.starts_with(point)
        });
        let ublk = sysfs(number).canonicalize().is_ok_and(|device| crate::ublk::is_ours(&device));
        Ok((ours || ublk).then(|| PathBuf::from(format!("/dev/block/{}:{}", major(number), minor(number)))))
    }

    /// Where a pool's devices were last seen.
    pub fn places(&self, pool: &[u8; 16]) -> Places {
        let text = fs::read_to_string(self.places_path(pool)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Whether cache devices of other pools than this one were last seen at some of these paths.
    pub(crate) fn has_seen_another(&self, pool: &[u8; 16], paths: &[PathBuf]) -> bool {
        let own = self.places_path(pool);
        let paths: Vec<PathBuf> = paths.iter().filter_map(|path| std::path::absolute(path).ok()).collect();
        let of_pool =
            |path: &Path| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("volumes-"));
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten().map(|entry| entry.path());
        files.filter(|file| of_pool(file) && *file != own).any(|file| {
            let places: Places = serde_json::from_slice(&fs::read(file).unwrap_or_default()).unwrap_or_default();
            places.members.values().any(|member| paths.contains(member))
        })
    }

    /// Remembers where a pool's devices are.
    pub fn remember(&self, pool: &[u8; 16], places: &Places) -> io::Result<()> {
        let (path, new) = (self.places_path(pool), self.0.join(format!(".volumes-{}.new", hex(pool))));
        replace(&new, &path, &serde_json::to_vec_pretty(places)?)
    }

    /// The path of a pool's events.
    pub fn events(&self, pool: &[u8; 16]) -> PathBuf {
        self.0.join(format!("events-{}.jsonl", hex(pool)))
    }

    /// What is known of a pool's scrubs: when one ended last, and what it found.
    pub fn scrubbed(&self, pool: &[u8; 16]) -> Scrubbed {
        let text = fs::read_to_string(self.scrub_path(pool)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Remembers it.
    pub fn remember_scrub(&self, pool: &[u8; 16], scrubbed: &Scrubbed) -> io::Result<()> {
        let (path, new) = (self.scrub_path(pool), self.0.join(format!(".scrub-{}.new", hex(pool))));
        replace(&new, &path, &serde_json::to_vec_pretty(scrubbed)?)
    }

    /// What is pinned, by volume: runs of bytes, each by its beginning and its length.
    pub fn pins(&self, pool: &[u8; 16]) -> Pins {
        let text = fs::read_to_string(self.pins_path(pool)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Remembers it.
    pub fn remember_pins(&self, pool: &[u8; 16], pins: &Pins) -> io::Result<()> {
        let (path, new) = (self.pins_path(pool), self.0.join(format!(".pins-{}.new", hex(pool))));
        replace(&new, &path, &serde_json::to_vec(pins)?)
    }

    /// The shares of volumes.
    pub fn shares(&self, pool: &[u8; 16]) -> Shares {
        let text = fs::read_to_string(self.shares_path(pool)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Remembers them.
    pub fn remember_shares(&self, pool: &[u8; 16], shares: &Shares) -> io::Result<()> {
        let new = self.0.join(format!(".shares-{}.new", hex(pool)));
        replace(&new, &self.shares_path(pool), &serde_json::to_vec_pretty(shares)?)
    }

    /// Keeps what is lost, in place of what was lost before.
    pub fn remember_lost(&self, pool: &[u8; 16], lost: &Lost) -> io::Result<()> {
        let new = self.0.join(format!(".lost-{}.new", hex(pool)));
        replace(&new, &self.lost_path(pool), &serde_json::to_vec_pretty(lost)?)
    }

    fn lost_path(&self, pool: &[u8; 16]) -> PathBuf {
        self.0.join(format!("lost-{}.json", hex(pool)))
    }

    fn pins_path(&self, pool: &[u8; 16]) -> PathBuf {
        self.0.join(format!("pins-{}.json", hex(pool)))
    }

    fn shares_path(&self, pool: &[u8; 16]) -> PathBuf {
        self.0.join(format!("shares-{}.json", hex(pool)))
    }

    fn scrub_path(&self, pool: &[u8; 16]) -> PathBuf {
        self.0.join(format!("scrub-{}.json", hex(pool)))
    }

    /// Forgets a pool: its witness, where its devices are, and what happened to it.
    pub fn forget(&self, pool: &[u8; 16]) -> io::Result<()> {
        let (places, scrub, pins) = (self.places_path(pool), self.scrub_path(pool), self.pins_path(pool));
        let (shares, events) = (self.shares_path(pool), self.events(pool));
        let all = [self.witness(pool), places, before(&events), events, scrub, pins, shares, self.lost_path(pool)];
        for path in all {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn places_path(&self, pool: &[u8; 16]) -> PathBuf {
        self.0.join(format!("volumes-{}.json", hex(pool)))
    }
}

/// Whether a witness file of this length was ever written whole. Whole it is made, and nothing makes it shorter.
pub(crate) fn is_whole_witness(bytes: u64) -> bool {
    bytes >= WITNESS_FILE_BYTES
}

/// Puts a file with these bytes in the place of another, whole or not at all, and durably: after a power cut it is not the old one again. Where
/// that fails `new` is gone: what filled the last room would keep the next one out, too.
pub(crate) fn replace(new: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(new, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(new)))?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_put_in_its_place_is_not_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let (new, path) = (dir.path().join("new"), dir.path().join("path"));
        replace(&new, &path, b"first").unwrap();
        fs::remove_file(&path).unwrap();
        // A folder's place no file takes.
        fs::create_dir(&path).unwrap();
        assert!(replace(&new, &path, b"second").is_err());
        assert!(!new.exists());
    }
}
