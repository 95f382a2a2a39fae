//! ior and mdtest themselves, where they are installed. Debian has neither, so no experiment needs them: what they say stands beside what
//! fio says in their place.
//!
//! Each is first tried in a folder that no volume is under. If it cannot do there what is asked of it, that is told and nothing is
//! measured; what fails afterwards is not the tool's, and ends the experiment.

use super::Run;
use super::rig::Rig;
use super::rounds::Samples;
use super::tools::{Interrupted, is_there};
use anyhow::{Context, Result, bail};
use headpond_sim::experiments::outcome::{Outcome, Who};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Rounds at most: what they say decides nothing.
const ROUNDS: usize = 3;
/// What is read of what they print.
const SUMS: [&str; 2] = ["Max Write:", "Max Read:"];
const PHASES: [&str; 3] = ["File creation", "File stat", "File removal"];

/// The program in so many processes: by MPI where there is more than one.
fn command(program: &str, processes: u64) -> Result<Command> {
    if !is_there(program) {
        bail!("{program} is not installed; build it from github.com/hpc/ior to see what it says");
    }
    if processes == 1 {
        return Ok(Command::new(program));
    }
    if !is_there("mpirun") {
        bail!("mpirun is not installed; install Debian's package mpich to have {program} run in {processes} processes");
    }
    let mut command = Command::new("mpirun");
    command.args(["-n", &processes.to_string(), program]);
    // One of the MPIs refuses to be root, and to have more processes than there are processors, without these; others do not know them.
    for (name, value) in [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
    ] {
        command.env(name, value);
    }
    Ok(command)
}

/// The number behind a name in what a tool printed; of several the last. ior has a unit before the one that is wanted, in brackets.
fn number(said: &str, name: &str) -> Option<f64> {
    let line = said.lines().rev().find_map(|line| line.trim_start().strip_prefix(name))?;
    let words = line.split(['(', ' ', '\t', ':']).filter(|word| !word.is_empty());
    let numbers: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
    if line.contains('(') { numbers.get(1).copied() } else { numbers.first().copied() }
}

/// A file of so many bytes for each process, written and read in requests of 1 MiB.
fn ior(processes: u64, bytes: u64, folder: &Path) -> Result<Command> {
    let mut ior = command("ior", processes)?;
    // -E, -k: the same files each time, as what is written anew may lie elsewhere. Without -v newer ones leave the sums out.
    ior.args(["-v", "-a", "POSIX", "--posix.odirect", "-w", "-r", "-F", "-E", "-k", "-e", "-t", "1m"]);
    ior.args(["-b", &bytes.to_string(), "-o", &folder.join("ior").display().to_string()]);
    Ok(ior)
}

/// So many files for each process, all in one directory.
fn mdtest(processes: u64, each: u64, folder: &Path) -> Result<Command> {
    let mut mdtest = command("mdtest", processes)?;
    mdtest.args(["-F", "-C", "-T", "-r", "-n", &each.to_string(), "-d", &folder.join("mdtest").display().to_string()]);
    Ok(mdtest)
}

/// Runs one, and returns what it says.
fn ask(rig: &Rig<'_>, mut tool: Command, names: &[&str]) -> Result<Vec<f64>> {
    let said = rig.run(&mut tool)?;
    let of =
        |name: &&str| number(&said, name).with_context(|| format!("{:?} does not tell {name} in: {said}", tool.get_program()));
    names.iter().map(of).collect()
}

/// Whether the tool does what is asked of it where no volume is in its way.
fn is_usable(out: &mut Outcome, rig: &Rig<'_>, names: &[&str], tool: impl FnOnce(&Path) -> Result<Command>) -> Result<bool> {
    let folder = rig.path().join("tried");
    fs::create_dir_all(&folder)?;
    match tool(&folder).and_then(|tool| ask(rig, tool, names)) {
        Ok(_) => Ok(true),
        Err(error) if error.is::<Interrupted>() => Err(error),
        Err(error) => {
            out.note(format!("{error:#}. The figures by fio stand without it."));
            Ok(false)
        }
    }
}

/// C1 by ior: so many processes, a file of so many bytes each.
pub fn streams(run: &Run<'_>, rig: &Rig<'_>, out: &mut Outcome, processes: u64, bytes: u64) -> Result<()> {
    if !is_usable(out, rig, &SUMS, |folder| ior(processes, 1 << 20, folder))? {
        return Ok(());
    }
    let samples = Samples::take(run.rounds().min(ROUNDS), &rig.whos(), |who| {
        rig.settle(who)?;
        ask(rig, ior(processes, bytes, &rig.point(who, 0))?, &SUMS)
    })?;
    for (n, what) in ["write", "read"].into_iter().enumerate() {
        samples.figure(out, format!("{what}, by ior itself, {processes} processes"), "MB/s", n);
    }
    Ok(())
}

/// A5 by mdtest: processes share out so many files.
pub fn metadata(run: &Run<'_>, rig: &Rig<'_>, out: &mut Outcome, whos: &[Who], counts: &[u64], files: u64) -> Result<()> {
    for processes in counts.iter().copied() {
        if !is_usable(out, rig, &PHASES, |folder| mdtest(processes, 1, folder))? {
            continue;
        }
        let samples = Samples::take(run.rounds().min(ROUNDS), whos, |who| {
            rig.settle(who)?;
            ask(rig, mdtest(processes, files / processes, &rig.point(who, 0))?, &PHASES)
        })?;
        for (n, what) in ["create", "stat, from the kernel's cache", "remove"].into_iter().enumerate() {
            samples.figure(out, format!("{what}, by mdtest itself, {processes} processes"), "files/s", n);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tools_print_is_understood() {
        let ior = "access    bw(MiB/s)\nwrite     190.55\nMax Write: 190.55 MiB/sec (199.81 MB/sec)\nMax Read:  1822.10 MiB/sec (1910.61 MB/sec)\n";
        assert_eq!([number(ior, "Max Write:"), number(ior, "Max Read:")], [Some(199.81), Some(1910.61)]);
        let new = "   Operation                     Max            Min           Mean        Std Dev\n   File creation              2013.105       2013.105       2013.105          0.000\n";
        let old = "   File creation     :       2013.105       2013.105       2013.105          0.000\n";
        assert_eq!([new, old].map(|said| number(said, "File creation")), [Some(2013.105); 2]);
        assert_eq!(number(new, "File stat"), None);
    }
}
