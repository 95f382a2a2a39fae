//! Manual pages and completions, made from the command's own definitions.

use std::io;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::Headpond;

#[derive(Args)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

#[derive(Args)]
pub struct Man {
    /// The folder, which is made if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Completions {
    #[expect(clippy::unnecessary_wraps, reason = "as all commands")]
    pub fn run(self) -> anyhow::Result<()> {
        clap_complete::generate(self.shell, &mut Headpond::command(), "headpond", &mut io::stdout());
        Ok(())
    }
}

impl Man {
    pub fn run(self) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.out)?;
        clap_mangen::generate_to(Headpond::command(), &self.out)?;
        Ok(())
    }
}
