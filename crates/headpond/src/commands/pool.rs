//! `headpond pool`: create, list, destroy.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use headpond_host::pool::list::{Listed, list};
use headpond_host::pool::probe::Found;
use headpond_host::pool::{DiscardDirty, NewPool, create, destroy};
use headpond_host::state::{State, hex};
use serde_json::{Value, json};

use super::print;
use crate::exit::Usage;
use crate::size;

#[derive(Subcommand)]
pub enum Pool {
    /// Make a pool of cache devices
    Create(Create),
    /// Show what devices are: pools, other things, nothing
    List(List),
    /// Make the cache devices of a pool plain devices again
    Destroy(Destroy),
}

#[derive(Args)]
pub struct Create {
    /// The pool's name
    name: String,
    /// Its cache devices: block devices, or files
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Copies of dirty data; with 1, losing a device loses what is dirty on it
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    copies: u8,
    /// Size of a segment, 64KiB to 32MiB [default: by the size of the devices]
    #[arg(long, value_parser = size::parse)]
    segment: Option<u64>,
    /// Unit of records in bytes: 512, or 4096 [default: by the devices' blocks]
    #[arg(long, value_parser = unit)]
    unit: Option<u32>,
    /// Overwrite what is on the devices, but for dirty data of a pool
    #[arg(long)]
    force: bool,
    /// With --force: lose what is dirty on this pool in this epoch
    #[arg(long, value_name = "POOLID:EPOCH", requires = "force")]
    discard_dirty: Option<DiscardDirty>,
    #[command(flatten)]
    folder: Folder,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct List {
    /// The devices [default: all block devices]
    #[arg(value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct Destroy {
    /// The cache devices
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Lose what is dirty on this pool in this epoch
    #[arg(long, value_name = "POOLID:EPOCH")]
    discard_dirty: Option<DiscardDirty>,
    #[command(flatten)]
    folder: Folder,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The state folder.
#[derive(Args, Clone, Debug)]
pub struct Folder {
    /// The state folder, which holds the pools' witnesses [default: /var/lib/headpond as root, else in the home folder]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

impl Folder {
    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.state.clone().unwrap_or_else(State::default_path)
    }

    /// Whether it was named.
    pub fn is_given(&self) -> bool {
        self.state.is_some()
    }

    fn open(&self) -> Result<State, Usage> {
        let path = self.path();
        State::open(&path).map_err(|error| {
            Usage(format!(
                "The state folder {} cannot be used: {error}. Nothing was changed. Name one with --state",
                path.display()
            ))
        })
    }
}

fn unit(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(unit @ (512 | 4096)) => Ok(unit),
        _ => Err("give 512 or 4096".into()),
    }
}

impl Pool {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Pool::Create(create) => create.run(),
            Pool::List(list) => list.run(),
            Pool::Destroy(destroy) => destroy.run(),
        }
    }
}

impl Create {
    fn run(self) -> anyhow::Result<()> {
        let new = NewPool {
            name: self.name,
            devices: self.devices,
            copies: self.copies,
            segment_bytes: self.segment.unwrap_or(0),
            unit: self.unit,
            force: self.force,
            discard_dirty: self.discard_dirty,
        };
        let pool = create(&new, &self.folder.open()?)?;
        let segment = pool.members.first().map_or(0, |member| member.layout.segment_bytes);
        let (id, copies) = (hex(&pool.pool), pool.copies);
        let value = json!({ "pool": pool.name, "id": id, "epoch": pool.epoch, "copies": copies, "segment_bytes": segment });
        let devices = pool.members.len();
        let plural = if copies == 1 { "copy" } else { "copies" };
        let segment = size::show(segment);
        let line =
            format!("pool {}: {devices} cache devices, {copies} {plural}, segments of {segment}, identity {id}", pool.name);
        print(self.json, &value, line)
    }
}

impl List {
    fn run(self) -> anyhow::Result<()> {
        let all = self.devices.is_empty();
        let mut listed = list(&self.devices);
        if all {
            listed.retain(|device| matches!(device.found, Ok((_, Found::Member(_) | Found::Newer(_) | Found::Damaged(_)))));
        }
        let values: Vec<Value> = listed.iter().map(value).collect();
        let lines: Vec<String> = listed.iter().map(line).collect();
        let text = if lines.is_empty() { "no cache devices found".into() } else { lines.join("\n") };
        print(self.json, &json!(values), text)
    }
}

fn line(device: &Listed) -> String {
    let in_use = if device.in_use { ", in use" } else { "" };
    let what = match &device.found {
        Err(error) => return format!("{}: cannot be read: {error}", device.path.display()),
        Ok((size, Found::Member(s))) => {
            let (number, of, size) = (s.member, s.members.len(), size::show(*size));
            let volumes: Vec<&str> = s.volumes.iter().map(|volume| volume.name.as_str()).collect();
            let volumes = if volumes.is_empty() { "none".into() } else { volumes.join(", ") };
            let id = hex(&s.pool);
            format!(
                "pool {}, cache device {number} of {of}, {size}, epoch {}, identity {id}, volumes: {volumes}",
                s.name, s.epoch
            )
        }
        Ok((_, Found::Newer(version))) => format!("a cache device of a newer format ({version:#x})"),
        Ok((_, Found::Damaged(why))) => format!("a cache device whose superblocks are damaged ({why})"),
        Ok((_, Found::Signature(what))) => (*what).into(),
        Ok((_, Found::Nothing)) => "nothing known".into(),
    };
    format!("{}: {what}{in_use}", device.path.display())
}

fn value(device: &Listed) -> Value {
    let mut value = json!({ "path": device.path, "in_use": device.in_use });
    match &device.found {
        Err(error) => value["error"] = json!(error.to_string()),
        Ok((size, found)) => {
            value["bytes"] = json!(size);
            value["holds"] = match found {
                Found::Member(_) => "member".into(),
                Found::Newer(_) => "newer".into(),
                Found::Damaged(_) => "damaged".into(),
                Found::Signature(what) => (*what).into(),
                Found::Nothing => Value::Null,
            };
            if let Found::Member(s) = found {
                let volumes: Vec<&str> = s.volumes.iter().map(|volume| volume.name.as_str()).collect();
                let (id, members) = (hex(&s.pool), s.members.len());
                value["pool"] = json!({
                    "name": s.name, "id": id, "epoch": s.epoch, "member": s.member, "members": members, "volumes": volumes,
                });
            }
        }
    }
    value
}

impl Destroy {
    fn run(self) -> anyhow::Result<()> {
        let pools = destroy(&self.devices, self.discard_dirty.as_ref(), &self.folder.open()?)?;
        let freed = self.devices.iter().zip(&pools);
        let value: Vec<Value> = freed.clone().map(|(path, pool)| json!({ "path": path, "pool": pool.name })).collect();
        let lines: Vec<String> =
            freed.map(|(path, pool)| format!("{}: free; it was a cache device of pool {}", path.display(), pool.name)).collect();
        print(self.json, &json!(value), lines.join("\n"))
    }
}
