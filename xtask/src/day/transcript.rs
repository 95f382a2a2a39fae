//! What was done, when, and what was said: printed as it happens, and kept for the document.

use crate::steps::in_words;
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The transcript.
pub struct Transcript {
    begun: Instant,
    text: String,
    folder: PathBuf,
    headpond: PathBuf,
    /// Headings, with the seconds that what is under each took.
    pub steps: Vec<(String, f64)>,
    step_begun: Instant,
}

impl Transcript {
    /// Of commands run in a folder.
    pub fn new(folder: &Path, headpond: &Path) -> Transcript {
        let now = Instant::now();
        Transcript {
            begun: now,
            text: String::new(),
            folder: folder.to_owned(),
            headpond: headpond.to_owned(),
            steps: Vec::new(),
            step_begun: now,
        }
    }

    /// A step of the day begins.
    pub fn step(&mut self, what: &str) {
        self.end_step();
        println!("\n== {what}");
        let _ = write!(self.text, "\n## {what}\n\n");
        self.steps.push((what.to_owned(), 0.0));
    }

    /// The last one has ended.
    pub fn end_step(&mut self) {
        if let Some(last) = self.steps.last_mut() {
            last.1 = self.step_begun.elapsed().as_secs_f64();
        }
        self.step_begun = Instant::now();
    }

    /// What is to be known beside what is run.
    pub fn say(&mut self, words: &str) {
        println!("{words}");
        let _ = write!(self.text, "{words}\n\n");
    }

    /// Runs `headpond` with these arguments; it must end well. What it said.
    pub fn headpond(&mut self, args: &[&str]) -> Result<String> {
        let program = self.headpond.clone();
        self.run("headpond", &program, args)
    }

    /// Runs another program; it must end well.
    pub fn tool(&mut self, name: &str, args: &[&str]) -> Result<String> {
        self.run(name, Path::new(name), args)
    }

    fn run(&mut self, name: &str, program: &Path, args: &[&str]) -> Result<String> {
        let (at, begun) = (self.begun.elapsed(), Instant::now());
        let out = Command::new(program).args(args).current_dir(&self.folder).stdin(Stdio::null()).output();
        let out = out.with_context(|| format!("{name} cannot be run"))?;
        let took = begun.elapsed();
        let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        let line = format!("$ {name} {}", args.join(" "));
        // Where it was run is nobody's business.
        let folder = format!("{}/", self.folder.display());
        let shown = format!("{line}\n{}", said.trim_end()).replace(&folder, "");
        println!("{shown}\n  [{}]", in_words(took));
        let _ =
            write!(self.text, "At {:.0} s, took {}:\n\n```text\n{}\n```\n\n", at.as_secs_f64(), in_words(took), shown.trim_end());
        if !out.status.success() {
            bail!("{line} ended with {}: {}", out.status, said.trim());
        }
        Ok(said)
    }

    /// The document's body.
    pub fn text(&self) -> &str {
        &self.text
    }
}
