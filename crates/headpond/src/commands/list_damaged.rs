//! `headpond list-damaged`.

use clap::Args;
use headpond_host::offline::{Damaged, Media, list_damaged};
use serde_json::json;

use super::offline::{AtRest, Watching, harmless};
use super::print_and_judge;
use crate::exit::Found;

#[derive(Args)]
pub struct ListDamaged {
    #[command(flatten)]
    pool: AtRest,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ListDamaged {
    pub fn run(self) -> anyhow::Result<()> {
        let mut watching = Watching::new()?;
        let media = Media::open(&self.pool.devices, self.pool.patience())?;
        let pool = media.pool(media.vote(self.pool.state.as_deref())?)?;
        let damaged = list_damaged(&pool, &mut |step| watching.step(step))?;
        watching.clear();
        print_and_judge(self.json, &json!(damaged), lines(&damaged), verdict(&damaged))
    }
}

fn verdict(damaged: &Damaged) -> anyhow::Result<()> {
    if damaged.is_none() {
        return Ok(());
    }
    let recoverable: Vec<String> = damaged.volumes.iter().filter(|v| v.recoverable).map(|v| harmless(&v.name)).collect();
    let had_yet = match recoverable.is_empty() {
        true => String::new(),
        false => format!(
            " Some of {} may be had yet: `headpond check` names the places. Copy the devices with ddrescue before the pool is started, which may write \
             over them, and list what is on the copies.",
            recoverable.join(", ")
        ),
    };
    Err(Found(format!(
        "Not all data can be read, or is known to be on the disk. Nothing was changed. Bring back any cache device that is missing, and list \
         again.{had_yet} `headpond writeback` puts all the rest on the disk; with --save it copies volumes that have none to files; where it refuses, \
         with --without-missing it does both and leaves the cache devices as they are"
    ))
    .into())
}

/// A line for each range: the volume, its first byte, how many bytes, and why.
pub fn lines(damaged: &Damaged) -> String {
    let mut lines = Vec::new();
    if let Some(why) = &damaged.refused {
        lines.push(harmless(&format!("pool {} is refused: {why}", damaged.pool)));
    }
    for volume in &damaged.volumes {
        let mut add =
            |offset: u64, bytes: u64, why: &str| lines.push(harmless(&format!("{} {offset} {bytes} {why}", volume.name)));
        if volume.refused {
            add(0, volume.bytes, "refused");
        }
        if volume.untold {
            add(0, volume.bytes, "untold");
        }
        volume.damaged.iter().for_each(|e| add(e.offset, e.bytes, "lost"));
        volume.doubtful.iter().for_each(|e| add(e.offset, e.bytes, "doubtful"));
        volume.suspect.iter().for_each(|e| add(e.offset, e.bytes, "suspect"));
    }
    match lines.is_empty() {
        true => "all data can be read".into(),
        false => lines.join("\n"),
    }
}
