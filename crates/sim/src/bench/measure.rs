//! What clients reached in a window of time.

use crate::models::SECOND;

/// Answers as they come.
#[derive(Clone, Default, Debug)]
pub struct Series {
    latencies_ns: Vec<u64>,
    bytes: u64,
    failed: u64,
    /// Answers in each whole second of the window.
    seconds: Vec<u64>,
}

impl Series {
    /// An answer came, so long after the window began.
    pub fn note(&mut self, since_ns: u64, took_ns: u64, bytes: u64, failed: bool) {
        self.latencies_ns.push(took_ns);
        self.bytes += bytes;
        self.failed += u64::from(failed);
        let second = (since_ns / SECOND) as usize;
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, 0);
        }
        self.seconds[second] += 1;
    }

    /// How many answers.
    #[must_use]
    pub fn answers(&self) -> usize {
        self.latencies_ns.len()
    }

    /// What it comes to over a window of `window_ns`.
    #[must_use]
    pub fn reached(mut self, window_ns: u64) -> Reached {
        self.latencies_ns.sort_unstable();
        let n = self.latencies_ns.len();
        let at = |of_1000: usize| self.latencies_ns.get((n * of_1000 / 1000).min(n.saturating_sub(1))).copied().unwrap_or(0);
        let seconds = window_ns as f64 / SECOND as f64;
        let whole = (window_ns / SECOND) as usize;
        let mut per_second = self.seconds;
        per_second.resize(whole.max(1), 0);
        let mean = n as f64 / seconds.max(1e-9);
        let least = per_second.iter().copied().min().unwrap_or(0) as f64;
        Reached {
            answers: n as u64,
            failed: self.failed,
            per_s: mean,
            bytes_per_s: self.bytes as f64 / seconds.max(1e-9),
            mean_ns: self.latencies_ns.iter().sum::<u64>() as f64 / n.max(1) as f64,
            median_ns: at(500),
            p99_ns: at(990),
            p999_ns: at(999),
            most_ns: at(1000),
            least_second: if mean > 0.0 { least / mean } else { 0.0 },
            window_ns,
            per_second,
        }
    }
}

/// What was reached in a window.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Reached {
    /// Answers.
    pub answers: u64,
    /// Of these, errors.
    pub failed: u64,
    /// Answers per second.
    pub per_s: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Mean time to an answer, in nanoseconds.
    pub mean_ns: f64,
    /// Half of the answers took no longer, in nanoseconds.
    pub median_ns: u64,
    /// 99 of 100 took no longer, in nanoseconds.
    pub p99_ns: u64,
    /// 999 of 1000 took no longer, in nanoseconds.
    pub p999_ns: u64,
    /// The longest, in nanoseconds.
    pub most_ns: u64,
    /// The whole second with the fewest answers, by the mean.
    pub least_second: f64,
    /// Length of the window, in nanoseconds.
    pub window_ns: u64,
    /// Answers in each whole second.
    pub per_second: Vec<u64>,
}
