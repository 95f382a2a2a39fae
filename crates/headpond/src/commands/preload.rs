//! `headpond preload`.

use clap::Args;
use headpond_host::control::Call;
use serde_json::json;

use super::targets::Targets;
use super::{Which, print};
use crate::size;

#[derive(Args)]
pub struct Preload {
    /// Files, folders with all that is in them, or ranges as VOLUME:OFFSET+LENGTH, such as v:0+1GiB
    #[arg(value_name = "FILE|DIR|RANGE", required_unless_present = "cancel")]
    what: Vec<String>,
    /// End the preload that is under way on this volume; what was read stays in the cache
    #[arg(long, value_name = "VOLUME", conflicts_with = "what")]
    cancel: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

impl Preload {
    pub fn run(self) -> anyhow::Result<()> {
        if let Some(name) = self.cancel {
            let answer = self.which.call(&Call::CancelPreload { name })?;
            return print(self.json, &answer, "told to stop; what was read stays in the cache");
        }
        let targets = Targets::of(&self.which.report(None)?, &self.what, false)?;
        if targets.bytes() == 0 {
            return Err(targets.none_found());
        }
        let (mut bytes, mut brought, mut left_out) = (0, 0, 0);
        for runs in targets.calls() {
            let answer = self.which.call(&Call::Preload(runs))?;
            let of = |key: &str| answer[key].as_u64().unwrap_or(0);
            bytes += of("bytes");
            brought += of("brought_bytes");
            left_out += of("left_out_bytes");
        }
        let mut words = format!("{} of {} read into the cache", size::show(brought), size::show(bytes));
        if bytes > brought + left_out {
            words += &format!("; {} were there already", size::show(bytes - brought - left_out));
        }
        if left_out > 0 {
            words += &format!(
                "; for {} there was no room, or they were being written: preload less, or when less is dirty",
                size::show(left_out)
            );
        }
        let answer = json!({
            "files": targets.files, "bytes": bytes, "brought_bytes": brought, "left_out_bytes": left_out,
            "bytes_without_place": targets.without_place,
        });
        print(self.json, &answer, words)
    }
}
