//! `headpond volume`: create, delete, give up.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::{Args, Subcommand};
use headpond_host::control::{Call, CreateVolume};
use headpond_host::{names, ublk};
use serde_json::json;

use super::{Which, place_of_new, print, whole};
use crate::exit::Usage;
use crate::size;

#[derive(Subcommand)]
pub enum Volume {
    /// Make a volume without a backing device: a small mirrored disk on the cache devices alone
    ///
    /// For journals and write-intent bitmaps. What is written to it stays on the cache devices, and twice its size is set aside
    /// there, with as many copies as dirty data has. `headpond attach` makes a volume of a device.
    Create(Create),
    /// Delete a volume without a backing device, with all that is on it
    ///
    /// Without --throw-away it says how much that is, and changes nothing. `headpond detach` takes a volume with a backing device
    /// off the pool.
    Delete(Delete),
    /// End a ublk device that a daemon has left and none will serve again
    ///
    /// For a pool that is gone: the daemon of one that is there takes the device over, and `headpond serve --give-up NAME` ends it at its start.
    /// All I/O that waits there fails: what clients wrote and no flush has answered is lost to them. Refused while a daemon serves it.
    GiveUp(GiveUp),
}

#[derive(Args)]
pub struct Create {
    /// The volume's name
    name: String,
    /// Its size, such as 1GiB; rounded up to a multiple of 4 KiB
    #[arg(long, value_parser = size::parse)]
    size: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

#[derive(Args)]
pub struct Delete {
    /// The volume
    name: String,
    /// Throw away what is on it: it is nowhere else
    #[arg(long)]
    throw_away: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

#[derive(Args)]
pub struct GiveUp {
    /// The block device, such as /dev/ublkb0
    device: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Volume {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Volume::Create(create) => create.run(),
            Volume::Delete(delete) => delete.run(),
            Volume::GiveUp(give_up) => give_up.run(),
        }
    }
}

impl Create {
    fn run(self) -> anyhow::Result<()> {
        let name = self.name;
        let mut answer = self.which.call(&Call::CreateVolume(CreateVolume { name: name.clone(), bytes: self.size }))?;
        let bytes = answer["bytes"].as_u64().unwrap_or(0);
        let place = place_of_new(&mut answer, &name);
        let rounded = super::grow::rounded(self.size, bytes);
        let words = format!("volume {name}: {}{place}, on the cache devices alone{rounded}", size::show(bytes));
        print(self.json, &answer, words)?;
        whole(&answer["problem"])
    }
}

impl Delete {
    fn run(self) -> anyhow::Result<()> {
        let name = self.name;
        let answer = self.which.call(&Call::DeleteVolume { name: name.clone(), throw_away: self.throw_away })?;
        let held = size::show(answer["thrown_away_bytes"].as_u64().unwrap_or(0));
        print(self.json, &answer, format_args!("volume {name}: deleted; {held} that were on it are thrown away"))
    }
}

impl GiveUp {
    fn run(self) -> anyhow::Result<()> {
        let named = self.device.display();
        let number = ublk_number(&self.device).ok_or_else(|| {
            Usage(format!(
                "{named} is no ublk device. Nothing was changed. Name one as a whole, by its path: `ls /dev/ublkb*` shows them"
            ))
        })?;
        let device = format!("ublkb{number}");
        let volume = names::of(&device);
        ublk::give_up(number).map_err(|error| anyhow!("{error}. {}", error.next()))?;
        let of = volume.as_ref().map(|name| format!(" of volume {name}")).unwrap_or_default();
        let words = format!(
            "/dev/{device}{of} is ended: the I/O that waited there failed, and what its clients wrote and no flush has answered is lost to them. \
             Unmount what was on it"
        );
        print(self.json, &json!({ "device": format!("/dev/{device}"), "volume": volume }), words)
    }
}

/// The number of a ublk device, whichever link to it is named.
fn ublk_number(device: &Path) -> Option<u32> {
    let real = device.canonicalize().ok()?;
    real.file_name()?.to_str()?.strip_prefix("ublkb")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_ublk_device_is_known_by_each_link_to_it_and_a_part_of_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["ublkb7", "ublkb7p1", "sda"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("ublkb7", folder.path().join("home")).unwrap();
        let number = |name: &str| ublk_number(&folder.path().join(name));
        assert_eq!((number("ublkb7"), number("home")), (Some(7), Some(7)));
        assert_eq!((number("ublkb7p1"), number("sda"), number("ublkb8")), (None, None, None));
    }
}
