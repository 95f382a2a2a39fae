//! `headpond check`.

use clap::Args;
use headpond_host::offline::{self, Finding, Level, Media, Summary, VolumeSummary};
use serde_json::json;

use super::offline::{AtRest, Listing, Watching, harmless, line, place};
use crate::exit::Found;
use crate::size;

#[derive(Args)]
pub struct Check {
    #[command(flatten)]
    pool: AtRest,
    /// Print notes as well: what may be so on a pool in order
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON: an object with "findings" and "summary"
    #[arg(long)]
    json: bool,
}

impl Check {
    pub fn run(self) -> anyhow::Result<()> {
        let mut watching = Watching::new()?;
        let media = Media::open(&self.pool.devices, self.pool.patience())?;
        let vote = media.vote(self.pool.state.as_deref())?;
        let mut listing = Listing::default();
        if self.json {
            listing.begin(&json!({}), "findings")?;
        }
        // Both look at the same line of the terminal, one after the other.
        let watching = std::cell::RefCell::new(&mut watching);
        let result = offline::check(
            &media,
            vote,
            &mut |finding| {
                if self.json {
                    return listing.add(&json!(finding));
                }
                if finding.level > Level::Note || self.verbose {
                    watching.borrow_mut().clear();
                    return line(&told(&finding));
                }
                Ok(())
            },
            &mut |step| watching.borrow_mut().step(step),
        );
        watching.borrow_mut().clear();
        let summary = result.map_err(|error| listing.cut_short(error))?;
        let told = match self.json {
            true => listing.end_with("summary", &json!(summary)),
            false => line(&text(&summary)),
        };
        // Whether anybody reads the end or not.
        let verdict = if summary.is_clean() { Ok(()) } else { Err(Found(closing(&summary)).into()) };
        verdict.and(told.map_err(Into::into))
    }
}

/// A finding as people read it.
pub fn told(f: &Finding) -> String {
    let place = harmless(&place(f.path.as_deref(), f.offset, f.bytes));
    let said = |text: &str| harmless(text.trim_end_matches('.'));
    let meaning = if f.meaning.is_empty() { String::new() } else { format!("\n    {}.", said(&f.meaning)) };
    format!("{}: {place}: {}.{meaning}\n    Next: {}.", f.level.name(), harmless(&f.what), said(&f.next))
}

fn text(s: &Summary) -> String {
    if s.pool.is_empty() {
        return "no pool was found".into();
    }
    let mut text = format!(
        "pool {}  epoch {}  identity {}\n  read {} segments, {} records, {}\n",
        harmless(&s.pool),
        s.epoch,
        s.id,
        s.segments,
        s.records,
        size::show(s.bytes)
    );
    for v in &s.volumes {
        let state = state(v);
        let kind = if v.without_disk { "on the cache devices alone" } else { "dirty" };
        text +=
            &format!("  volume {}: {}, {} {kind}, {state}\n", harmless(&v.name), size::show(v.bytes), size::show(v.dirty_bytes));
    }
    let notes = if s.notes > 0 { format!(" ({} notes: --verbose shows them)", s.notes) } else { String::new() };
    match s.is_clean() {
        true => text + "clean" + &notes,
        false => format!("{text}{} damaged, {} lost{notes}", s.damages, s.losses),
    }
}

/// How a volume stands: what is told of it among the findings as well.
fn state(v: &VolumeSummary) -> String {
    if v.refused {
        return "REFUSED by a start".into();
    }
    let said = [
        (v.damaged_bytes > 0, format!("{} LOST", size::show(v.damaged_bytes))),
        (v.suspect_bytes > 0, format!("something is LOST within {}", size::show(v.suspect_bytes))),
        (v.recoverable, "some of that may be had yet".into()),
        (v.untold, "a failure that no client was told of".into()),
    ];
    let said: Vec<String> = said.into_iter().filter_map(|(is_so, text)| is_so.then_some(text)).collect();
    if said.is_empty() { "all of it can be read".into() } else { said.join(", ") }
}

fn closing(s: &Summary) -> String {
    let is_in_doubt = s.volumes.iter().any(|v| v.doubtful_bytes > 0 || v.suspect_bytes > 0 && !v.refused);
    let next = match s.losses {
        0 => "No data is lost. `headpond repair` mends what another copy, or the checkpoint, proves",
        _ if is_in_doubt => {
            "Some data is lost or cannot be had: `headpond list-damaged` names it; what it calls doubtful or suspect was promised to nobody if the \
             power failed before a client had flushed it. Copy the devices before anything else"
        }
        _ => "Some data is lost or cannot be had: `headpond list-damaged` names it. Copy the devices before anything else",
    };
    format!("Problems were found: {} without loss, {} with. Nothing was changed. {next}", s.damages, s.losses)
}
