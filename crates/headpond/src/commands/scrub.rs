//! `headpond scrub`.

use clap::Args;
use headpond_host::control::Call;
use headpond_host::report;

use super::{Which, print, print_and_judge};
use crate::exit::Found;
use crate::size;

#[derive(Args)]
pub struct Scrub {
    /// The most that is read in a second, 0 for as fast as the cache devices answer
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = size::parse)]
    rate: u64,
    /// End the scrub that is under way
    #[arg(long)]
    cancel: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

impl Scrub {
    pub fn run(self) -> anyhow::Result<()> {
        if self.cancel {
            let answer = self.which.call(&Call::CancelScrub)?;
            return print(self.json, &answer, "told to stop; what it repaired stays repaired");
        }
        let answer = self.which.call(&Call::Scrub { bytes_per_second: self.rate })?;
        let found: report::Scrub = serde_json::from_value(answer.clone())?;
        let verdict = match found.lost {
            0 => Ok(()),
            _ => Err(Found(
                "Reading what is damaged on all copies fails. Restore it, or write it anew; replace the cache devices that rot with \
                 `headpond pool replace`"
                    .into(),
            )
            .into()),
        };
        print_and_judge(self.json, &answer, words(&found), verdict)
    }
}

fn words(found: &report::Scrub) -> String {
    let read = size::show(found.bytes);
    if found.damaged == 0 {
        return format!("{read} read; nothing is damaged");
    }
    let mut text = format!(
        "{read} read; {} copies were damaged ({}): {} repaired, {} let go of since the disk has them, {} pieces LOST on all copies",
        found.damaged,
        found.damaged_places(),
        found.repaired,
        found.dropped,
        found.lost
    );
    for range in &found.lost_ranges {
        text += &format!("\n  volume {}: {} bytes from byte {}", range.volume, range.bytes, range.offset);
    }
    text
}
