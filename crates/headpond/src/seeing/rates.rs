//! Rates: the difference of two reports of one daemon, by that daemon's own clock.

use headpond_host::report::{Load, Pair, Report, Requests, Took, Volume};
use serde::Serialize;

/// What happened between two reports, each second; or since the daemon's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Seconds between the two.
    pub seconds: f64,
    /// Reads.
    pub reads: Flow,
    /// Share of reads that the cache answered alone; none without reads.
    pub hit_percent: Option<f64>,
    /// Writes, with discards and zeroings.
    pub writes: Flow,
    /// Share of writes that the log took.
    pub absorbed_percent: Option<f64>,
    /// Flushes.
    pub flushes_per_second: f64,
    /// Average time of a read, of a write, of a flush, in milliseconds.
    pub read_ms: Option<f64>,
    /// Of a write.
    pub write_ms: Option<f64>,
    /// Of a flush.
    pub flush_ms: Option<f64>,
    /// Requests that failed.
    pub errors_per_second: f64,
    /// What became of requests, with the reason where there is one.
    pub fates: Vec<Fate>,
    /// Data written to the disks by destage.
    pub destaged: Flow,
    /// Data that the disks do not have yet, at the end.
    pub dirty_bytes: u64,
    /// How full the room for dirty data was, at the end.
    pub dirty_percent: u32,
    /// Seconds until nothing is dirty, if destage goes on as it did and nothing new is written; none if it did nothing.
    pub clean_in_seconds: Option<f64>,
    /// The cache devices.
    pub members: Vec<Device>,
    /// The backing devices.
    pub disks: Vec<Device>,
}

/// Requests and bytes each second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Flow {
    /// Requests.
    pub per_second: f64,
    /// Bytes.
    pub bytes_per_second: f64,
}

/// Requests of one fate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fate {
    /// `hit`, `partial_hit`, `miss`, `read_bypass`, `absorbed`, `write_bypass`, as in the metrics.
    pub fate: &'static str,
    /// Why, of a bypassed write.
    pub reason: Option<String>,
    /// How many.
    #[serde(flatten)]
    pub flow: Flow,
}

/// The load of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Device {
    /// Its number in the pool, or its volume's name.
    pub name: String,
    /// Where it is.
    pub path: Option<String>,
    /// What it was asked to read.
    pub reads: Flow,
    /// What it was asked to write.
    pub writes: Flow,
    /// Flushes.
    pub flushes_per_second: f64,
    /// Share of the time with an operation on its way.
    pub busy_percent: f64,
    /// Operations on their way, on average.
    pub queue: f64,
    /// Average time of an operation, in milliseconds.
    pub operation_ms: Option<f64>,
    /// Operations that failed.
    pub failures_per_second: f64,
}

impl Rates {
    /// Of all volumes, or of the one named. With `None` before: since the daemon's start. A daemon that was restarted in
    /// between began at zero, and so does this.
    pub fn between(before: Option<&Report>, after: &Report, volume: Option<&str>) -> Rates {
        let before = before.filter(|before| !restarted(before, after));
        let seconds = after.uptime_seconds - before.map_or(0.0, |report| report.uptime_seconds);
        let per = Per(seconds.max(1e-6));
        let chosen: Vec<(Option<&Volume>, &Volume)> = (after.volumes.iter())
            .filter(|v| volume.is_none_or(|name| v.name == name))
            .map(|v| (before.and_then(|b| b.volumes.iter().find(|old| old.name == v.name && old.number == v.number)), v))
            .collect();
        let count = |get: &dyn Fn(&Requests) -> Pair| -> Pair {
            let differences =
                chosen.iter().map(|(old, new)| less(get(&new.requests), old.map(|v| get(&v.requests)).unwrap_or_default()));
            differences.fold(Pair::default(), plus)
        };
        let number = |get: &dyn Fn(&Requests) -> u64| count(&|r| Pair { requests: get(r), bytes: 0 }).requests as f64;
        let took = |get: &dyn Fn(&Volume) -> Took| {
            let (mut requests, mut seconds) = (0, 0.0);
            for (old, new) in &chosen {
                let (old, new) = (old.map(get).unwrap_or_default(), get(new));
                requests += new.requests.saturating_sub(old.requests);
                seconds += (new.seconds - old.seconds).max(0.0);
            }
            (requests > 0).then(|| seconds * 1000.0 / requests as f64)
        };

        let mut fates = Vec::new();
        let mut fate = |fate, reason: Option<&str>, pair| {
            fates.push(Fate { fate, reason: reason.map(str::to_owned), flow: per.flow(pair) });
            pair
        };
        let hit = fate("hit", None, count(&|r| r.hit));
        let partly = fate("partial_hit", None, count(&|r| r.partial_hit));
        let miss = fate("miss", None, count(&|r| r.miss));
        let past = fate("read_bypass", None, count(&|r| r.read_bypass));
        let reads = [hit, partly, miss, past].into_iter().fold(Pair::default(), plus);
        let absorbed = fate("absorbed", None, count(&|r| r.absorbed));
        let mut writes = absorbed;
        let reasons = after.volumes.first().map(|v| v.requests.write_bypass.iter().map(|(name, _)| name.as_str()));
        for reason in reasons.into_iter().flatten() {
            let of = |r: &Requests| r.write_bypass.iter().find(|(name, _)| name == reason).map(|it| it.1).unwrap_or_default();
            writes = plus(writes, fate("write_bypass", Some(reason), count(&of)));
        }

        let destaged = per.flow(count(&|r| r.destaged));
        let dirty_bytes = chosen.iter().map(|(_, v)| v.dirty_bytes).sum::<u64>();
        let clean_in_seconds = match (dirty_bytes, destaged.bytes_per_second) {
            (0, _) => Some(0.0),
            (_, rate) if rate > 0.0 => Some(dirty_bytes as f64 / rate),
            _ => None,
        };
        let members = after.members.iter().map(|m| {
            let old = before.and_then(|b| b.members.iter().find(|old| old.number == m.number));
            per.device(m.number.to_string(), m.path.clone(), old.map(|m| m.load), m.load)
        });
        let with_disk = chosen.iter().filter(|(_, v)| !v.without_disk);
        let disks = with_disk.map(|(old, v)| per.device(v.name.clone(), v.backing.clone(), old.map(|v| v.disk), v.disk));
        Rates {
            seconds,
            reads: per.flow(reads),
            hit_percent: share(hit, reads),
            writes: per.flow(writes),
            absorbed_percent: share(absorbed, writes),
            flushes_per_second: per.second(number(&|r| r.flushes)),
            read_ms: took(&|v| v.times.read),
            write_ms: took(&|v| v.times.write),
            flush_ms: took(&|v| v.times.flush),
            errors_per_second: per.second(number(&|r| r.errors)),
            destaged,
            dirty_bytes,
            dirty_percent: after.dirty_percent,
            clean_in_seconds,
            members: members.collect(),
            disks: disks.collect(),
            fates,
        }
    }

    /// How busy the busiest of some devices was.
    pub fn busiest(devices: &[Device]) -> f64 {
        devices.iter().map(|device| device.busy_percent).fold(0.0, f64::max)
    }
}

/// Whether the daemon's counters began anew between two reports.
pub fn restarted(before: &Report, after: &Report) -> bool {
    let life = |report: &Report| Life {
        uptime_seconds: report.uptime_seconds,
        process: report.process,
        pause_seconds: report.pause_seconds,
    };
    life(after).is_another_than(&life(before))
}

/// What tells one life of a daemon from another.
pub struct Life {
    /// Seconds since its start.
    pub uptime_seconds: f64,
    /// Its process, which an upgrade keeps.
    pub process: u32,
    /// How long nobody answered while it took over, where it did.
    pub pause_seconds: Option<f64>,
}

impl Life {
    /// Whether counters began anew since they were those of `before`.
    pub fn is_another_than(&self, before: &Life) -> bool {
        self.uptime_seconds < before.uptime_seconds
            || (self.process, self.pause_seconds) != (before.process, before.pause_seconds)
    }
}

/// Counters to rates, over so many seconds.
struct Per(f64);

impl Per {
    fn second(&self, count: f64) -> f64 {
        count / self.0
    }

    fn flow(&self, pair: Pair) -> Flow {
        Flow { per_second: self.second(pair.requests as f64), bytes_per_second: self.second(pair.bytes as f64) }
    }

    fn device(&self, name: String, path: Option<String>, old: Option<Load>, new: Load) -> Device {
        // A device that was taken out and put back began at zero.
        let old = old.filter(|old| old.busy_seconds <= new.busy_seconds).unwrap_or_default();
        let (reads, writes) = (less(new.reads, old.reads), less(new.writes, old.writes));
        let flushes = new.flushes.saturating_sub(old.flushes);
        let zeroings = new.zeroings.saturating_sub(old.zeroings);
        let operations = reads.requests + writes.requests + flushes + zeroings;
        let waited = (new.waited_seconds - old.waited_seconds).max(0.0);
        Device {
            name,
            path,
            reads: self.flow(reads),
            writes: self.flow(writes),
            flushes_per_second: self.second(flushes as f64),
            busy_percent: (100.0 * self.second(new.busy_seconds - old.busy_seconds)).min(100.0),
            queue: self.second(waited),
            operation_ms: (operations > 0).then(|| waited * 1000.0 / operations as f64),
            failures_per_second: self.second(new.failed.saturating_sub(old.failed) as f64),
        }
    }
}

fn less(new: Pair, old: Pair) -> Pair {
    Pair { requests: new.requests.saturating_sub(old.requests), bytes: new.bytes.saturating_sub(old.bytes) }
}

fn plus(a: Pair, b: Pair) -> Pair {
    Pair { requests: a.requests + b.requests, bytes: a.bytes + b.bytes }
}

fn share(part: Pair, whole: Pair) -> Option<f64> {
    (whole.requests > 0).then(|| 100.0 * part.requests as f64 / whole.requests as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pair(requests: u64, bytes: u64) -> serde_json::Value {
        json!({ "requests": requests, "bytes": bytes })
    }

    /// A report of a daemon that has run for `seconds`, and did everything `n` times.
    fn report(seconds: f64, n: u64) -> Report {
        let load = json!({
            "reads": pair(n, n * 4096), "writes": pair(3 * n, n << 20), "flushes": n, "zeroings": 0, "failed": 0, "in_flight": 2,
            "busy_seconds": seconds / 2.0, "waited_seconds": seconds * 2.0
        });
        let took = json!({ "requests": n, "seconds": n as f64 * 0.002 });
        let volume = json!({
            "number": 0, "name": "v", "backing": "/dev/sdz", "identity": "z", "bytes": 1 << 30, "phase": 0, "mode": "write-back",
            "serving": true, "place": null, "cached_bytes": 8192, "dirty_bytes": 1 << 20, "map_bytes": 0, "destaging": true,
            "requests": {
                "hit": pair(3 * n, 3 * n * 4096), "partial_hit": pair(0, 0), "miss": pair(n, n * 4096), "read_bypass": pair(0, 0),
                "absorbed": pair(n, n * 512), "write_bypass": [["stream", pair(n, n << 20)], ["large", pair(0, 0)]],
                "zeroed": pair(0, 0), "admitted": pair(n, n * 4096), "destaged": pair(n, n * 4096), "flushes": n, "errors": 0
            },
            "times": { "read": took, "write": took, "flush": took, "zero": { "requests": 0, "seconds": 0.0 } },
            "disk": load
        });
        let member = json!({
            "number": 0, "path": "/dev/a", "state": "in sync", "bytes": 1, "segments": 1, "segments_free": 1, "dirty_bytes": 0,
            "load": load
        });
        serde_json::from_value(json!({
            "uptime_seconds": seconds, "pool": "p", "id": "00", "epoch": 1, "copies": 2, "degraded": false, "stalled": false,
            "segment_bytes": 1, "segments": 1, "segments_free": 1, "dirty_percent": 12, "lacking_bytes": 0, "members": [member],
            "volumes": [volume], "member_bytes": 0, "checkpoints": 0, "repaired": 0, "advice": []
        }))
        .unwrap()
    }

    #[test]
    fn what_happened_between_two_reports_is_divided_by_the_daemons_own_seconds() {
        let rates = Rates::between(Some(&report(10.0, 100)), &report(12.0, 300), None);
        assert_eq!(rates.reads, Flow { per_second: 400.0, bytes_per_second: 400.0 * 4096.0 });
        assert_eq!((rates.hit_percent, rates.absorbed_percent), (Some(75.0), Some(50.0)));
        assert_eq!((rates.flushes_per_second, rates.seconds), (100.0, 2.0));
        assert!((rates.read_ms.unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(rates.clean_in_seconds, Some(f64::from(1 << 20) / (100.0 * 4096.0)));
        let stream = rates.fates.iter().find(|fate| fate.reason.as_deref() == Some("stream")).unwrap();
        assert_eq!((stream.fate, stream.flow.per_second), ("write_bypass", 100.0));
        let member = &rates.members[0];
        assert_eq!((member.busy_percent, member.queue, member.writes.per_second), (50.0, 2.0, 300.0));
        assert_eq!(member.operation_ms, Some(4.0 * 1000.0 / 1000.0));
        assert_eq!((rates.disks[0].name.as_str(), Rates::busiest(&rates.disks)), ("v", 50.0));
    }

    #[test]
    fn a_daemon_that_was_restarted_began_at_zero() {
        let rates = Rates::between(Some(&report(1000.0, 1_000_000)), &report(2.0, 10), None);
        assert_eq!((rates.seconds, rates.reads.per_second), (2.0, 20.0));
        assert_eq!(rates, Rates::between(None, &report(2.0, 10), None));
    }

    /// One that came up soon after the report before, and was asked late, was taken for the one before it.
    #[test]
    fn a_daemon_that_has_run_for_longer_than_the_one_before_it_began_at_zero_too() {
        let before = Report { process: 7, ..report(5.0, 1000) };
        let restarted = Report { process: 8, ..report(50.0, 2000) };
        let upgraded = Report { process: 7, pause_seconds: Some(0.2), ..report(50.0, 2000) };
        for after in [restarted, upgraded] {
            assert_eq!(Rates::between(Some(&before), &after, None), Rates::between(None, &after, None));
            assert_eq!(Rates::between(Some(&after), &after, None).reads, Flow::default());
        }
    }

    #[test]
    fn where_nothing_happened_there_is_no_share_and_no_average() {
        let rates = Rates::between(Some(&report(10.0, 5)), &report(11.0, 5), Some("v"));
        assert_eq!((rates.hit_percent, rates.read_ms, rates.clean_in_seconds), (None, None, None));
        assert_eq!(Rates::between(None, &report(10.0, 5), Some("other")).reads, Flow::default());
    }
}
