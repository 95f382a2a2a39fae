//! `headpond dump`.

use clap::Args;
use headpond_host::offline::{self, Media, OfflineError, Part};
use serde_json::Value;

use super::offline::{AtRest, Listing, Watching, harmless, line};
use crate::exit::Found;

#[derive(Args)]
pub struct Dump {
    #[command(flatten)]
    pool: AtRest,
    /// Every record and what it names, too: reads all segments
    #[arg(long)]
    records: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Dump {
    pub fn run(self) -> anyhow::Result<()> {
        let mut watching = Watching::new()?;
        let media = Media::open(&self.pool.devices, self.pool.patience())?;
        let vote = media.vote(self.pool.state.as_deref())?;
        let (mut listing, mut pool) = (Listing::default(), false);
        let result = offline::dump(
            &media,
            vote,
            self.records,
            &mut |part| match (part, self.json) {
                (Part::Head(head), json) => {
                    pool = !head["pool"].is_null();
                    if json { listing.begin(&head, "segments") } else { text_head(&head) }
                }
                (Part::Segment(segment), true) => listing.add(&segment),
                (Part::Segment(segment), false) => text_segment(&segment),
            },
            &mut |step| watching.step(step),
        );
        watching.clear();
        result.map_err(|error| listing.cut_short(error))?;
        listing.end()?;
        if pool {
            return Ok(());
        }
        Err(Found(
            "No superblock of a pool was found that counts. Nothing was changed. `headpond pool list` shows what devices hold"
                .into(),
        )
        .into())
    }
}

fn text_head(head: &Value) -> Result<(), OfflineError> {
    let pool = &head["pool"];
    if !pool.is_null() {
        let checkpoint = &pool["checkpoint"];
        line(&format!(
            "pool {}  identity {}  epoch {}  sequence {}  copies {}  unit {}  witness {}  left {}",
            show(&pool["name"]),
            show(&pool["id"]),
            pool["epoch"],
            pool["sequence"],
            pool["copies"],
            pool["unit"],
            pool["witness"],
            pool["left"]
        ))?;
        line(&format!("checkpoint {}", fields(checkpoint)))?;
        for member in list(&pool["members"]) {
            line(&format!("member {}", fields(member)))?;
        }
        for volume in list(&pool["volumes"]) {
            line(&format!("volume {}", fields(volume)))?;
        }
    }
    for device in list(&head["devices"]) {
        line(&format!("device {} bytes {} member {}", show(&device["path"]), device["bytes"], device["member"]))?;
        for slot in list(&device["superblocks"]) {
            line(&format!("  superblock {}", fields(slot)))?;
        }
    }
    for page in list(&head["intent"]) {
        line(&format!("intent {}", fields(page)))?;
    }
    Ok(())
}

fn text_segment(segment: &Value) -> Result<(), OfflineError> {
    let mut head = segment.clone();
    let (copies, records) = (head["copies"].take(), head["records"].take());
    if let Some(object) = head.as_object_mut() {
        object.retain(|_, value| !value.is_null());
    }
    let places: Vec<String> = list(&copies).iter().map(|c| format!("{}:{}", c["member"], c["slot"])).collect();
    line(&format!("segment {}  at {}", fields(&head), places.join(" ")))?;
    for record in list(&records) {
        let mut head = record.clone();
        let entries = head["entries"].take();
        if let Some(object) = head.as_object_mut() {
            object.retain(|_, value| !value.is_null());
        }
        line(&format!("  record {}", fields(&head)))?;
        for entry in list(&entries) {
            line(&format!("    {}", fields(entry)))?;
        }
    }
    Ok(())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Names and values of an object, in one line: what it is first, then all else.
fn fields(value: &Value) -> String {
    const FIRST: [&str; 9] = ["number", "slot", "page", "kind", "volume", "name", "member", "sector", "state"];
    let place = |name: &String| FIRST.iter().position(|first| first == name).unwrap_or(FIRST.len());
    let mut all: Vec<(&String, &Value)> = value.as_object().into_iter().flatten().collect();
    all.sort_by_key(|(name, _)| place(name));
    all.iter().map(|(name, value)| format!("{name} {}", show(value))).collect::<Vec<_>>().join("  ")
}

fn show(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), harmless)
}
