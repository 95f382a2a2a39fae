//! `headpond udev-name`: what the rule of udev asks.

use clap::Args;
use headpond_host::names;

use crate::exit::Found;

#[derive(Args)]
pub struct UdevName {
    /// The kernel's name of the block device, such as ublkb0
    device: String,
}

impl UdevName {
    pub fn run(self) -> anyhow::Result<()> {
        let name = names::of(&self.device);
        let name = name.ok_or_else(|| {
            Found(format!("{} is no volume of Headpond that is known here. Nothing needs to be done", self.device))
        })?;
        println!("{name}");
        Ok(())
    }
}
