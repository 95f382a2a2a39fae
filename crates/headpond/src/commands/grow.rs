//! `headpond grow`.

use clap::Args;
use headpond_host::control::{self, Call};

use super::{Which, print};
use crate::size;

#[derive(Args)]
pub struct Grow {
    /// The volume
    name: String,
    /// Its new size, such as 1.5TiB; all that its backing device has if not given
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    to: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

impl Grow {
    pub fn run(self) -> anyhow::Result<()> {
        let name = self.name;
        let answer = self.which.call(&Call::Grow(control::Grow { name: name.clone(), bytes: self.to }))?;
        let of = |key: &str| size::show(answer[key].as_u64().unwrap_or(0));
        let mut words = format!("volume {name}: grown from {} to {}", of("bytes_before"), of("bytes"));
        match (answer["advice"]["wrong"].as_str(), answer["advice"]["next"].as_str()) {
            (Some(wrong), Some(next)) => words += &format!("\n{wrong} {next}"),
            _ => words += "; enlarge what is on it with its own tool, such as resize2fs or xfs_growfs",
        }
        print(self.json, &answer, words)
    }
}
