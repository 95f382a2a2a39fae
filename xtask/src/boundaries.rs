//! Format and engine know nothing of the host: no standard library, and nothing under them that has one to offer.

use crate::root;
use crate::steps::{cargo, output};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;

/// Each crate, and all that it may depend on, directly or not.
const ALLOWED: [(&str, &str, &[&str]); 2] = [
    ("headpond-format", "crates/format", &["twox-hash"]),
    ("headpond-engine", "crates/engine", &["headpond-format", "twox-hash", "hashbrown"]),
];

/// Checks the crates.
pub fn check() -> Result<()> {
    for (name, folder, allowed) in ALLOWED {
        let tree = output(cargo(&["tree", "--quiet", "--package", name, "--edges", "normal,build", "--prefix", "none"]))?;
        let found: BTreeSet<&str> = tree.lines().filter_map(|l| l.split_whitespace().next()).filter(|d| *d != name).collect();
        let foreign: Vec<&&str> = found.iter().filter(|d| !allowed.contains(d)).collect();
        if !foreign.is_empty() {
            bail!("{name} depends on {foreign:?}; it may depend on {allowed:?} alone");
        }
        let lib = root().join(folder).join("src/lib.rs");
        let text = std::fs::read_to_string(&lib).with_context(|| format!("cannot read {}", lib.display()))?;
        for line in ["#![no_std]", "#![forbid(unsafe_code)]"] {
            if !text.lines().any(|l| l.trim() == line) {
                bail!("{} lacks {line}", lib.display());
            }
        }
        if text.contains("extern crate std") {
            bail!("{} brings the standard library back in", lib.display());
        }
        println!("{name}: no_std, no unsafe code, depends on {found:?} alone");
    }
    Ok(())
}
