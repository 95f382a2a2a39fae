//! The table of planted mistakes in docs/GUARANTEES.md.

use super::{Caught, Found};
use crate::{mistakes, root};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;

const BEGIN: &str = "<!-- cargo xtask planted --table writes from here -->\n";
const HEAD: &str = "| mistake | scenes that fail on it | crash-and-start cycles until a seed fails |\n|---|---|---|\n";
const END: &str = "<!-- to here -->\n";

/// Puts the rows of what was run into the table; the others stay as they are.
pub fn write(caught: &[Caught], missed: &[&str]) -> Result<()> {
    let path = root().join("docs/GUARANTEES.md");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("{} has no place for the table", path.display()))?;
    let (old, after) = rest.split_once(END).with_context(|| format!("{} has no end of the table", path.display()))?;
    let mut rows: BTreeMap<&str, String> = old.lines().filter_map(|row| Some((name(row)?, row.to_owned()))).collect();
    rows.extend(caught.iter().map(|c| (c.mistake.name, row(c))));
    rows.extend(missed.iter().map(|name| (*name, format!("| {name} | **not found** | |"))));
    let table: String = mistakes::all().iter().filter_map(|m| rows.get(m.name)).map(|row| format!("{row}\n")).collect();
    fs::write(&path, format!("{before}{BEGIN}{HEAD}{table}{END}{after}"))
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("written to {}", path.display());
    Ok(())
}

/// The mistake that a row is about.
fn name(row: &str) -> Option<&str> {
    row.strip_prefix("| ")?.split(" | ").next()
}

fn row(c: &Caught) -> String {
    let scenes: Vec<&str> = c.scenes.iter().map(|f| f.scene.rsplit("::").next().unwrap_or(f.scene)).collect();
    let cycles = match &c.seeds {
        Some(Found::Failure { crashes, seed, .. }) => format!("{crashes} (seed {seed})"),
        Some(Found::Hang) => "a seed does not end".into(),
        Some(Found::Nothing { crashes, .. }) => format!("none failed in {crashes}"),
        None => "not run".into(),
    };
    format!("| {} | {} | {cycles} |", c.mistake.name, scenes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under the promise that it breaks, or in the table of what found it. One that is nowhere is known to nobody but its scene.
    #[test]
    fn the_page_of_what_is_promised_names_each_planted_mistake() {
        let text = fs::read_to_string(root().join("docs/GUARANTEES.md")).unwrap();
        let is_named = |name: &str| text.contains(&format!("*{name}*")) || text.contains(&format!("| {name} |"));
        let unnamed: Vec<&str> = mistakes::all().iter().map(|m| m.name).filter(|name| !is_named(name)).collect();
        assert_eq!(unnamed, [""; 0], "under which promise in docs/GUARANTEES.md does each stand?");
    }
}
