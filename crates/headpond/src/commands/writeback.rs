//! `headpond writeback`.

use clap::Args;
use headpond_host::backing::Spec;
use headpond_host::offline::{self, Outcome, WriteBack, WrittenVolume};
use headpond_host::state::State;
use serde_json::json;

use super::offline::{AtRest, Watching, harmless};
use super::print_and_judge;
use crate::exit::Found;
use crate::size;

/// What is written is proved by the witness, too: it is not left out as by the tools that only look.
const STATE_HELP: &str = "The state folder of the host that served the pool: its witness there is heard [default: this host's, /var/lib/headpond as \
                          root, else in the home folder]";

#[derive(Args)]
#[command(mut_arg("state", |arg| arg.help(STATE_HELP)))]
pub struct Writeback {
    #[command(flatten)]
    pool: AtRest,
    /// A volume's disk; the name may be left out where the pool has one volume
    #[arg(long, required_unless_present = "save", value_name = "[NAME=]DEVICE")]
    backing: Vec<String>,
    /// A new file that a volume without a backing device is copied to; it stays on the cache devices as well. The name may be left out
    /// where the pool has one such volume
    #[arg(long, value_name = "[NAME=]FILE")]
    save: Vec<String>,
    /// The disks named are the volumes' own, though they go by another identity: copies, or the same by other names
    #[arg(long)]
    other_disk: bool,
    /// Write what is found on these devices, though others or the witness are missing that may hold newer data, or some of it may be had
    /// yet that is not found; the cache devices are not changed then
    #[arg(long)]
    without_missing: bool,
    /// Keep the volumes and what is clean in the cache; only if nobody writes to the disks before the pool is served again
    #[arg(long)]
    keep: bool,
    /// Let go of a volume even where dirty data is lost with all its copies, or is not found: the disk keeps there what it had before
    #[arg(long, conflicts_with = "keep")]
    give_up_lost: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Writeback {
    pub fn run(self) -> anyhow::Result<()> {
        let mut watching = Watching::new()?;
        let what = WriteBack {
            patience: self.pool.patience(),
            devices: self.pool.devices,
            state: self.pool.state.unwrap_or_else(State::default_path),
            backings: self.backing.iter().map(|text| named(text)).map(|(name, spec)| (name, Spec::new(spec))).collect(),
            saves: self.save.iter().map(|text| named(text)).map(|(name, path)| (name, path.into())).collect(),
            other_disk: self.other_disk,
            without_missing: self.without_missing,
            keep: self.keep,
            give_up_lost: self.give_up_lost,
        };
        let outcome = offline::writeback(&what, &mut |step| watching.step(step))?;
        watching.clear();
        let verdict = if outcome.is_whole() { Ok(()) } else { Err(Found(closing(&outcome)).into()) };
        print_and_judge(self.json, &json!(outcome), text(&outcome, self.other_disk), verdict)
    }
}

/// Name and path of `NAME=PATH`; a path alone is that of the only volume.
fn named(text: &str) -> (String, &str) {
    match text.split_once('=').filter(|(name, _)| !name.is_empty() && !name.contains('/')) {
        Some((name, path)) => (name.to_owned(), path),
        None => (String::new(), text),
    }
}

fn text(outcome: &Outcome, other_disk: bool) -> String {
    let mut lines = Vec::new();
    for volume in &outcome.volumes {
        lines.push(line(volume));
        let ranges = |kind: &str, list: &[offline::Extent]| -> Vec<String> {
            list.iter().map(|e| format!("  {kind}: {} {} {}", volume.name, e.offset, e.bytes)).collect()
        };
        lines.extend(ranges("lost", &volume.lost));
        lines.extend(ranges("doubtful", &volume.doubtful));
        lines.extend(ranges("suspect", &volume.suspect));
        if other_disk && volume.backing.is_some() && !volume.compared {
            lines.push(
                "  nothing in the cache could be compared with that disk: that it is the volume's own was taken from --other-disk alone. \
                 Check its file system before you rely on it"
                    .into(),
            );
        }
        if let Some(problem) = &volume.problem {
            lines.push(format!("  {problem}"));
        }
    }
    if !outcome.proven {
        lines.push(of_the_cache_devices(outcome));
    }
    if lines.is_empty() {
        lines.push(format!("pool {} has no volumes", outcome.pool));
    }
    lines.iter().map(|line| harmless(line)).collect::<Vec<_>>().join("\n")
}

/// What becomes of cache devices that were only read.
fn of_the_cache_devices(outcome: &Outcome) -> String {
    let (pool, volumes) = (&outcome.pool, &outcome.volumes);
    let again = match volumes.iter().all(|v| v.without_disk) {
        true => String::new(),
        false => format!(
            " Do not serve pool {pool} with these disks again: it would write older data over what is changed there from now on."
        ),
    };
    let held: Vec<&str> = volumes.iter().filter(|v| is_held(v)).map(|v| v.name.as_str()).collect();
    let completed = match may_be_on_missing(outcome) {
        true => " Keep them for as long as the missing ones may turn up, which may have what is lost.",
        false => "",
    };
    let alone = match held.is_empty() {
        true => String::new(),
        false => format!(" Keep them until what of {} is on them alone is had as well, or given up.", held.join(", ")),
    };
    format!(
        "The cache devices were not changed.{again}{completed}{alone} When what was written has been looked at, and nothing on them is wanted any \
         more, free them with `headpond pool destroy DEVICE... --discard-dirty {}:{}`.",
        outcome.id, outcome.epoch
    )
}

/// Whether the cache devices have something of a volume that is nowhere else now.
fn is_held(volume: &WrittenVolume) -> bool {
    volume.recoverable || volume.left_bytes > 0 || volume.kept_bytes > 0 && volume.saved.is_none()
}

/// Whether cache devices that were not named may have what was not found, and could be written back with these yet.
fn may_be_on_missing(outcome: &Outcome) -> bool {
    !outcome.cache_changed && !outcome.missing.is_empty() && outcome.volumes.iter().any(WrittenVolume::lacks_data)
}

fn line(volume: &WrittenVolume) -> String {
    if volume.without_disk {
        let (name, kept) = (&volume.name, size::show(volume.kept_bytes));
        let copied = match &volume.saved {
            Some(path) => format!("copied to {}", path.display()),
            None => format!("--save {name}=FILE copies it to a new file"),
        };
        return format!("volume {name}: has no backing device; {kept} stay on the cache devices; {copied}");
    }
    let written = size::show(volume.written_bytes);
    let end = match (&volume.backing, volume.detached) {
        (None, _) => ", no disk named",
        (Some(_), true) => "; the pool has let go of it: use its disk alone",
        (Some(_), false) => "",
    };
    format!("volume {}: {written} written, {} left{end}", volume.name, size::show(volume.left_bytes))
}

fn closing(outcome: &Outcome) -> String {
    let lost: u64 = outcome.volumes.iter().flat_map(|v| v.lost.iter().chain(&v.doubtful)).map(|e| e.bytes).sum();
    let left: u64 = outcome.volumes.iter().map(|v| v.left_bytes).sum();
    let suspect = outcome.volumes.iter().any(|v| !v.suspect.is_empty());
    let mut said = vec![format!(
        "{}Not all is {}: {} could not be read from any cache device, {} are left",
        if outcome.cancelled { "Cancelled. " } else { "" },
        if outcome.volumes.iter().any(|v| v.without_disk) { "on the disks, or in files of --save" } else { "on the disks" },
        size::show(lost),
        size::show(left)
    )];
    if suspect {
        said.push("and more may be lost, within the ranges called suspect".into());
    }
    said.join(", ") + ". What could be written was" + &next(outcome)
}

/// What to do about what is not on the disks. What the pool has let go of no run brings back.
fn next(outcome: &Outcome) -> String {
    let is_gone = |v: &&WrittenVolume| v.detached && v.lacks_data();
    let gone: Vec<&str> = outcome.volumes.iter().filter(is_gone).map(|v| v.name.as_str()).collect();
    let stays: Vec<&WrittenVolume> = outcome.volumes.iter().filter(|v| !v.detached && !v.is_whole()).collect();
    let again = how_to_have_more(outcome, stays.iter().any(|v| v.recoverable));
    let of_what_stays = match stays.iter().any(|v| v.lacks_data()) {
        true if !again.is_empty() => format!(
            ". {}, before anything else is written to the disks. Restore the ranges from a backup if that gives nothing",
            again.join(". If that is not enough: ")
        ),
        true if stays.iter().any(|v| v.left_bytes > 0) => {
            ". Run it again with what is said of each volume above; then restore the ranges from a backup, and check the file system".into()
        }
        true => ". Restore the ranges from a backup, and check the file system".into(),
        false if stays.is_empty() => String::new(),
        false => ". Nothing is missing. Run it again with what is said of each volume above".into(),
    };
    let of_what_is_gone = match gone.is_empty() {
        true => String::new(),
        false => format!(
            ". The pool has let go of {}: what was not found is lost, unless the power failed before a client had flushed it, and it was promised to \
             nobody. Restore these ranges from a backup, and check the file system",
            gone.join(", ")
        ),
    };
    of_what_is_gone + &of_what_stays
}

/// What may have more of what was not found, the surest first.
fn how_to_have_more(outcome: &Outcome, is_recoverable: bool) -> Vec<&'static str> {
    let is_away = outcome.missing.iter().any(|member| !outcome.unread.contains(member));
    let ways = [
        (may_be_on_missing(outcome) && is_away, "Bring missing devices back and run it again"),
        (
            may_be_on_missing(outcome) && !outcome.unread.is_empty(),
            "Mend the superblock of the device that was left out with `headpond repair`, with --state, and run it again",
        ),
        (is_recoverable, "Copy a device that cannot read sectors with ddrescue, and run it again with the copy in its place"),
    ];
    ways.into_iter().filter_map(|(is_so, way)| is_so.then_some(way)).collect()
}
