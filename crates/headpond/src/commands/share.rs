//! `headpond share`.

use clap::Args;
use headpond_host::control::Call;
use headpond_host::report;

use super::{Which, print};
use crate::size;

#[derive(Args)]
pub struct Share {
    /// The volume
    name: String,
    /// Percent of the pool's segments that others leave to the volume; those of all volumes come to 90 at most
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=100))]
    min: Option<u8>,
    /// Percent of the pool's segments that it takes at most; beyond it writes go to the disk, and misses are not admitted
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=100))]
    max: Option<u8>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

impl Share {
    pub fn run(self) -> anyhow::Result<()> {
        let answer = self.which.call(&Call::Share { name: self.name.clone(), min: self.min, max: self.max })?;
        let share: report::Share = serde_json::from_value(answer.clone())?;
        print(self.json, &answer, format_args!("volume {}: {}", self.name, told(&share)))
    }
}

/// A share in words, as `headpond status` shows it too.
pub fn told(share: &report::Share) -> String {
    let most = share.max_bytes.map(|most| format!(" ({})", size::show(most))).unwrap_or_default();
    format!(
        "{} held; at least {} % ({}), at most {} %{most}",
        size::show(share.held_bytes),
        share.min_percent,
        size::show(share.min_bytes),
        share.max_percent,
    )
}
