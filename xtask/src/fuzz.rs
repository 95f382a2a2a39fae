//! Fuzzing: libFuzzer over what strangers may hand us, or its corpus and random changes of it where there is no nightly.

use crate::root;
use crate::steps::{cargo, in_words, run as run_command};
use crate::tools::is_there;
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const HELP: &str = "\
cargo xtask fuzz [--list] [--seconds N] [TARGET..]           libFuzzer, N seconds for each target (60 unless said)
cargo xtask fuzz --stable [--seed N] [--tries N] [TARGET..]  without a nightly compiler: the corpus and changes of it
cargo xtask fuzz [--stable] --input FILE TARGET              one input again, such as one that failed
cargo xtask fuzz --keep [TARGET..]                           what libFuzzer has found worth keeping goes into fuzz/corpus";

/// Seconds for each target.
const SECONDS: u64 = 60;
/// An input that takes longer is a failure, in seconds.
const ENDLESS: u64 = 30;
/// Memory of the process, and of one allocation, in MiB.
const MEMORY: [u64; 2] = [2048, 512];
/// How often a target says how far it is.
const EVERY: Duration = Duration::from_secs(10);

/// What is asked for.
#[derive(Default)]
struct Args {
    list: bool,
    stable: bool,
    keep: bool,
    seconds: Option<u64>,
    input: Option<String>,
    /// For the stable run alone.
    more: Vec<String>,
    targets: Vec<String>,
}

impl Args {
    fn parse(args: &[String]) -> Result<Self> {
        let mut all = Args::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().cloned().with_context(|| format!("{arg} wants a value\n{HELP}"));
            match arg.as_str() {
                "--list" => all.list = true,
                "--stable" => all.stable = true,
                "--keep" => all.keep = true,
                "--seconds" => all.seconds = Some(value()?.parse().context("--seconds wants a number")?),
                "--input" => all.input = Some(value()?),
                "--seed" | "--tries" => all.more.extend([arg.clone(), value()?]),
                name if !name.starts_with('-') => all.targets.push(name.into()),
                _ => bail!("{HELP}"),
            }
        }
        let known = targets()?;
        if let Some(unknown) = all.targets.iter().find(|t| known.iter().all(|(name, _)| name != *t)) {
            bail!("there is no target {unknown}; --list shows them");
        }
        if all.input.is_some() && all.targets.len() != 1 {
            bail!("--input wants one target\n{HELP}");
        }
        if all.targets.is_empty() {
            all.targets = known.into_iter().map(|(name, _)| name).collect();
        }
        Ok(all)
    }
}

/// `cargo xtask fuzz`: see [`HELP`].
pub fn run(args: &[String]) -> Result<()> {
    let args = Args::parse(args)?;
    if args.list {
        targets()?.iter().for_each(|(name, about)| println!("{name:>10}  {about}"));
        return Ok(());
    }
    if args.stable {
        return stable(&args);
    }
    if !args.more.is_empty() {
        bail!("--seed and --tries are for --stable\n{HELP}");
    }
    if let Err(missing) = have_nightly().and_then(|()| have_cargo_fuzz()) {
        bail!(
            "{missing:#}\nlibFuzzer needs both. Install them where the network can be reached (`rustup toolchain install nightly`, `cargo install cargo-fuzz`), or run the same targets without: cargo xtask fuzz --stable"
        );
    }
    fuzz(&args)
}

fn folder() -> PathBuf {
    root().join("fuzz")
}

/// The targets, each with the first line of its file.
fn targets() -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for file in fs::read_dir(folder().join("fuzz_targets")).context("fuzz/fuzz_targets")? {
        let name = file?.path().file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let text = fs::read_to_string(folder().join(format!("src/{name}.rs"))).with_context(|| format!("fuzz/src/{name}.rs"))?;
        let about = text.lines().next().unwrap_or_default().trim_start_matches("//! ").to_owned();
        all.push((name, about));
    }
    all.sort();
    Ok(all)
}

/// A cargo of the fuzz workspace, which this one's must not meddle with.
fn nightly(args: &[&str]) -> Command {
    let mut c = Command::new("cargo");
    // rustup's cargo takes the toolchain; the one that runs us has said which it is in the environment.
    c.arg("+nightly").args(args).current_dir(root()).env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
    c
}

fn quietly(mut command: Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

fn have_nightly() -> Result<()> {
    if quietly(nightly(&["--version"])) {
        return Ok(());
    }
    if !is_there("rustup") && !quietly(Command::new("rustup")) {
        bail!("there is no nightly toolchain, and no rustup to install it with");
    }
    println!("installing a nightly toolchain");
    let mut install = Command::new("rustup");
    install.args(["toolchain", "install", "nightly", "--profile", "minimal", "--no-self-update"]);
    run_command(install).context("a nightly toolchain could not be installed")
}

fn have_cargo_fuzz() -> Result<()> {
    if quietly(nightly(&["fuzz", "--version"])) {
        return Ok(());
    }
    println!("installing cargo-fuzz");
    run_command(cargo(&["install", "--quiet", "--locked", "cargo-fuzz"])).context("cargo-fuzz could not be installed")
}

/// The corpus and changes of it, by a compiler that everybody has.
fn stable(args: &Args) -> Result<()> {
    if args.keep || args.seconds.is_some() {
        bail!("--keep and --seconds are libFuzzer's\n{HELP}");
    }
    let mut command = cargo(&["run", "--quiet", "--release", "--no-default-features", "--bin", "stable", "--manifest-path"]);
    command.arg(folder().join("Cargo.toml")).arg("--").args(&args.more).args(&args.targets);
    if let Some(file) = &args.input {
        command.args(["--input", file]);
    }
    run_command(command)
}

/// What libFuzzer finds goes into a corpus of this machine's own, beside what is built.
fn grown(target: &str) -> Result<PathBuf> {
    let folder = folder().join("target/corpus").join(target);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn fuzz(args: &Args) -> Result<()> {
    println!("building the targets");
    for target in &args.targets {
        run_command(nightly(&["fuzz", "build", target]))?;
    }
    let mut failed = Vec::new();
    for target in &args.targets {
        let kept = folder().join("corpus").join(target);
        let mut command = nightly(&["fuzz", "run", target]);
        if let Some(file) = &args.input {
            return run_command({
                command.arg(file);
                command
            });
        }
        if args.keep {
            command.args([kept.as_path(), &grown(target)?]).args(["--", "-merge=1"]);
            run_command(command)?;
            continue;
        }
        let seconds = args.seconds.unwrap_or(SECONDS);
        let [memory, allocation] = MEMORY;
        command.args([grown(target)?, kept]).arg("--").args([
            format!("-max_total_time={seconds}"),
            format!("-timeout={ENDLESS}"),
            format!("-rss_limit_mb={memory}"),
            format!("-malloc_limit_mb={allocation}"),
            "-print_final_stats=1".into(),
        ]);
        if !one(target, command, seconds)? {
            failed.push(target.as_str());
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs a target, and says how far it is, and what came of it. Whether nothing was found.
fn one(target: &str, mut command: Command, seconds: u64) -> Result<bool> {
    let begun = Instant::now();
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().with_context(|| format!("cannot run {command:?}"))?;
    let output = child.stderr.take().context("no output")?;
    let (mut shown, mut seen, mut words, mut artifact) = (Instant::now(), Progress::default(), Vec::new(), None);
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        seen.read(&line);
        if shown.elapsed() >= EVERY {
            shown = Instant::now();
            println!("{target:>10}: {seen}, {} of {seconds} s", begun.elapsed().as_secs());
        }
        if let Some((_, file)) = line.split_once("Test unit written to ") {
            artifact = Some(file.trim().to_owned());
        }
        if line.contains("panicked at") || line.contains("ERROR:") || line.contains("SUMMARY:") || !words.is_empty() {
            words.push(line);
        }
    }
    let ended_well = child.wait()?.success();
    println!("{target:>10}: {seen}, {}", in_words(begun.elapsed()));
    if !ended_well {
        words.iter().take(12).for_each(|w| println!("            {w}"));
        match artifact {
            Some(file) => {
                let root = root();
                let file = file.strip_prefix(&format!("{}/", root.display())).unwrap_or(&file);
                println!("            again: cargo xtask fuzz --input {file} {target}");
            }
            None => println!("            again: cargo +nightly fuzz run {target}"),
        }
    }
    Ok(ended_well)
}

/// What libFuzzer says in passing.
#[derive(Default)]
struct Progress {
    executions: u64,
    edges: u64,
    features: u64,
    corpus: u64,
}

impl Progress {
    /// A line such as `#2097152 pulse  cov: 1042 ft: 5063 corp: 318/22Kb lim: 256 exec/s: 5825 rss: 512Mb`, or one of the
    /// statistics at the end.
    fn read(&mut self, line: &str) {
        let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
        if let Some(n) = line.strip_prefix('#').and_then(number) {
            self.executions = n;
            let after = |name: &str| line.split_once(name).and_then(|(_, rest)| number(rest.trim_start()));
            self.edges = after(" cov:").unwrap_or(self.edges);
            self.features = after(" ft:").unwrap_or(self.features);
            self.corpus = after(" corp:").unwrap_or(self.corpus);
        }
        if let Some(n) = line.strip_prefix("stat::number_of_executed_units:").and_then(|rest| number(rest.trim_start())) {
            self.executions = n;
        }
    }
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Progress { executions, edges, features, corpus } = self;
        write!(f, "{executions} executions, {edges} edges and {features} features covered, {corpus} inputs worth keeping")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_says_is_understood() {
        let mut seen = Progress::default();
        for line in [
            "INFO: Seed: 1",
            "#4096\tpulse  cov: 1042 ft: 5063 corp: 318/22Kb lim: 256 exec/s: 5825 rss: 512Mb",
            "stat::number_of_executed_units: 5001",
        ] {
            seen.read(line);
        }
        assert_eq!((seen.executions, seen.edges, seen.features, seen.corpus), (5001, 1042, 5063, 318));
    }

    #[test]
    fn every_target_has_a_line_that_says_what_it_is_and_a_corpus() {
        let all = targets().unwrap();
        assert!(all.len() >= 7 && all.iter().all(|(_, about)| about.len() > 10));
        for (name, _) in all {
            assert!(folder().join("corpus").join(&name).read_dir().is_ok_and(|mut f| f.next().is_some()), "{name} has no corpus");
        }
    }
}
