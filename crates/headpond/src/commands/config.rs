//! `headpond config`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use super::print;
use crate::config;

#[derive(Subcommand)]
pub enum Config {
    /// Tell whether a configuration file is understood; nothing is started
    Check(Check),
}

#[derive(Args)]
pub struct Check {
    /// The file
    #[arg(default_value = "/etc/headpond/headpond.toml")]
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Config {
    pub fn run(self) -> anyhow::Result<()> {
        let Config::Check(Check { file, json }) = self;
        let config = config::Config::read(&file)?;
        config.check()?;
        let (devices, volumes) = (config.devices.len(), config.backing.len());
        let value = json!({
            "devices": config.devices,
            "backing": config.backing,
            "metrics": config.metrics.listen.map(|address| address.to_string()),
        });
        let line = format!("{}: understood; {devices} cache devices, {volumes} backing devices named", file.display());
        print(json, &value, line)
    }
}
