//! Loads: streams and random writes, with a series of what they reached; and the check of what they wrote.

use super::pattern::{SECTOR, mix};
use super::record::{Record, Verdict};
use super::target::Target;
use anyhow::{Result, bail};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The grain of a series.
pub const BUCKET: Duration = Duration::from_millis(250);
/// Bytes of a random write.
pub const RANDOM_BYTES: usize = 4096;
/// Bytes of a read while checking, and how many are outstanding.
const CHECK_BYTES: usize = 1 << 20;
const CHECK_DEPTH: usize = 8;

/// In which order a load goes through its region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// From front to back, again and again, in requests of this many bytes.
    Stream(usize),
    /// 4 KiB at a time, aligned, anywhere.
    Random,
    /// Anywhere, from one sector to 1 MiB, so that what goes past the cache meets what is in it.
    Mixed,
}

/// Most bytes of a mixed request.
const MIXED_BYTES: usize = 1 << 20;

impl Shape {
    /// Bytes of a request, or the most that there are.
    fn bytes(self) -> usize {
        match self {
            Shape::Stream(bytes) => bytes,
            Shape::Random => RANDOM_BYTES,
            Shape::Mixed => MIXED_BYTES,
        }
    }
}

/// A write that was sent.
struct Sent {
    write: u32,
    sectors: Range<u64>,
    begun: Instant,
}

/// What a load reached: bytes and answers per bucket, and how long each answer took.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Series {
    /// Bytes acknowledged in each [`BUCKET`] from the start.
    pub bytes: Vec<u64>,
    /// In microseconds, in no order.
    pub latencies_us: Vec<u32>,
}

/// From when to when a load runs. What is outstanding at the end is waited for, and not counted.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    /// The start of the series.
    pub start: Instant,
    /// How long.
    pub length: Duration,
    /// Ends everything early.
    pub stop: &'a AtomicBool,
}

/// Why a load ended before its time.
#[derive(Debug)]
pub struct Broken(pub anyhow::Error);

/// A load, its region, and what it knows of it.
pub struct Load {
    /// What was acknowledged.
    pub record: Record,
    shape: Shape,
    depth: usize,
    /// How many requests were chosen: the place of a stream, the state of the dice.
    step: u64,
}

impl Load {
    /// A load of this shape with `depth` requests outstanding.
    pub fn new(record: Record, shape: Shape, depth: usize) -> Load {
        Load { record, shape, depth, step: 0 }
    }

    /// Changes the shape and how many requests are outstanding. A stream begins at the front again.
    pub fn reshape(&mut self, shape: Shape, depth: usize) {
        if matches!(shape, Shape::Stream(_)) {
            self.step = 0;
        }
        (self.shape, self.depth) = (shape, depth);
    }

    /// Bytes of a request, or the most that there are.
    pub fn request_bytes(&self) -> u64 {
        self.shape.bytes() as u64
    }

    /// Writes until the time is over, then flushes. On an error what was outstanding counts as in flight.
    pub fn run(&mut self, target: &mut dyn Target, span: Span<'_>) -> Result<Series, Broken> {
        let result = self.write(target, span);
        if result.is_err() {
            self.record.lost_connection();
        }
        result.map_err(Broken)
    }

    fn write(&mut self, target: &mut dyn Target, span: Span<'_>) -> Result<Series> {
        let mut series =
            Series { bytes: vec![0; span.length.div_duration_f64(BUCKET).ceil() as usize], latencies_us: Vec::new() };
        let mut outstanding: HashMap<u64, Sent> = HashMap::with_capacity(self.depth);
        let mut room = vec![0; self.shape.bytes()];
        let until = span.start + span.length;
        loop {
            let running = Instant::now() < until && !span.stop.load(Ordering::Relaxed);
            while running && outstanding.len() < self.depth {
                let sectors = self.choose(&outstanding);
                let data = &mut room[..(sectors.end - sectors.start) as usize * SECTOR];
                let write = self.record.begin(sectors.start, data);
                let cookie = target.write(sectors.start * SECTOR as u64, data)?;
                outstanding.insert(cookie, Sent { write, sectors, begun: Instant::now() });
            }
            let Some(done) = target.next()? else { break };
            let now = Instant::now();
            let Some(Sent { write, sectors, begun }) = outstanding.remove(&done.cookie) else { bail!("an answer to nothing") };
            if let Err(why) = done.result {
                bail!("a write at sector {} failed: {why}", sectors.start);
            }
            self.record.acknowledge(write);
            let bucket = now.saturating_duration_since(span.start).as_nanos() / BUCKET.as_nanos();
            if let Some(bytes) = series.bytes.get_mut(bucket as usize) {
                *bytes += (sectors.end - sectors.start) * SECTOR as u64;
                series.latencies_us.push(now.duration_since(begun).as_micros().min(u128::from(u32::MAX)) as u32);
            }
        }
        flush(target)?;
        Ok(series)
    }

    /// The sectors of the next write, on which nothing is outstanding.
    fn choose(&mut self, outstanding: &HashMap<u64, Sent>) -> Range<u64> {
        let region = self.record.region();
        let length = region.end - region.start;
        loop {
            let dice = mix(self.step);
            self.step = self.step.wrapping_add(1);
            // The unit in which requests are aligned, and how many units there are in this one.
            let (unit, units) = match self.shape {
                Shape::Stream(bytes) => ((bytes / SECTOR) as u64, 1),
                Shape::Random => ((RANDOM_BYTES / SECTOR) as u64, 1),
                // Mostly small, and now and then one of any power of two.
                Shape::Mixed => (1, 1 << [0, 1, 3, 3, 3, 4, 7, dice % 12][(dice >> 4) as usize % 8]),
            };
            let places = (length - units * unit) / unit + 1;
            let place = if matches!(self.shape, Shape::Stream(_)) { self.step - 1 } else { mix(dice) };
            let start = region.start + place % places * unit;
            let sectors = start..start + units * unit;
            if outstanding.values().all(|it| it.sectors.end <= sectors.start || sectors.end <= it.sectors.start) {
                return sectors;
            }
        }
    }
}

/// Makes durable what was acknowledged.
pub fn flush(target: &mut dyn Target) -> Result<()> {
    target.flush()?;
    match target.next()?.map(|done| done.result) {
        Some(Err(why)) => bail!("a flush failed: {why}"),
        _ => Ok(()),
    }
}

/// Reads a region and holds it against its record.
pub fn check(record: &mut Record, target: &mut dyn Target, stop: &AtomicBool) -> Result<Verdict> {
    let region = record.region();
    let mut verdict = Verdict::default();
    let mut outstanding = HashMap::new();
    let mut next = region.start;
    loop {
        while next < region.end && outstanding.len() < CHECK_DEPTH {
            let sectors = ((CHECK_BYTES / SECTOR) as u64).min(region.end - next);
            outstanding.insert(target.read(next * SECTOR as u64, (sectors * SECTOR as u64) as u32)?, next);
            next += sectors;
        }
        let Some(done) = target.next()? else { return Ok(verdict) };
        let Some(sector) = outstanding.remove(&done.cookie) else { bail!("an answer to nothing") };
        match done.result {
            Ok(data) => verdict.add(record.check(sector, &data)),
            Err(why) => bail!("reading at sector {sector} failed: {why}"),
        }
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::{self, SIZE};
    use super::super::record::Before;
    use super::*;

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn span(length: Duration, stop: &AtomicBool) -> Span<'_> {
        Span { start: Instant::now(), length, stop }
    }

    fn halves() -> [Load; 2] {
        let half = SIZE as u64 / 2 / SECTOR as u64;
        let stream = Record::new(0..half, 1, Before::Zeroes);
        let random = Record::new(half..2 * half, 2, Before::Zeroes);
        [Load::new(stream, Shape::Stream(1 << 20), 4), Load::new(random, Shape::Random, 32)]
    }

    #[test]
    fn what_loads_wrote_is_there_and_counted() {
        let (_server, place, _dir) = memory::serve(None);
        for mut load in halves() {
            let mut target = place.open(Duration::ZERO).unwrap();
            let series = load.run(&mut *target, span(BUCKET * 3, &NEVER)).unwrap();
            assert_eq!(series.bytes.len(), 3);
            let bytes: u64 = series.bytes.iter().sum();
            assert_eq!(bytes, series.latencies_us.len() as u64 * load.shape.bytes() as u64);
            let verdict = check(&mut load.record, &mut *target, &NEVER).unwrap();
            assert_eq!((verdict.sectors, verdict.wrong), (SIZE as u64 / 2 / SECTOR as u64, 0));
            assert!(verdict.acknowledged > 0 && verdict.from_in_flight == 0);
        }
    }

    #[test]
    fn a_server_that_loses_one_write_in_a_hundred_is_found_out() {
        let (_server, place, _dir) = memory::serve(Some(100));
        let [_, mut random] = halves();
        let mut target = place.open(Duration::ZERO).unwrap();
        // On a busy machine too there are hundreds of writes in this time.
        random.run(&mut *target, span(BUCKET * 8, &NEVER)).unwrap();
        assert!(check(&mut random.record, &mut *target, &NEVER).unwrap().wrong > 0);
    }

    #[test]
    fn after_a_server_died_in_mid_write_all_that_it_acknowledged_is_asked_for() {
        let (server, place, _dir) = memory::serve(None);
        let [mut stream, mut random] = halves();
        let [mut a, mut b] = [place.open(Duration::ZERO).unwrap(), place.open(Duration::ZERO).unwrap()];
        let broken = std::thread::scope(|scope| {
            let stream = scope.spawn(|| stream.run(&mut *a, span(Duration::from_secs(30), &NEVER)).is_err());
            let random = scope.spawn(|| random.run(&mut *b, span(Duration::from_secs(30), &NEVER)).is_err());
            std::thread::sleep(BUCKET * 4);
            // Cuts the connections off; the disk in memory stays.
            server.shutdown(Duration::ZERO);
            stream.join().unwrap() && random.join().unwrap()
        });
        assert!(broken);
        let _server = memory::restart(&place);
        let mut target = place.open(Duration::from_secs(60)).unwrap();
        for load in [&mut stream, &mut random] {
            let verdict = check(&mut load.record, &mut *target, &NEVER).unwrap();
            assert_eq!(verdict.wrong, 0, "{:?}", verdict.findings);
            assert!(verdict.acknowledged > 0);
        }
    }

    #[test]
    fn a_load_stops_when_told_to() {
        let (_server, place, _dir) = memory::serve(None);
        let [_, mut random] = halves();
        let begun = Instant::now();
        let mut target = place.open(Duration::ZERO).unwrap();
        random.run(&mut *target, span(Duration::from_secs(30), &AtomicBool::new(true))).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(25));
    }

    #[test]
    fn mixed_writes_of_all_lengths_stay_in_their_region_and_apart() {
        let (_server, place, _dir) = memory::serve(None);
        let mut load = Load::new(Record::new(8191..SIZE as u64 / SECTOR as u64 - 3, 3, Before::Zeroes), Shape::Mixed, 16);
        let mut target = place.open(Duration::ZERO).unwrap();
        load.run(&mut *target, span(BUCKET * 2, &NEVER)).unwrap();
        let verdict = check(&mut load.record, &mut *target, &NEVER).unwrap();
        assert!(verdict.wrong == 0 && verdict.acknowledged > 4096, "{verdict:?}");
    }

    #[test]
    fn a_file_takes_loads_as_a_volume_does() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("disk");
        std::fs::File::create(&path).unwrap().set_len(SIZE as u64).unwrap();
        let place = super::super::target::Place::File { path, depth: 8 };
        for mut load in halves() {
            let mut target = place.open(Duration::ZERO).unwrap();
            load.run(&mut *target, span(BUCKET, &NEVER)).unwrap();
            assert_eq!(check(&mut load.record, &mut *target, &NEVER).unwrap().wrong, 0);
        }
    }
}
