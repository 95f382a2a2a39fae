//! `headpond detach`.

use clap::Args;
use headpond_host::control::Call;

use super::{Which, print};

#[derive(Args)]
pub struct Detach {
    /// The volume
    name: String,
    /// End the detach, flush or mode change that is under way on it; what was written stays written
    #[arg(long)]
    cancel: bool,
    /// Detach also where data that was not on the disk yet has lost all its copies: the disk keeps there what it had before
    #[arg(long)]
    give_up_lost: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

impl Detach {
    pub fn run(self) -> anyhow::Result<()> {
        let name = self.name;
        if self.cancel {
            let answer = self.which.call(&Call::Cancel { name: name.clone() })?;
            return print(
                self.json,
                &answer,
                format_args!("volume {name}: told to stop; the command that was under way says how far it came"),
            );
        }
        let answer = self.which.call(&Call::Detach { name: name.clone(), give_up_lost: self.give_up_lost })?;
        print(self.json, &answer, format_args!("volume {name}: detached; its disk holds all that was written"))
    }
}
