//! `headpond volume`: create, delete.

use clap::{Args, Subcommand};
use headpond_host::control::{Call, CreateVolume};

use super::{Which, place_of_new, print, whole};
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

impl Volume {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Volume::Create(create) => create.run(),
            Volume::Delete(delete) => delete.run(),
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
