//! What was measured, as medians with their spread, and who is first.

use super::plots::{self, Panel};
use super::rows::{METRICS, Metric, Run, Sample};
use super::{About, Contender};
use crate::steps::in_words;
use anyhow::Result;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// How far from the first Headpond may be.
const WITHIN: f64 = 0.95;

/// Whose standing is asked for.
const OURS: &str = "headpond";

/// All that was measured.
pub struct Table<'a> {
    contenders: Vec<&'a Contender>,
    metrics: Vec<&'static Metric>,
    /// By metric and contender, in the order of the rounds.
    samples: BTreeMap<(&'static str, &'static str), Vec<Sample>>,
    /// MiB that were dirty when contenders were told to clean.
    dirty: BTreeMap<&'static str, Vec<f64>>,
    settings: BTreeMap<&'static str, Vec<String>>,
    failures: Vec<String>,
}

/// The middle of some samples, and their ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// Between two, where their number is even.
    pub median: Sample,
    /// The least of all.
    pub least: Sample,
    /// And the most.
    pub most: Sample,
}

impl Spread {
    fn of(samples: &[Sample]) -> Option<Spread> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(|a, b| a.value.total_cmp(&b.value));
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        let median = Sample { value: f64::midpoint(low.value, high.value), beyond: high.beyond };
        Some(Spread { median, least, most })
    }
}

/// How a row ended.
struct Standing {
    first: &'static str,
    /// How much better than the second.
    by: Option<f64>,
    /// Headpond's figure over the best of the others', turned so that more is better.
    ours: Option<f64>,
}

impl<'a> Table<'a> {
    /// With nothing in it.
    pub fn new(contenders: &[&'a Contender], rows: &[&str]) -> Table<'a> {
        Table {
            contenders: contenders.to_vec(),
            metrics: METRICS.iter().filter(|metric| rows.contains(&metric.row)).collect(),
            samples: BTreeMap::new(),
            dirty: BTreeMap::new(),
            settings: BTreeMap::new(),
            failures: Vec::new(),
        }
    }

    /// What a contender did in a round.
    pub fn take(&mut self, contender: &'static str, run: Run, settings: Vec<String>) {
        for (key, sample) in run.samples {
            self.samples.entry((key, contender)).or_default().push(sample);
        }
        if let Some(kib) = run.dirty_kib {
            self.dirty.entry(contender).or_default().push(kib as f64 / 1024.0);
        }
        self.settings.entry(contender).or_insert(settings);
    }

    /// A contender that did not come to the end of a round: what it had measured does not count, and it is measured again.
    pub fn failed(&mut self, contender: &str, round: u64, error: &anyhow::Error) {
        let story = format!("{error:#}");
        self.failures.push(format!("{contender}, round {round}: {}", story.lines().next().unwrap_or_default()));
    }

    /// A contender's figure, if it takes part.
    fn spread(&self, metric: &Metric, contender: &'static str) -> Option<Spread> {
        if contender == "bare" && !metric.bare {
            return None;
        }
        Spread::of(self.samples.get(&(metric.key, contender))?)
    }

    fn standing(&self, metric: &Metric) -> Option<Standing> {
        // More is better from here on.
        let worth = |sample: Sample| if metric.less { 1.0 / sample.value.max(0.005) } else { sample.value };
        let mut order: Vec<(&'static str, &'static str, f64)> = Vec::new();
        for it in &self.contenders {
            if let Some(spread) = self.spread(metric, it.name) {
                order.push((it.name, it.label, worth(spread.median)));
            }
        }
        order.sort_by(|a, b| b.2.total_cmp(&a.2));
        let (_, first, best) = *order.first()?;
        let ours = order.iter().find(|it| it.0 == OURS).map(|it| it.2);
        let others = order.iter().find(|it| it.0 != OURS).map(|it| it.2);
        Some(Standing {
            first,
            by: order.get(1).map(|second| best / second.2),
            ours: ours.zip(others).map(|(ours, others)| ours / others),
        })
    }

    /// The table alone.
    pub fn figures(&self) -> String {
        let mut text = String::from("| row | |");
        let heads = self.contenders.iter().map(|it| it.label).chain(["first", "Headpond / best other", "first or within 5 %"]);
        for head in heads {
            let _ = write!(text, " {head} |");
        }
        text += "\n|---|---|";
        (0..self.contenders.len() + 3).for_each(|_| text += "---|");
        for metric in &self.metrics {
            let _ = write!(text, "\n| {} | {} |", metric.label, metric.unit);
            for contender in &self.contenders {
                let cell = self.spread(metric, contender.name).map_or("–".into(), cell);
                let _ = write!(text, " {cell} |");
            }
            let standing = self.standing(metric);
            let first = standing.as_ref().map_or("–".into(), |it| match it.by {
                Some(by) => format!("{}, {by:.2} times the second", it.first),
                None => it.first.to_owned(),
            });
            let ours = standing.and_then(|it| it.ours);
            let ratio = ours.map_or("–".into(), |ours| format!("{ours:.2}"));
            let holds = ours.map_or("–", |ours| if ours >= WITHIN { "yes" } else { "**no**" });
            let _ = write!(text, " {first} | {ratio} | {holds} |");
        }
        text
    }

    /// The same as the table, drawn: an SVG file's content.
    pub fn plots(&self) -> String {
        let panels = self.metrics.iter().map(|metric| Panel {
            title: metric.label,
            unit: metric.unit,
            less: metric.less,
            bars: self.contenders.iter().map(|it| (it.label, it.name == OURS, self.spread(metric, it.name))).collect(),
        });
        plots::draw(&panels.collect::<Vec<_>>())
    }

    /// The page: the table, the file with the plots beside it, and all that one must know to read it, or to make it again.
    pub fn document(&self, about: &About, plots: &str) -> Result<String> {
        let scale = &about.scale;
        let mut text = format!(
            "# Beside the kernel's own caches\n\n\
             Written by `{}`, in {}. Medians of {} rounds, each contender once in each and in the opposite order in every second, with the \
             least and the most in brackets; in a virtual machine without KVM, whose emulated processors limit everything to some 30,000 \
             IOPS, so that the figures compare contenders and say little of hardware. Each contender has a machine of its own in each \
             round, and new drives, which are full of zeroes and without holes. `>` before a figure: nobody waited longer.\n\n{}\n\n",
            about.command,
            in_words(about.took),
            about.rounds,
            self.figures()
        );
        text += "A row is lost where the last column says no; \"first\" says who wins it, and by how much. For a time less is better, and \
                 the ratio is turned so that more than 1 is Headpond's.\n\n";
        let _ = writeln!(text, "![The same, drawn: bars are medians, lines on them go from the least to the most]({plots})\n");
        for (contender, dirty) in &self.dirty {
            let samples: Vec<Sample> = dirty.iter().map(|&value| Sample { value, beyond: false }).collect();
            if let Some(spread) = Spread::of(&samples)
                && let Some(it) = self.contenders.iter().find(|it| it.name == *contender && it.name != "bare")
            {
                let _ = writeln!(text, "- {}: {} MiB were dirty when it was told to clean.", it.label, cell(spread));
            }
        }
        for failure in &self.failures {
            let _ = writeln!(text, "- Not counted, and done again: {failure}.");
        }
        text += "\n## The rows\n\n";
        let (ramp, seconds) = (scale.ramp, scale.seconds);
        let mib = |bytes: u64| bytes >> 20;
        let rows = [
            ("fill", format!("each block of a hot set of {} MiB written once, in a random order, 32 outstanding; ended after {} s", mib(scale.hot), scale.fill)),
            ("read", format!("random 4 KiB reads of the hot set, 32 outstanding, {} s that do not count and {seconds} s that do", scale.warm)),
            ("sync", format!("random 4 KiB writes to the hot set, one at a time, fsync after each, {ramp} s and {seconds} s")),
            ("clean", format!("told to write back what is dirty now, each by its own command, then a flush; no longer than {} s", scale.clean)),
            ("stream-write", format!("1 MiB, 4 outstanding, to {} MiB of the disk that nothing else uses, {ramp} s and {seconds} s", mib(scale.stream))),
            ("stream-read", format!("the same of another {} MiB, which were never written", mib(scale.stream))),
            ("beside-writes", "the stream write, and random 4 KiB writes to the hot set with 32 outstanding, at once".into()),
            ("beside-reads", "the stream read, and random 4 KiB reads of the hot set with 32 outstanding, at once".into()),
            ("past", format!("random 4 KiB writes to {} MiB, {} times the cache, 32 outstanding, {} s and {} s", mib(scale.past), scale.past / scale.cache, scale.past_seconds.0, scale.past_seconds.1)),
            ("restart", "the power cut under random writes, booted again: from the first command that sets the cache up till a block is read and a block is written".into()),
        ];
        for (name, story) in rows {
            if self.metrics.iter().any(|metric| metric.row == name) {
                let _ = writeln!(text, "- `{name}`: {story}.");
            }
        }
        let _ = write!(
            text,
            "\nThey are done in this order on one set of drives; what a row leaves in the cache the next one finds. fio with libaio and \
             direct I/O.\n\n## The drives\n\nThe disk is the project's modelled one, behind NBD: {} MiB at 7200 rpm and 200 MB/s, with a volatile \
             write cache of 128 MiB and an elevator, its file's space set aside. The SSDs are files of {} MiB, written once before, which QEMU \
             reads and writes past the host's page cache, at no more than 12,000 requests and 500 MB a second each; a flush takes what the \
             host's fdatasync takes. The power cut takes from the disk what it had not flushed, by dice, and \
             nothing from the SSDs.\n\n## The contenders\n\n",
            mib(scale.disk()),
            mib(scale.cache)
        );
        for it in &self.contenders {
            let _ = writeln!(text, "- **{}**: {}.", it.label, it.what);
        }
        text += "\nThe RAID 1 of the kernel's caches is `dm-raid` without a write-intent bitmap, made without a first resynchronization: that \
                 costs them nothing in writes, where a real one would. After the power cut it is resynchronized while it is used. As they \
                 told it themselves:\n\n```\n";
        for it in &self.contenders {
            let settings = self.settings.get(it.name).into_iter().flatten();
            for line in settings {
                let _ = writeln!(text, "{}: {line}", it.label);
            }
        }
        text += "```\n\n## Versions\n\n| | |\n|---|---|\n";
        for (what, version) in about.versions()? {
            let _ = writeln!(text, "| {what} | {version} |");
        }
        Ok(text)
    }

    /// All of it, each round's samples too.
    pub fn json(&self, about: &About) -> Result<Value> {
        let mut rows = Vec::new();
        for metric in &self.metrics {
            let mut by = serde_json::Map::new();
            for contender in &self.contenders {
                let Some(spread) = self.spread(metric, contender.name) else { continue };
                let samples: Vec<f64> = self.samples[&(metric.key, contender.name)].iter().map(|it| it.value).collect();
                by.insert(
                    contender.name.into(),
                    json!({ "median": spread.median.value, "samples": samples, "beyond": spread.median.beyond }),
                );
            }
            let standing = self.standing(metric);
            rows.push(json!({
                "key": metric.key, "label": metric.label, "unit": metric.unit, "less_is_better": metric.less, "contenders": by,
                "first": standing.as_ref().map(|it| it.first), "by": standing.as_ref().and_then(|it| it.by),
                "headpond_over_best_other": standing.and_then(|it| it.ours),
            }));
        }
        let versions: serde_json::Map<String, Value> = about.versions()?.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        Ok(
            json!({ "command": about.command, "rounds": about.rounds, "rows": rows, "settings": self.settings, "versions": versions }),
        )
    }
}

/// A sample, to three digits or to the unit.
pub fn figure(sample: Sample) -> String {
    let more = if sample.beyond { "> " } else { "" };
    match sample.value {
        value if value >= 1000.0 => {
            let whole = value.round() as u64;
            format!("{more}{},{:03}", whole / 1000, whole % 1000)
        }
        value if value >= 100.0 => format!("{more}{value:.0}"),
        value if value >= 10.0 => format!("{more}{value:.1}"),
        value => format!("{more}{value:.2}"),
    }
}

fn cell(spread: Spread) -> String {
    format!("{} ({} to {})", figure(spread.median), figure(spread.least), figure(spread.most))
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
