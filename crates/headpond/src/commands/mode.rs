//! `headpond mode`.

use clap::Args;
use headpond_host::control::Call;
use std::time::Duration;

use super::{Which, deadline, pool_of, print};

#[derive(Args)]
pub struct Mode {
    /// The volume
    name: String,
    /// write-back, write-through, write-around or pass-through
    #[arg(value_parser = known)]
    mode: String,
    /// Wait no longer for what is dirty, as in 90s or 5m: the volume has the new mode then, and the rest is written later
    #[arg(long, value_parser = deadline, value_name = "TIME")]
    deadline: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

/// A mode's name, if there is such a mode.
pub fn known(name: &str) -> Result<String, String> {
    let known = headpond_format::Mode::named(name).map(|mode| mode.name().to_owned());
    known.ok_or_else(|| "the modes are write-back, write-through, write-around and pass-through".into())
}

impl Mode {
    pub fn run(self) -> anyhow::Result<()> {
        let deadline_seconds = self.deadline.map(|it| it.as_secs());
        let call = Call::SetMode { name: self.name.clone(), mode: self.mode.clone(), deadline_seconds };
        let answer = self.which.call(&call)?;
        print(self.json, &answer, format_args!("volume {} of {}: {}", self.name, pool_of(&answer), self.mode))
    }
}
