//! The parts of the screen, as lines of a width.

use headpond_host::histogram::Histogram;
use headpond_host::requests::Op;
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};

use super::seen::Seen;
use crate::seeing::bars::{bar, bound, time};
use crate::seeing::kinds::Kinds;
use crate::seeing::rates::{Device, Rates};
use crate::size;

/// Cells of the name of a volume or a device.
const NAME: usize = 9;

fn mib(bytes_per_second: f64) -> f64 {
    bytes_per_second / f64::from(1 << 20)
}

/// A count in at most six letters.
fn count(value: f64) -> String {
    match value {
        v if v < 99_999.5 => format!("{v:.0}"),
        v if v < 9_999_500.0 => format!("{:.0}k", v / 1e3),
        v => format!("{:.0}M", v / 1e6),
    }
}

/// MiB in at most six letters.
fn rate(bytes_per_second: f64) -> String {
    let value = mib(bytes_per_second);
    if value < 999.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.0}"))
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        text.to_owned()
    } else {
        text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
    }
}

fn header(text: String) -> Line<'static> {
    Line::from(text).style(Style::new().bold().underlined())
}

/// Rates and latencies, a row for each volume, and one for all where there are several.
pub fn volumes(seen: &Seen, rows: usize) -> Vec<Line<'static>> {
    let columns = format!(
        "{:<NAME$}{:>7}{:>7}{:>5}{:>7}{:>7}{:>7}{:>7}{:>5}{:>7}{:>7}{:>5}",
        "volume", "r/s", "MiB/s", "hit%", "p50", "p99", "w/s", "MiB/s", "abs%", "p50", "p99", "err"
    );
    let mut lines = vec![header(columns)];
    if seen.volumes.len() != 1 {
        lines.push(volume("all", &seen.all, &seen.kinds).bold());
    }
    let room = (rows + 1).saturating_sub(lines.len());
    let each = seen.report.volumes.iter().zip(&seen.volumes).take(room);
    lines.extend(each.map(|(v, (rates, kinds))| volume(&v.name, rates, kinds)));
    lines
}

fn volume(name: &str, rates: &Rates, kinds: &Kinds) -> Line<'static> {
    let quantile = |op: Op, share: f64| kinds.of(op).times.quantile(share).map_or_else(|| "-".into(), time);
    let errors = format!("{:>5}", count(rates.errors_per_second));
    Line::from(vec![
        Span::raw(format!(
            "{:<NAME$}{:>7}{:>7}{:>5}{:>7}{:>7}{:>7}{:>7}{:>5}{:>7}{:>7}",
            cut(name, NAME - 1),
            count(rates.reads.per_second),
            rate(rates.reads.bytes_per_second),
            percent(rates.hit_percent),
            quantile(Op::Read, 0.5),
            quantile(Op::Read, 0.99),
            count(rates.writes.per_second),
            rate(rates.writes.bytes_per_second),
            percent(rates.absorbed_percent),
            quantile(Op::Write, 0.5),
            quantile(Op::Write, 0.99),
        )),
        if rates.errors_per_second > 0.0 { Span::from(errors).red().bold() } else { Span::raw(errors) },
    ])
}

/// What became of requests, and why: the reasons of bypassed writes that there are, with their share of reads or writes.
pub fn fates(rates: &Rates, width: usize, rows: usize) -> Vec<Line<'static>> {
    let mut lines = vec![header(format!("{:<17}{:>7}{:>6}", "became of them", "/s", "%"))];
    for fate in &rates.fates {
        let name = match (fate.fate, &fate.reason) {
            ("hit", _) => "read: hit".into(),
            ("partial_hit", _) => "read: partly hit".into(),
            ("miss", _) => "read: miss".into(),
            ("read_bypass", _) => "read: past cache".into(),
            ("absorbed", _) => "write: absorbed".into(),
            (_, Some(reason)) if fate.flow.per_second > 0.0 => format!("past: {reason}"),
            _ => continue,
        };
        let all = if name.starts_with("read") { rates.reads } else { rates.writes };
        let share = if all.per_second > 0.0 { fate.flow.per_second / all.per_second } else { 0.0 };
        let bar = bar(share, width.saturating_sub(32));
        lines.push(Line::from(format!("{name:<17}{:>7}{:>6.1} {bar}", count(fate.flow.per_second), share * 100.0)));
    }
    lines.truncate(rows);
    lines
}

/// Histograms of reads and writes side by side, in as many rows as there are.
fn histogram(
    title: &str,
    kinds: &Kinds,
    width: usize,
    rows: usize,
    (first, last): (u64, u64),
    show: fn(u64) -> String,
    of: fn(&crate::seeing::kinds::Pair) -> &Histogram,
) -> Vec<Line<'static>> {
    let bars = width.saturating_sub(10) / 2;
    let mut lines = vec![header(format!("{title:<8} {:<bars$} {:<bars$}", cut("reads", bars), cut("writes", bars)))];
    let wanted = rows.saturating_sub(1);
    let doublings = (last / first).ilog2() as usize;
    let times = if doublings + 2 <= wanted { 2 } else { 4 };
    // Where there is not room for all, the largest share a row.
    let steps = (doublings / if times == 2 { 1 } else { 2 }).min(wanted.saturating_sub(2)) as u32;
    let last = first * u64::pow(times, steps);
    let [reads, writes] = [Op::Read, Op::Write].map(|op| of(&kinds.of(op)).doublings(first, last, times));
    let most = |rows: &[(Option<u64>, u64)]| rows.iter().map(|row| row.1).max().unwrap_or(0).max(1) as f64;
    let (most_reads, most_writes) = (most(&reads), most(&writes));
    for ((upper, read), (_, write)) in reads.iter().zip(&writes) {
        let label = upper.map_or_else(|| "more".into(), show);
        let (read, write) = (bar(*read as f64 / most_reads, bars), bar(*write as f64 / most_writes, bars));
        lines.push(Line::from(vec![
            Span::raw(format!("{label:>8} ")),
            Span::from(format!("{read:<bars$} ")).cyan(),
            Span::from(format!("{write:<bars$}")).yellow(),
        ]));
    }
    lines.truncate(rows);
    lines
}

/// How long requests took.
pub fn times(kinds: &Kinds, width: usize, rows: usize) -> Vec<Line<'static>> {
    histogram("latency", kinds, width, rows, (16_000, 16_000 << 16), time, |pair| &pair.times)
}

/// How large they were.
pub fn sizes(kinds: &Kinds, width: usize, rows: usize) -> Vec<Line<'static>> {
    histogram("size", kinds, width, rows, (1024, 1 << 20), bound, |pair| &pair.sizes)
}

/// How busy the cache devices and the disks are, the disks last.
pub fn devices(rates: &Rates, width: usize, rows: usize) -> Vec<Line<'static>> {
    let columns = format!(
        "{:<NAME$}{:>7}{:>7}{:>7}{:>7}{:>6}{:>7}{:>8} {:<12}",
        "device", "r/s", "MiB/s", "w/s", "MiB/s", "fl/s", "queue", "time", "busy"
    );
    let mut lines = vec![header(format!("{columns:<width$}"))];
    let members = rates.members.iter().map(|device| ("ssd", device));
    let disks = rates.disks.iter().map(|device| ("disk", device));
    let room = rows.saturating_sub(1);
    // Where not all have room, the disks go before the last SSDs.
    let shown = room.saturating_sub(disks.len().min(room.saturating_sub(1)));
    lines.extend(members.take(shown).chain(disks).map(|(kind, device)| device_row(kind, device, width)));
    lines.truncate(rows);
    lines
}

fn device_row(kind: &str, d: &Device, width: usize) -> Line<'static> {
    let name = cut(&format!("{kind} {}", d.name), NAME - 1);
    let took = d.operation_ms.map_or_else(|| "-".into(), |ms| time((ms * 1e6) as u64));
    let text = format!(
        "{name:<NAME$}{:>7}{:>7}{:>7}{:>7}{:>6}{:>7.1}{took:>8} {:>3.0}% {:<8}",
        count(d.reads.per_second),
        rate(d.reads.bytes_per_second),
        count(d.writes.per_second),
        rate(d.writes.bytes_per_second),
        count(d.flushes_per_second),
        d.queue,
        d.busy_percent,
        bar(d.busy_percent / 100.0, 8),
    );
    let left = width.saturating_sub(text.chars().count() + 1);
    let path = d.path.as_deref().filter(|path| left > 8 && !path.is_empty()).map(|path| cut(path, left)).unwrap_or_default();
    let failing =
        (d.failures_per_second > 0.0).then(|| Span::from(format!(" {} fail/s", count(d.failures_per_second))).red().bold());
    Line::from([Some(Span::raw(text)), failing, Some(Span::raw(format!(" {path}")))].into_iter().flatten().collect::<Vec<_>>())
}

/// What is dirty, how fast it gets less, and when nothing would be left.
pub fn destage(seen: &Seen, width: usize) -> Line<'static> {
    let rates = &seen.all;
    let full = f64::from(rates.dirty_percent) / 100.0;
    let cells = (width / 8).clamp(8, 24);
    let progress = match (rates.dirty_bytes, rates.clean_in_seconds) {
        // What is on the cache devices alone is on no disk, and waits for none.
        (0, _) if seen.report.volumes.iter().any(|v| v.without_disk) => "nothing waits for the disks".into(),
        (0, _) => "all is on the disks".into(),
        (_, Some(left)) => format!("destaging {} MiB/s, clean in about {}", rate(rates.destaged.bytes_per_second), age(left)),
        _ => "destage rests".into(),
    };
    Line::from(vec![
        Span::from("dirty ").bold(),
        Span::raw(size::show(rates.dirty_bytes)),
        Span::raw(format!(" ▕{:<cells$}▏{} % of the room; ", bar(full, cells), rates.dirty_percent)),
        Span::raw(progress),
    ])
}

/// Seconds as people say them.
pub fn age(seconds: f64) -> String {
    let s = seconds.ceil() as u64;
    match s {
        0..120 => format!("{s} s"),
        120..7200 => format!("{} min", s.div_ceil(60)),
        7200..172_800 => format!("{} h", s.div_ceil(3600)),
        _ => format!("{} d", s.div_ceil(86_400)),
    }
}
