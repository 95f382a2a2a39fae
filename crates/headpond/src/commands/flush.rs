//! `headpond flush`.

use clap::Args;
use headpond_host::control::Call;
use std::time::Duration;

use super::{Which, deadline, print};

#[derive(Args)]
pub struct Flush {
    /// The volume
    name: String,
    /// Give up after so long, as in 90s or 5m: the rest stays in the cache
    #[arg(long, value_parser = deadline, value_name = "TIME")]
    deadline: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

impl Flush {
    pub fn run(self) -> anyhow::Result<()> {
        let deadline_seconds = self.deadline.map(|it| it.as_secs());
        let answer = self.which.call(&Call::Destage { name: self.name.clone(), deadline_seconds })?;
        print(self.json, &answer, format_args!("volume {}: all that was dirty is on its disk", self.name))
    }
}
