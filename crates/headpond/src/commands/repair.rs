//! `headpond repair`.

use std::cell::RefCell;
use std::path::PathBuf;

use clap::Args;
use headpond_host::offline::{self, Media, Repaired};
use serde_json::json;

use super::check::told;
use super::offline::{AtRest, Listing, Watching, line};
use super::print;
use crate::exit::Found;
use crate::size;

#[derive(Args)]
pub struct Repair {
    #[command(flatten)]
    pool: AtRest,
    /// A new file, on another device: it will hold what was there before each change
    #[arg(long, value_name = "FILE", required_unless_present_any = ["dry_run", "undo"])]
    save: Option<PathBuf>,
    /// Only tell what would be mended
    #[arg(long, conflicts_with = "save")]
    dry_run: bool,
    /// Put back what was there before an earlier repair; refused where the pool was served or written to since
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "dry_run"])]
    undo: Option<PathBuf>,
    /// Print JSON: an object with "findings", and what came of them
    #[arg(long)]
    json: bool,
}

impl Repair {
    pub fn run(self) -> anyhow::Result<()> {
        let watching = RefCell::new(Watching::new()?);
        let (devices, patience) = (&self.pool.devices, self.pool.patience());
        let media = match self.dry_run {
            true => Media::open(devices, patience)?,
            false => Media::open_to_write(devices, patience)?,
        };
        if let Some(undo) = &self.undo {
            let done = offline::undo(&media, undo)?;
            offline::flush(&media)?;
            return print(
                self.json,
                &json!({ "undone": done }),
                format_args!("{done} places are as they were before the repair"),
            );
        }
        let vote = media.vote(self.pool.state.as_deref())?;
        let mut listing = Listing::default();
        let result = offline::repair(
            &media,
            vote,
            self.save.as_deref(),
            &mut |finding| {
                if self.json {
                    listing.begin_once("findings")?;
                    return listing.add(&json!(finding));
                }
                if finding.mendable.is_empty() && finding.level == offline::Level::Note {
                    return Ok(());
                }
                watching.borrow_mut().clear();
                let done = match (finding.mendable.is_empty(), self.dry_run) {
                    (true, _) => "left as it is",
                    (false, true) => "would be mended",
                    (false, false) => "mended",
                };
                line(&format!("{done}: {}", told(&finding)))
            },
            &mut |step| watching.borrow_mut().step(step),
        );
        watching.borrow_mut().clear();
        let flushed = if self.dry_run { Ok(()) } else { offline::flush(&media) };
        if self.json {
            // Who does not hear the beginning hears no end of it either.
            let _ = listing.begin_once("findings");
        }
        // First what ended the repair, where something did: a device that takes no writes takes no flush either.
        let repaired = result.inspect_err(|error| listing.end_with_error(error))?;
        flushed.inspect_err(|error| listing.end_with_error(error))?;
        let told = match self.json {
            true => listing.end_with_all(&json!(repaired)),
            false => line(&self.text(&repaired)),
        };
        // Whether anybody reads the end or not.
        verdict(&repaired).and(told.map_err(Into::into))
    }

    fn text(&self, repaired: &Repaired) -> String {
        let places = format!("{} places, {}", repaired.mended, size::show(repaired.bytes));
        match (&self.save, repaired.mended) {
            (_, 0) => "nothing to mend".into(),
            (None, _) => format!("{places} would be mended; nothing was changed"),
            (Some(save), _) => {
                let save = save.display();
                format!(
                    "{places} mended; what was there before is in {save}: `headpond repair --undo {save} DEVICE...` puts it back"
                )
            }
        }
    }
}

fn verdict(repaired: &Repaired) -> anyhow::Result<()> {
    match repaired.left {
        0 => Ok(()),
        left => Err(Found(format!(
            "{left} findings were left as they are: no other copy proves what belongs there, or it cannot be written without losing what lies beside it. `headpond check` tells what each \
             means"
        ))
        .into()),
    }
}
