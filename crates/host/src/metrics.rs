//! Metrics for Prometheus: what `headpond status` shows, and how long requests take, in its text format over HTTP.

use prometheus::TextEncoder;
use prometheus::proto::{self, Bucket, Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::histogram::Histogram;
use crate::report::{Load, Pair, Report, Volume};
use crate::requests::{Op, Table};

pub use http::Server;

mod http;

/// Upper bounds of times in nanoseconds: from 16 µs to about 67 s.
const TIMES: [u64; 23] = doubled(16_000);
/// Upper bounds of sizes in bytes: from 512 to 16 MiB.
const SIZES: [u64; 16] = doubled(512);

const fn doubled<const N: usize>(first: u64) -> [u64; N] {
    let (mut bounds, mut n) = ([first; N], 1);
    while n < N {
        bounds[n] = bounds[n - 1] * 2;
        n += 1;
    }
    bounds
}

/// What is served at `/metrics`: the whole text, or nothing if the engine has ended.
pub type Source = dyn Fn() -> Option<String> + Send + Sync;

/// Families, in the order in which they are shown.
struct Text {
    pool: String,
    families: Vec<MetricFamily>,
}

type Labels<'a> = &'a [(&'a str, &'a str)];

impl Text {
    fn label(name: &str, value: &str) -> LabelPair {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    }

    fn add(&mut self, kind: MetricType, name: &str, help: &str, labels: Labels<'_>, set: impl FnOnce(&mut Metric)) {
        let own = [("pool", self.pool.as_str())];
        let mut metric = Metric::from_label(own.iter().chain(labels).map(|(name, value)| Self::label(name, value)).collect());
        set(&mut metric);
        let name = format!("headpond_{name}");
        let family = match self.families.iter_mut().position(|family| family.name() == name) {
            Some(n) => &mut self.families[n],
            None => {
                let mut family = MetricFamily::default();
                family.set_name(name);
                family.set_help(help.to_owned());
                family.set_field_type(kind);
                self.families.push(family);
                self.families.last_mut().expect("just pushed")
            }
        };
        family.mut_metric().push(metric);
    }

    fn gauge(&mut self, name: &str, help: &str, labels: Labels<'_>, value: f64) {
        self.add(MetricType::GAUGE, name, help, labels, |metric| {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        });
    }

    fn counter(&mut self, name: &str, help: &str, labels: Labels<'_>, value: u64) {
        self.counter_f64(name, help, labels, value as f64);
    }

    fn counter_f64(&mut self, name: &str, help: &str, labels: Labels<'_>, value: f64) {
        self.add(MetricType::COUNTER, name, help, labels, |metric| {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        });
    }

    /// `bounds` are some of the histogram's own; what is shown is their `unit`-th parts.
    fn histogram(&mut self, name: &str, help: &str, labels: Labels<'_>, values: &Histogram, bounds: &[u64], unit: f64) {
        self.add(MetricType::HISTOGRAM, name, help, labels, |metric| {
            let mut histogram = proto::Histogram::default();
            histogram.set_sample_count(values.count());
            histogram.set_sample_sum(values.sum() as f64 / unit);
            let buckets = bounds.iter().map(|bound| {
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(*bound as f64 / unit);
                bucket.set_cumulative_count(values.up_to(*bound));
                bucket
            });
            histogram.set_bucket(buckets.collect());
            metric.set_histogram(histogram);
        });
    }
}

/// The metrics of a daemon as text.
///
/// # Errors
/// None that could come of a report: names and labels are fixed.
pub fn render(report: &Report, requests: &Table) -> Result<String, prometheus::Error> {
    let mut text = Text { pool: report.pool.clone(), families: Vec::new() };
    of_pool(&mut text, report);
    for volume in &report.volumes {
        of_volume(&mut text, volume);
    }
    for (number, op, fate, seen) in requests.iter() {
        let Some(volume) = report.volumes.iter().find(|volume| volume.number == number) else { continue };
        let fate = fate.map_or("", |fate| fate.name());
        let labels = [("volume", volume.name.as_str()), ("op", op.name()), ("fate", fate)];
        let help = "Time from a request's arrival at the engine to its answer, by what became of it";
        text.histogram("request_duration_seconds", help, &labels, &seen.times, &TIMES, 1e9);
        if op != Op::Flush {
            text.histogram("request_size_bytes", "Bytes of requests, by what became of them", &labels, &seen.sizes, &SIZES, 1.0);
        }
    }
    TextEncoder::new().encode_to_string(&text.families)
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

fn of_pool(text: &mut Text, r: &Report) {
    let version = [("version", env!("CARGO_PKG_VERSION")), ("id", r.id.as_str())];
    text.gauge("build_info", "The daemon's version and its pool's identity; always 1", &version, 1.0);
    let help = "1 while fewer cache devices are left than copies of dirty data are promised";
    text.gauge("pool_degraded", help, &[], flag(r.degraded));
    let help = "Dirty bytes on fewer cache devices than they could be on: they are being copied";
    text.gauge("pool_lacking_bytes", help, &[], r.lacking_bytes as f64);
    text.gauge("pool_stalled", "1 while too few cache devices and votes answer", &[], flag(r.stalled));
    text.gauge(
        "pool_witness_lags",
        "1 while the witness may not know which cache devices are in the pool",
        &[],
        flag(r.witness_lags),
    );
    text.gauge("pool_epoch", "The pool's membership counter", &[], r.epoch as f64);
    text.gauge("pool_copies", "Copies of dirty data that the pool promises", &[], r.copies.into());
    text.gauge("pool_segments", "Segments on all cache devices", &[], r.segments as f64);
    text.gauge("pool_segments_free", "Free segments on all cache devices", &[], r.segments_free as f64);
    let help = "Room set aside for volumes without a backing device, each byte with its copies";
    text.gauge("pool_set_aside_bytes", help, &[], r.set_aside_bytes as f64);
    let e = &r.endurance;
    let help = "How many times its size each cache device may be written in a day; 0: no budget";
    text.gauge("pool_drive_writes_per_day", help, &[], e.drive_writes_per_day);
    let help = "1 while the budget of drive writes holds back what reads miss, or new writes";
    text.gauge("pool_held_back", help, &[("what", "reads")], flag(e.reads_held_back));
    text.gauge("pool_held_back", help, &[("what", "writes")], flag(e.writes_held_back));
    text.gauge("pool_dirty_ratio", "How full the room for dirty data is, 0 to 1", &[], f64::from(r.dirty_percent) / 100.0);
    let help =
        "Bytes of the map not read yet since the start; while there are any, cached and dirty bytes are at least what is told";
    text.gauge("pool_map_unread_bytes", help, &[], r.loading.map_or(0, |it| it.bytes - it.read_bytes) as f64);
    text.gauge("pool_problems", "Things that `headpond status` says are wrong", &[], r.advice.len() as f64);
    text.counter("pool_written_bytes_total", "Bytes written to cache devices, all copies", &[], r.member_bytes);
    text.counter("pool_checkpoints_total", "Checkpoints taken", &[], r.checkpoints);
    text.gauge("pool_scrub_running", "1 while a scrub reads what the cache holds", &[], flag(r.scrub.running));
    text.gauge("pool_scrub_damaged", "Damaged copies that the last scrub found, or this one so far", &[], r.scrub.damaged as f64);
    text.gauge("pool_scrub_lost", "Of these, dirty pieces damaged on all copies", &[], r.scrub.lost as f64);
    if let Some(ended) = r.scrub.ended {
        text.gauge("pool_scrub_ended_seconds", "When the last scrub ended, since 1970", &[], ended as f64);
    }
    text.counter("pool_repaired_pieces_total", "Pieces repaired from the other copy", &[], r.repaired);
    for m in &r.members {
        let number = m.number.to_string();
        let labels = [("member", number.as_str()), ("path", m.path.as_deref().unwrap_or_default())];
        text.gauge("member_in_sync", "1 if the cache device holds all that it should", &labels, flag(m.state == "in sync"));
        text.gauge("member_size_bytes", "Size of the cache device", &labels, m.bytes as f64);
        text.gauge("member_segments", "Segments on the cache device", &labels, m.segments.into());
        text.gauge("member_segments_free", "Free segments on the cache device", &labels, m.segments_free.into());
        let help = "Copies found damaged on the cache device, or that it could not read, each as often as it was found";
        text.counter("member_damaged_total", help, &labels, m.damaged);
        let help = "Bytes written to the cache device in the last 23 to 24 hours, or since the start";
        text.gauge("member_written_day_bytes", help, &labels, m.written_day_bytes as f64);
        let help = "Bytes that the cache device may be written in a day; 0: no budget";
        text.gauge("member_budget_day_bytes", help, &labels, m.budget_day_bytes as f64);
        let help = "Bytes that the cache device's budget has left; negative where more had to be written";
        text.gauge("member_budget_left_bytes", help, &labels, m.budget_left_bytes as f64);
        of_device(text, "member", &labels, &m.load);
    }
}

/// What a cache device or a disk was asked to do.
fn of_device(text: &mut Text, kind: &str, labels: Labels<'_>, l: &Load) {
    let name = |what: &str| format!("{kind}_{what}");
    text.counter(&name("reads_total"), "Reads that the device was asked for", labels, l.reads.requests);
    text.counter(&name("read_bytes_total"), "Bytes of these reads", labels, l.reads.bytes);
    text.counter(&name("writes_total"), "Writes that the device was asked for", labels, l.writes.requests);
    text.counter(&name("written_bytes_total"), "Bytes of these writes", labels, l.writes.bytes);
    let help = "Bytes of reads and writes between clients' own memory and the device, without a copy";
    text.counter(&name("zero_copy_bytes_total"), help, labels, l.zero_copy_bytes);
    text.counter(&name("flushes_total"), "Flushes that the device was asked for", labels, l.flushes);
    text.counter(&name("failures_total"), "Operations of the device that failed", labels, l.failed);
    text.gauge(&name("in_flight"), "Operations on their way to the device", labels, l.in_flight as f64);
    text.counter_f64(&name("busy_seconds_total"), "Time with an operation on its way to the device", labels, l.busy_seconds);
    let help = "Time of all operations of the device added up";
    text.counter_f64(&name("waited_seconds_total"), help, labels, l.waited_seconds);
}

fn of_volume(text: &mut Text, v: &Volume) {
    let own = [("volume", v.name.as_str())];
    text.gauge("volume_serving", "1 while requests are answered", &own, flag(v.serving));
    text.gauge("volume_size_bytes", "Size of the volume", &own, v.bytes as f64);
    text.gauge("volume_cached_bytes", "Bytes cached, dirty ones included", &own, v.cached_bytes as f64);
    text.gauge("volume_dirty_bytes", "Bytes that the disk does not have yet", &own, v.dirty_bytes as f64);
    let help = "Bytes that a volume without a backing device holds, on the cache devices alone";
    text.gauge("volume_kept_bytes", help, &own, v.kept_bytes as f64);
    text.gauge("volume_pinned_bytes", "Bytes that are pinned", &own, v.pinned_bytes as f64);
    let share = &v.share;
    text.gauge("volume_held_bytes", "Bytes of the segments that the volume holds, all copies", &own, share.held_bytes as f64);
    text.gauge(
        "volume_min_share_ratio",
        "Part of the pool that others leave to it, 0 to 1",
        &own,
        f64::from(share.min_percent) / 100.0,
    );
    text.gauge(
        "volume_max_share_ratio",
        "Part of the pool that it takes at most, 0 to 1",
        &own,
        f64::from(share.max_percent) / 100.0,
    );
    text.gauge("volume_map_bytes", "Memory of the volume's map", &own, v.map_bytes as f64);
    text.gauge("volume_destaging", "1 while dirty data is written to the disk", &own, flag(v.destaging));
    if !v.without_disk {
        of_device(text, "disk", &own, &v.disk);
    }
    let mode = [("volume", v.name.as_str()), ("mode", v.mode.as_str())];
    text.gauge("volume_mode", "The volume's mode; always 1", &mode, 1.0);
    let r = &v.requests;
    text.counter("volume_flushes_total", "Flushes", &own, r.flushes);
    text.counter("volume_errors_total", "Requests that failed", &own, r.errors);
    let named = [
        ("hit", r.hit),
        ("hit_beside", r.hit_beside),
        ("partial_hit", r.partial_hit),
        ("miss", r.miss),
        ("read_bypass", r.read_bypass),
        ("absorbed", r.absorbed),
        ("zeroed", r.zeroed),
        ("admitted", r.admitted),
        ("read_around", r.read_around),
        ("held_back", r.held_back),
        ("destaged", r.destaged),
    ];
    let fates = named.map(|(fate, pair)| (fate, "", pair)).into_iter();
    let bypassed = r.write_bypass.iter().map(|(reason, pair)| ("write_bypass", reason.as_str(), *pair));
    for (fate, reason, Pair { requests, bytes }) in fates.chain(bypassed) {
        let labels = [("volume", v.name.as_str()), ("fate", fate), ("reason", reason)];
        text.counter("volume_requests_total", "What became of requests, and why", &labels, requests);
        text.counter("volume_request_bytes_total", "Bytes of requests, by what became of them, and why", &labels, bytes);
    }
}
