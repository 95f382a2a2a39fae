//! `headpond flush`.

use clap::Args;
use headpond_host::control::Call;

use super::{Which, print};

#[derive(Args)]
pub struct Flush {
    /// The volume
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

impl Flush {
    pub fn run(self) -> anyhow::Result<()> {
        let answer = self.which.call(&Call::Destage { name: self.name.clone() })?;
        print(self.json, &answer, format_args!("volume {}: all that was dirty is on its disk", self.name))
    }
}
