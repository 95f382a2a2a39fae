//! `headpond attach`.

use clap::Args;
use headpond_host::control::{self, Call};

use super::{Which, place_of_new, pool_of, print_and_judge, whole};
use crate::size;

#[derive(Args)]
pub struct Attach {
    /// The volume's name
    name: String,
    /// Its backing device: a block device or a file, or modelled:FILE for a file as slow as a modelled disk
    spec: String,
    /// write-back, write-through, write-around or pass-through
    #[arg(long, default_value = "write-back", value_parser = super::mode::known)]
    mode: String,
    /// Sector, modulo 8, at which partitions begin; auto reads the partition table
    #[arg(long, default_value = "auto", value_name = "auto|0-7", value_parser = phase)]
    phase: Phase,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

#[derive(Clone, Copy)]
struct Phase(Option<u8>);

fn phase(text: &str) -> Result<Phase, String> {
    match text.parse() {
        Ok(phase @ 0..8) => Ok(Phase(Some(phase))),
        _ if text == "auto" => Ok(Phase(None)),
        _ => Err("give auto, or 0 to 7".into()),
    }
}

impl Attach {
    pub fn run(self) -> anyhow::Result<()> {
        // The daemon has a working directory of its own.
        let spec = headpond_host::backing::Spec::new(&self.spec).to_string();
        let call = control::Attach { name: self.name.clone(), spec, mode: self.mode, phase: self.phase.0 };
        let mut answer = self.which.call(&Call::Attach(call))?;
        let place = place_of_new(&mut answer, &self.name);
        let bytes = size::show(answer["bytes"].as_u64().unwrap_or(0));
        let line = format!("volume {}: {bytes}{place}, on {}", self.name, pool_of(&answer));
        print_and_judge(self.json, &answer, line, whole(&answer["problem"]))
    }
}
