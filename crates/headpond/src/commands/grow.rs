//! `headpond grow`.

use clap::Args;
use headpond_host::control::{self, Call};

use super::{Which, print};
use crate::size;

#[derive(Args)]
pub struct Grow {
    /// The volume
    name: String,
    /// Its new size, such as 1.5TiB; all that its backing device has if not given. Needed where it has none
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
        let rounded = self.to.map(|to| rounded(to, answer["bytes"].as_u64().unwrap_or(to))).unwrap_or_default();
        let mut words = format!("volume {name}: grown from {} to {}{rounded}", of("bytes_before"), of("bytes"));
        match (answer["advice"]["wrong"].as_str(), answer["advice"]["next"].as_str()) {
            (Some(wrong), Some(next)) => words += &format!("\n{wrong} {next}"),
            _ => words += "; enlarge what is on it with its own tool, such as resize2fs or xfs_growfs",
        }
        print(self.json, &answer, words)
    }
}

/// That a volume has another size than was asked for, if it has.
pub fn rounded(asked: u64, bytes: u64) -> String {
    if asked == bytes { String::new() } else { format!(" ({asked} bytes were rounded up to {bytes}, a multiple of 4 KiB)") }
}
