//! `headpond modelled-devices`: the devices of `headpond experiments --real`, in a process of their own.
//!
//! They may not be in the process that uses them: one that waits for its own file system cannot be killed.

use std::io::{Read, Write, stdin, stdout};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;

use crate::experiments::real::modelled::{self, Wanted};

/// How long whoever used a device may take to let go of it.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Args)]
pub struct ModelledDevices {
    /// A folder for what the kernel needs of them
    folder: PathBuf,
    /// Each as NAME=disk:BYTES or NAME=ssd:BYTES
    #[arg(required = true)]
    devices: Vec<Wanted>,
}

impl ModelledDevices {
    /// Serves them, prints a line for each, and ends with its input: when whoever started it has ended, too.
    pub fn run(self) -> anyhow::Result<()> {
        let mut exports = Vec::new();
        for wanted in &self.devices {
            let export = modelled::serve(wanted, &self.folder).map_err(|error| {
                anyhow!(
                    "The modelled device {} cannot be served: {error:#}. Run it as root, where /dev/fuse and loop devices are",
                    wanted.name
                )
            })?;
            exports.push(export);
        }
        let mut out = stdout().lock();
        for (wanted, export) in self.devices.iter().zip(&exports) {
            writeln!(out, "{} {}", wanted.name, export.device().display())?;
        }
        out.flush()?;
        let _ = stdin().read_to_end(&mut Vec::new());
        let until = Instant::now() + PATIENCE;
        // What is still in use then gets errors when it is dropped.
        while exports.iter_mut().map(|export| export.stop().is_err()).fold(false, |a, b| a | b) && Instant::now() < until {
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}
