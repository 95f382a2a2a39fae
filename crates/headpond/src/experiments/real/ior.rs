//! ior and mdtest themselves, where they are installed. Debian has neither, so no experiment needs them: what they say stands beside what
//! fio says in their place.

use super::Run;
use super::rig::Rig;
use super::rounds::Samples;
use super::tools::is_there;
use anyhow::{Context, Result};
use headpond_sim::experiments::outcome::{Outcome, Who};
use std::process::Command;

/// Rounds at most: what they say decides nothing.
const ROUNDS: usize = 3;
/// mdtest's phases, as it calls them.
const PHASES: [&str; 3] = ["File creation", "File stat", "File removal"];

/// The program in so many processes: by MPI where there is more than one, if it is here.
fn command(program: &str, processes: u64) -> Option<Command> {
    if !is_there(program) {
        return None;
    }
    if processes == 1 {
        return Some(Command::new(program));
    }
    if !is_there("mpirun") {
        return None;
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
    Some(command)
}

/// The number behind a name in what a tool printed; of several the last. ior has a unit before the one that is wanted, in brackets.
fn number(said: &str, name: &str) -> Option<f64> {
    let line = said.lines().rev().find_map(|line| line.trim_start().strip_prefix(name))?;
    let words = line.split(['(', ' ', '\t', ':']).filter(|word| !word.is_empty());
    let numbers: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
    if line.contains('(') { numbers.get(1).copied() } else { numbers.first().copied() }
}

/// C1 by ior: so many processes, a file of so many bytes each, written and read in requests of 1 MiB, one at a time.
pub fn streams(run: &Run<'_>, rig: &Rig<'_>, out: &mut Outcome, processes: u64, bytes: u64) -> Result<()> {
    if command("ior", processes).is_none() {
        out.note("ior is not installed, or mpirun is not.");
        return Ok(());
    }
    let samples = Samples::take(run.rounds().min(ROUNDS), &rig.whos(), |who| {
        rig.settle(who)?;
        let mut ior = command("ior", processes).context("ior is gone")?;
        // The same files in each round: what is written anew may lie elsewhere.
        // Without -v newer ones leave the sums out.
        ior.args(["-v", "-a", "POSIX", "--posix.odirect", "-w", "-r", "-F", "-E", "-k", "-e", "-t", "1m"]);
        ior.args(["-b", &bytes.to_string(), "-o", &rig.point(who, 0).join("ior").display().to_string()]);
        let said = rig.run(&mut ior)?;
        ["Max Write:", "Max Read:"]
            .into_iter()
            .map(|name| number(&said, name).with_context(|| format!("ior does not tell {name} in: {said}")))
            .collect()
    })?;
    for (n, what) in ["write", "read"].into_iter().enumerate() {
        samples.figure(out, format!("{what}, by ior itself, {processes} processes"), "MB/s", n);
    }
    Ok(())
}

/// A5 by mdtest: processes share out so many files, all in one directory.
pub fn metadata(run: &Run<'_>, rig: &Rig<'_>, out: &mut Outcome, whos: &[Who], counts: &[u64], files: u64) -> Result<()> {
    for processes in counts.iter().copied() {
        if command("mdtest", processes).is_none() {
            out.note(format!("mdtest is not installed, or mpirun is not, for {processes} processes."));
            continue;
        }
        let samples = Samples::take(run.rounds().min(ROUNDS), whos, |who| {
            rig.settle(who)?;
            let mut mdtest = command("mdtest", processes).context("mdtest is gone")?;
            mdtest.args(["-F", "-C", "-T", "-r", "-n", &(files / processes).to_string()]);
            mdtest.args(["-d", &rig.point(who, 0).join("mdtest").display().to_string()]);
            let said = rig.run(&mut mdtest)?;
            PHASES
                .into_iter()
                .map(|name| number(&said, name).with_context(|| format!("mdtest does not tell {name} in: {said}")))
                .collect()
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
