//! The command, built as this program is: where it is.

use crate::steps::{cargo, run};
use anyhow::{Result, bail};
use std::path::PathBuf;

/// Builds it; where it is. Of all crates together, as this program and the tests are: of its own it would have other features of what it
/// depends on, and much were built twice.
pub fn build() -> Result<PathBuf> {
    run(cargo(&["build", "--quiet", "--release", "--bin", "headpond"]))?;
    built()
}

/// Where it is, if it was built.
pub fn built() -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("headpond");
    if !path.is_file() {
        bail!(
            "headpond was built, but it is not at {}: is there a folder for what is built that this program does not know?",
            path.display()
        );
    }
    Ok(path)
}
