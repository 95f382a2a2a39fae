//! The table of planted mistakes in docs/GUARANTEES.md.

use super::{Caught, Found};
use crate::root;
use anyhow::{Context, Result};
use std::fs;

const BEGIN: &str = "<!-- cargo xtask planted --table writes from here -->\n";
const END: &str = "<!-- to here -->\n";

/// Puts the table into its place.
pub fn write(caught: &[Caught], missed: &[&str]) -> Result<()> {
    let path = root().join("docs/GUARANTEES.md");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("{} has no place for the table", path.display()))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("{} has no end of the table", path.display()))?;
    fs::write(&path, format!("{before}{BEGIN}{}{END}{after}", table(caught, missed)))
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("written to {}", path.display());
    Ok(())
}

fn table(caught: &[Caught], missed: &[&str]) -> String {
    let mut out =
        String::from("| mistake | scenes that fail on it | crash-and-start cycles until a seed fails |\n|---|---|---|\n");
    for c in caught {
        let scenes: Vec<&str> = c.scenes.iter().map(|f| f.scene.rsplit("::").next().unwrap_or(f.scene)).collect();
        let cycles = match &c.seeds {
            Some(Found::Failure { crashes, seed, .. }) => format!("{crashes} (seed {seed})"),
            Some(Found::Hang) => "a seed does not end".into(),
            Some(Found::Nothing { crashes, .. }) => format!("none failed in {crashes}"),
            None => "not run".into(),
        };
        out.push_str(&format!("| {} | {} | {cycles} |\n", c.mistake.name, scenes.join(", ")));
    }
    missed.iter().for_each(|name| out.push_str(&format!("| {name} | **not found** | |\n")));
    out
}
