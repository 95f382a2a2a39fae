//! fio: a job file of the project, with the sections and values that an experiment wants of it, and what each section reached.

use super::tools;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

/// What all jobs of a section did together in a second.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Rate {
    /// Bytes, written and read.
    pub bytes: f64,
    /// Requests.
    pub requests: f64,
    /// Requests, by the time that the slowest of the jobs took.
    pub together: f64,
}

/// By section.
pub type Rates = BTreeMap<String, Rate>;

/// A job file: its name and text.
#[derive(Clone, Copy, Debug)]
pub struct JobFile {
    /// Its name.
    pub name: &'static str,
    /// What is in it. `${...}` are set by whoever runs it.
    pub text: &'static str,
}

/// A job file of this folder's `jobs`.
macro_rules! job {
    ($name:literal) => {
        $crate::experiments::real::fio::JobFile { name: $name, text: include_str!(concat!("jobs/", $name, ".fio")) }
    };
}
pub(super) use job;

/// Runs these sections of a job file; `values` are what stands in it as `${NAME}`. `folder` is for its own files.
pub fn run(job: JobFile, sections: &[&str], values: &[(&str, String)], folder: &Path, stop: &AtomicBool) -> Result<Rates> {
    let (file, figures) = (folder.join(format!("{}.fio", job.name)), folder.join("fio.json"));
    fs::write(&file, job.text)?;
    let mut command = Command::new("fio");
    command.current_dir(folder).arg("--output-format=json").arg("--output").arg(&figures);
    command.args(sections.iter().map(|it| format!("--section={it}"))).arg(&file);
    command.envs(values.iter().map(|(name, value)| (*name, value)));
    tools::run(&mut command, &folder.join("fio.log"), stop).with_context(|| format!("the job {} failed", job.name))?;
    rates(&fs::read_to_string(&figures)?).with_context(|| format!("fio's figures of the job {} cannot be understood", job.name))
}

fn rates(text: &str) -> Result<Rates> {
    // fio prints some complaints in front of the figures.
    let json = text.find('{').map_or("", |at| &text[at..]);
    let value: Value = serde_json::from_str(json)?;
    let mut rates = Rates::new();
    let mut slowest: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for job in value["jobs"].as_array().into_iter().flatten() {
        let sum = |what: &str| ["read", "write"].iter().filter_map(|way| job[*way][what].as_f64()).sum::<f64>();
        let name = job["jobname"].as_str().unwrap_or_default();
        let (requests, ms) = slowest.entry(name).or_default();
        *requests += sum("total_ios");
        *ms = ms.max(sum("runtime"));
        let rate: &mut Rate = rates.entry(name.to_owned()).or_default();
        rate.bytes += sum("bw_bytes");
        rate.requests += sum("iops");
        rate.together = *requests / ms.max(1.0) * 1000.0;
    }
    Ok(rates)
}

/// The values of one of fio's logs that are averaged over each second: the second, and what all jobs reached in it together.
pub fn seconds(text: &str) -> Vec<(f64, f64)> {
    let mut sums: BTreeMap<u64, f64> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(',').map(str::trim);
        if let (Some(Ok(ms)), Some(Ok(value))) = (fields.next().map(str::parse::<u64>), fields.next().map(str::parse::<f64>)) {
            // An entry is written at the end of its second, and some milliseconds late.
            *sums.entry((ms + 500) / 1000).or_default() += value;
        }
    }
    sums.into_iter().map(|(second, value)| (second as f64, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_jobs_of_a_section_reached_is_added_up() {
        let text = r#"fio: a complaint
            {"jobs": [
              {"jobname": "a", "read": {"bw_bytes": 10, "iops": 1.5, "total_ios": 3, "runtime": 2000}, "write": {"bw_bytes": 0, "iops": 0.0}},
              {"jobname": "a", "read": {"bw_bytes": 20, "iops": 2.5, "total_ios": 5, "runtime": 1000}, "write": {"bw_bytes": 5, "iops": 1.0}},
              {"jobname": "b", "read": {}, "write": {"bw_bytes": 7, "iops": 3.0}}]}"#;
        let rates = rates(text).unwrap();
        assert_eq!(rates["a"], Rate { bytes: 35.0, requests: 5.0, together: 4.0 });
        assert_eq!(rates["b"], Rate { bytes: 7.0, requests: 3.0, together: 0.0 });
    }

    #[test]
    fn a_log_of_several_jobs_becomes_one_value_for_each_second() {
        let text = "1000, 40, 1, 4096, 0\n2001, 50, 1, 4096, 0\n1002, 2, 1, 4096, 0\n";
        assert_eq!(seconds(text), [(1.0, 42.0), (2.0, 50.0)]);
    }
}
