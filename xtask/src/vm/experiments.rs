//! `cargo xtask vm experiments`: the experiments of the NFS server, with the guest kernel's NFS, on modelled disks and SSDs.
//!
//! What they are, and how they are judged, is in `headpond experiments --real`; here are its devices, and a kernel that has NFS.

use super::machine::Clock;
use super::rig::{Rig, Sizes};
use super::{Context as Vm, peers, prepare};
use crate::hammer::interrupt;
use crate::headpond;
use crate::steps::in_words;
use crate::tools;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const USAGE: &str = "\
cargo xtask vm experiments [EXPERIMENT..] [--quick] [--markdown FILE] [--out DIR] [..]
  EXPERIMENT..      of A1, A2, A3, A4, A6, A7 (all of them)
  --quick           fewer points, rounds and seconds
  --slower N        disks and SSDs that are so many times slower, all of them alike (1): the same as processors that are so many times
                    faster, where emulated ones are what limits
  --markdown FILE   make the part of the virtual machine on this page anew, which is docs/EXPERIMENTS.md
  --out DIR         put experiments.html, experiments.json and experiments.csv there
  --suite SUITE     Debian's suite that the kernel is taken from (the backports of this machine's release)
  --accel ACCEL     QEMU's accelerator (tcg,thread=multi: software alone, which works everywhere)
  --dir DIR         where drives and logs are meanwhile (/dev/shm, if they fit there twice: then nothing waits for a real disk)
  --headpond PATH   measure this program rather than the one that is built now";

/// All that need NFS.
const ALL: [&str; 6] = ["A1", "A2", "A3", "A4", "A6", "A7"];
/// Bytes of each disk and each SSD: what the experiments ask for at least.
const SIZES: Sizes = Sizes { cache: 512 << 20, disk: 1 << 30 };
/// The disks and the SSDs, in the order in which they are given; the first disk, and the first two SSDs, are the rig's own.
const DISKS: [&str; 4] = ["disk", "front", "back", "through"];
const SSDS: [&str; 4] = ["ssda", "ssdb", "ssdc", "ssdd"];
/// How long all of them may take.
const LIMIT: Duration = Duration::from_secs(3 * 3600);

/// What the guest runs.
const SCRIPT: &str = include_str!("guest/experiments.sh");

struct Options {
    which: Vec<String>,
    quick: bool,
    slower: u64,
    markdown: Option<PathBuf>,
    out: Option<PathBuf>,
    suite: Option<String>,
    accel: String,
    folder: Option<PathBuf>,
    headpond: Option<PathBuf>,
}

impl Options {
    fn of(args: &[String]) -> Result<Options> {
        let mut options = Options {
            which: Vec::new(),
            quick: false,
            slower: 1,
            markdown: None,
            out: None,
            suite: None,
            accel: "tcg,thread=multi".into(),
            folder: None,
            headpond: None,
        };
        let mut args = args.iter();
        while let Some(word) = args.next() {
            let mut value = || args.next().with_context(|| format!("{word} wants a value\n{USAGE}"));
            match word.as_str() {
                "--quick" => options.quick = true,
                "--slower" => options.slower = times(value()?)?,
                "--markdown" => options.markdown = Some(value()?.into()),
                "--out" => options.out = Some(value()?.into()),
                "--suite" => options.suite = Some(value()?.clone()),
                "--accel" => options.accel = value()?.clone(),
                "--dir" => options.folder = Some(value()?.into()),
                "--headpond" => options.headpond = Some(value()?.into()),
                id if ALL.iter().any(|it| it.eq_ignore_ascii_case(id)) => options.which.push(id.to_uppercase()),
                _ => bail!("vm experiments knows no {word}; there are {}\n{USAGE}", ALL.join(", ")),
            }
        }
        if options.which.is_empty() {
            options.which = ALL.map(str::to_owned).to_vec();
        }
        Ok(options)
    }

    /// The command as anybody would give it.
    fn words(&self) -> String {
        format!("cargo xtask vm experiments {}{}", self.which.join(" "), self.manner())
    }

    /// In which manner they are run, as options that this command and the guest's share.
    fn manner(&self) -> String {
        let quick = if self.quick { " --quick" } else { "" };
        match self.slower {
            1 => quick.to_owned(),
            times => format!("{quick} --slower {times}"),
        }
    }
}

/// How many times slower, at most: an SSD has ten requests a second left then.
const SLOWEST: u64 = 1000;

fn times(value: &str) -> Result<u64> {
    let times = value.parse().ok().filter(|it| (1..=SLOWEST).contains(it));
    times.with_context(|| format!("--slower wants a whole number from 1 to {SLOWEST}, and got {value}\n{USAGE}"))
}

/// `cargo xtask vm experiments`.
pub fn run(args: &[String]) -> Result<()> {
    let options = Options::of(args)?;
    // It fails now rather than in half an hour.
    let page = options.markdown.as_deref().map(read).transpose()?;
    if let Some(out) = &options.out {
        fs::create_dir_all(out).with_context(|| format!("{} cannot be made", out.display()))?;
    }
    interrupt::watch()?;
    let begun = Instant::now();
    tools::install_for_nfs()?;
    let (kernel, initramfs, version) = prepare(options.suite.as_deref())?;
    let headpond = match &options.headpond {
        Some(path) => path.canonicalize().with_context(|| format!("there is no {}", path.display()))?,
        None => headpond::build()?,
    };
    let bytes = DISKS.len() as u64 * SIZES.disk + SSDS.len() as u64 * SIZES.cache;
    let folder = options.folder.clone().unwrap_or_else(|| peers::folder_for(bytes));
    let vm = Vm {
        headpond,
        kernel,
        initramfs,
        accel: options.accel.clone(),
        clock: Clock::counter()?,
        sizes: SIZES,
        throttled: true,
        slower: options.slower,
        folder: folder.canonicalize().with_context(|| format!("there is no folder {}", folder.display()))?,
        rounds: 1,
        length: Duration::ZERO,
        seed: 1,
        instant: false,
        // It takes long, and says how far it is.
        verbose: true,
        // Gigabytes, perhaps of memory.
        keep: false,
        patient: true,
        lying: false,
        worse: false,
        late: Duration::ZERO,
    };
    eprintln!("vm: {} with Linux {version}", options.words());
    let mut rig = Rig::set_up(&vm)?;
    for name in &DISKS[1..] {
        rig.add_disk(name, SIZES.disk)?;
    }
    for name in &SSDS[2..] {
        rig.add_ssd(name, SIZES.cache)?;
    }
    let results = rig.share().join("results");
    fs::create_dir(&results)?;
    if let Some(page) = &page {
        fs::write(results.join("page.md"), page)?;
    }
    rig.boot()?;
    let before = peers::clock(&mut rig)?;
    let said = rig.run_first_within(&script(&options, page.is_some()), LIMIT)?;
    peers::believe(before, peers::clock(&mut rig)?)?;
    for name in ["experiments.html", "experiments.json", "experiments.csv"] {
        if let Some(out) = &options.out {
            let to = out.join(name);
            fs::copy(results.join(name), &to).with_context(|| format!("{} cannot be written", to.display()))?;
        }
    }
    if let Some(file) = &options.markdown {
        let made = read(&results.join("page.md"))?;
        fs::write(file, made).with_context(|| format!("{} cannot be written", file.display()))?;
    }
    println!("{}", read(&results.join("table"))?);
    let ended = said.iter().find_map(|line| line.strip_prefix("experiments ended "));
    rig.passed();
    eprintln!("vm: the experiments took {}", in_words(begun.elapsed()));
    match ended {
        Some("0") => Ok(()),
        code => bail!("the experiments ended with {}; look above for why", code.unwrap_or("no word")),
    }
}

/// What the guest is told to run.
fn script(options: &Options, page: bool) -> String {
    let devices = |flag: &str, names: &[&str]| names.iter().map(|it| format!(" {flag} \"$(drive {it})\"")).collect::<String>();
    let markdown = if page { " --markdown /host/results/page.md" } else { "" };
    format!(
        "{SCRIPT}\nexperiments {}{}{}{}{markdown} --made-by '{}'",
        options.which.join(" "),
        options.manner(),
        devices("--disk", &DISKS),
        devices("--ssd", &SSDS),
        options.words()
    )
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &str) -> Result<Options> {
        Options::of(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_guest_is_told_which_and_on_which_drives_and_the_page_by_which_command() {
        let options = of("a4 A1 --quick --dir /somewhere").unwrap();
        assert_eq!(options.words(), "cargo xtask vm experiments A4 A1 --quick");
        let told = script(&options, false);
        let last = told.lines().last().unwrap();
        assert!(last.starts_with("experiments A4 A1 --quick --disk \"$(drive disk)\" --disk \"$(drive front)\""), "{last}");
        assert!(last.ends_with("--ssd \"$(drive ssdd)\" --made-by 'cargo xtask vm experiments A4 A1 --quick'"), "{last}");
        assert_eq!(of("").unwrap().which, ALL);
        let options = of("A2 --slower 10").unwrap();
        assert_eq!(options.words(), "cargo xtask vm experiments A2 --slower 10");
        assert!(script(&options, false).contains("\nexperiments A2 --slower 10 --disk "));
    }

    #[test]
    fn what_is_not_known_is_named() {
        for (words, named) in [
            ("A5", "knows no A5"),
            ("--rounds", "knows no --rounds"),
            ("--out", "--out wants a value"),
            ("--slower 0", "from 1 to 1000, and got 0"),
        ] {
            let error = of(words).err().unwrap().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
