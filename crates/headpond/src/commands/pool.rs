//! `headpond pool`: create, list, add, remove, replace, destroy.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use headpond_host::control::{AddMember, Call};
use headpond_host::pool::list::{Listed, list};
use headpond_host::pool::probe::Found;
use headpond_host::pool::{DiscardDirty, NewPool, PoolError, create, destroy};
use headpond_host::report::{Member, Report};
use headpond_host::state::{State, hex};
use serde_json::{Value, json};

use super::offline::harmless;
use super::{Which, pool_of, print, print_and_judge};
use crate::exit::{self, Usage};
use crate::size;

#[derive(Subcommand)]
pub enum Pool {
    /// Make a pool of cache devices
    Create(Create),
    /// Show what devices are: pools, other things, nothing
    List(List),
    /// Take a device into a pool that is being served
    Add(Add),
    /// Empty a cache device and take it out of a pool that is being served
    Remove(Remove),
    /// Put a new device in the place of a cache device, dead or alive
    Replace(Replace),
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
    /// Unit of records in bytes: 512, or 4096 [default: by the devices' physical blocks]
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

#[derive(Args)]
pub struct Add {
    /// The device: a block device, or a file
    #[arg(required_unless_present = "cancel", value_name = "DEVICE")]
    device: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// End the adding or removing that is under way
    #[arg(long)]
    cancel: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

#[derive(Args)]
pub struct Remove {
    /// The cache device: its path, or its number as `headpond status` shows it
    #[arg(required_unless_present = "cancel", value_name = "DEVICE")]
    device: Option<String>,
    /// End the adding or removing that is under way
    #[arg(long)]
    cancel: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

#[derive(Args)]
pub struct Replace {
    /// The cache device that goes: its path, or its number as `headpond status` shows it
    #[arg(value_name = "OLD")]
    old: String,
    /// The device that takes its place
    #[arg(value_name = "NEW")]
    new: PathBuf,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

/// What may be lost of what is on a new device.
#[derive(Args)]
pub struct Overwrite {
    /// Overwrite what is on the new device, but for dirty data of a pool
    #[arg(long)]
    force: bool,
    /// With --force: lose what is dirty on this pool in this epoch
    #[arg(long, value_name = "POOLID:EPOCH", requires = "force")]
    discard_dirty: Option<DiscardDirty>,
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
            Pool::Add(add) => add.run(),
            Pool::Remove(remove) => remove.run(),
            Pool::Replace(replace) => replace.run(),
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
            let is_ours =
                |device: &Listed| matches!(device.found, Ok((_, Found::Member(_) | Found::Newer(_) | Found::Damaged(_))));
            // One that does not answer may be.
            listed.retain(|device| is_ours(device) || device.is_silent());
        }
        let values: Vec<Value> = listed.iter().map(value).collect();
        let lines: Vec<String> = listed.iter().map(line).collect();
        let text = if lines.is_empty() { "no cache devices found".into() } else { lines.join("\n") };
        let unread: Vec<String> =
            listed.iter().filter(|device| device.found.is_err()).map(|device| device.path.display().to_string()).collect();
        let verdict = match unread.is_empty() {
            true => Ok(()),
            false => Err(exit::Found(format!(
                "Not looked at: {}. Nothing was changed. Check that they are there, and that you may read them",
                unread.join(", ")
            ))
            .into()),
        };
        print_and_judge(self.json, &json!(values), text, verdict)
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
    harmless(&format!("{}: {what}{in_use}", device.path.display()))
}

fn value(device: &Listed) -> Value {
    let mut value = json!({ "path": device.path.display().to_string(), "in_use": device.in_use });
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

/// Ends what is under way on a pool's members.
fn cancel(which: &Which, json: bool) -> anyhow::Result<()> {
    let answer = which.call(&Call::CancelMembers)?;
    print(json, &answer, "told to stop; the command that was under way says how far it came")
}

/// The path of a cache device, as the daemon is told it.
fn text(path: &Path) -> Result<&str, PoolError> {
    path.to_str().ok_or_else(|| PoolError::NotText { path: path.to_owned() })
}

/// Takes a device in, where it is named in the place of one that has left; the answer, and that in words.
fn add(which: &Which, device: &Path, overwrite: &Overwrite, in_place_of: Option<u8>) -> anyhow::Result<(Value, String)> {
    let path = text(&std::path::absolute(device)?)?.to_owned();
    let discard_dirty = overwrite.discard_dirty.as_ref().map(DiscardDirty::to_string);
    let new = AddMember { path: path.clone(), force: overwrite.force, discard_dirty, in_place_of };
    let answer = which.call(&Call::AddMember(new))?;
    let lacking = answer["lacking_bytes"].as_u64().unwrap_or(0);
    let copied = match lacking {
        0 => "all that is dirty has its copies".into(),
        bytes => format!("{} of dirty data still have one copy less, and are being copied", size::show(bytes)),
    };
    let note = answer["note"].as_str().map(|note| format!("\n{note}")).unwrap_or_default();
    let text = format!(
        "{path}: cache device {} of {}; {copied}. Name it in `headpond serve` from now on: put it into `devices` in the configuration \
         (/etc/headpond/NAME.toml, of the unit headpond@NAME), and into the drop-in of headpond-devices@NAME{note}",
        answer["member"],
        pool_of(&answer)
    );
    Ok((answer, text))
}

/// Takes a cache device out; the answer, and that in words.
fn remove(which: &Which, device: &str) -> anyhow::Result<(Value, String)> {
    let absolute = std::path::absolute(device).map(|path| path.display().to_string());
    let member = if device.bytes().all(|c| c.is_ascii_digit()) { device.to_owned() } else { absolute? };
    let answer = which.call(&Call::RemoveMember { member })?;
    let place = answer["path"].as_str().map(|path| format!(" ({path})")).unwrap_or_default();
    let pool = pool_of(&answer);
    let how = match answer["had_left"].as_bool() {
        Some(true) => format!("had left {pool}, and is forgotten; what it holds is out of date"),
        _ => format!("removed from {pool}; nothing on it is needed any more"),
    };
    let text = format!(
        "cache device {}{place}: {how}. Name it no longer in `headpond serve`: take it out of `devices` in the configuration \
         (/etc/headpond/NAME.toml, of the unit headpond@NAME), and out of the drop-in of headpond-devices@NAME",
        answer["member"]
    );
    Ok((answer, text))
}

impl Add {
    fn run(self) -> anyhow::Result<()> {
        let Some(device) = self.device.filter(|_| !self.cancel) else { return cancel(&self.which, self.json) };
        let (answer, text) = add(&self.which, &device, &self.overwrite, None)?;
        print(self.json, &answer, text)
    }
}

impl Remove {
    fn run(self) -> anyhow::Result<()> {
        let Some(device) = self.device.filter(|_| !self.cancel) else { return cancel(&self.which, self.json) };
        let (answer, text) = remove(&self.which, &device)?;
        print(self.json, &answer, text)
    }
}

impl Replace {
    /// The new one first: at no moment is there a copy less than there was. One that is out already is succeeded by number, and nothing has to be
    /// removed.
    fn run(self) -> anyhow::Result<()> {
        let report: Report = serde_json::from_value(self.which.call(&Call::Status)?)?;
        let real = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
        let old = real(Path::new(&self.old));
        let is_at_old = |path: &String| old.is_some() && real(Path::new(path)) == old;
        let is_old = |m: &&Member| m.number.to_string() == self.old || m.path.as_ref().is_some_and(is_at_old);
        // Of two remembered at one path the one that is out is not there any more.
        let at_old = |is_out: bool| report.members.iter().find(|m| is_old(m) && (m.state == "out") == is_out);
        let Some(member) = at_old(false).or_else(|| at_old(true)) else {
            let known: Vec<String> =
                report.members.iter().map(|m| m.path.clone().unwrap_or_else(|| m.number.to_string())).collect();
            return Err(Usage(format!(
                "Pool {} has no cache device {}. Nothing was changed. Name one that it has: {}",
                report.pool,
                self.old,
                known.join(", ")
            ))
            .into());
        };
        let is_out = member.state == "out";
        let (added, mut text) = add(&self.which, &self.new, &self.overwrite, is_out.then_some(member.number))?;
        let mut value = json!({ "added": added });
        let mut result = Ok(());
        if !is_out {
            match remove(&self.which, &member.number.to_string()) {
                Ok((removed, words)) => {
                    text = format!("{text}\n{words}");
                    value["removed"] = removed;
                }
                Err(error) => {
                    value["error"] = json!(error.to_string());
                    result = Err(error);
                }
            }
        }
        // The new one is the pool's by now, whatever became of the old one.
        print_and_judge(self.json, &value, text, result)
    }
}

impl Destroy {
    fn run(self) -> anyhow::Result<()> {
        let pools = destroy(&self.devices, self.discard_dirty.as_ref(), &self.folder.open()?)?;
        let freed = self.devices.iter().zip(&pools);
        let value: Vec<Value> =
            freed.clone().map(|(path, pool)| json!({ "path": path.display().to_string(), "pool": pool.name })).collect();
        let lines: Vec<String> =
            freed.map(|(path, pool)| format!("{}: free; it was a cache device of pool {}", path.display(), pool.name)).collect();
        print(self.json, &json!(value), lines.join("\n"))
    }
}
