//! `headpond detach`.

use clap::Args;
use headpond_host::control::Call;
use std::time::Duration;

use super::{Which, deadline, pool_of, print};
use crate::size;

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
    /// Give up after so long, as in 90s or 5m: the volume is served on then, and the rest stays in the cache
    #[arg(long, value_parser = deadline, value_name = "TIME")]
    deadline: Option<Duration>,
    /// Of a volume that is not served, and never will be: let go of it without writing to its disk, and throw away what the cache
    /// has that is not there. `headpond writeback` can put it there first, with the daemon stopped
    #[arg(long, conflicts_with_all = ["cancel", "give_up_lost", "deadline"])]
    throw_away: bool,
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
        let call = Call::Detach {
            name: name.clone(),
            give_up_lost: self.give_up_lost,
            throw_away: self.throw_away,
            deadline_seconds: self.deadline.map(|it| it.as_secs()),
        };
        let answer = self.which.call(&call)?;
        let pool = pool_of(&answer);
        if self.throw_away {
            let bytes = size::show(answer["thrown_away_bytes"].as_u64().unwrap_or(0));
            return print(
                self.json,
                &answer,
                format_args!(
                    "volume {name}: taken off {pool}; {bytes} that were not on its disk are thrown away. Check its file system before it is used"
                ),
            );
        }
        let text = match answer["given_up_bytes"].as_u64() {
            None | Some(0) => format!("volume {name}: detached from {pool}; its disk holds all that was written"),
            Some(bytes) => format!(
                "volume {name}: detached from {pool}; up to {} that were lost are given up: its disk has there what it had before, and elsewhere all that was \
                 written. Check its file system before it is used",
                size::show(bytes)
            ),
        };
        print(self.json, &answer, text)
    }
}
