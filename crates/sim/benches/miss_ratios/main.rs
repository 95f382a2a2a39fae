//! Miss ratios of published replacement policies on block traces.
//!
//! `cargo bench -p headpond-sim --bench miss_ratios -- TRACE...`, with the traces as plain text in a format of
//! [`trace`]. Caches of 1, 5, 10 and 25 % of a trace's footprint start empty; reads and writes both count, and
//! both insert. Where a trace tells them apart, a second table counts the misses of reads alone, with the same caches.
//! Without traces, and under `cargo test`, it only checks itself.

mod arc;
mod headpond;
mod lirs;
mod lru;
mod min;
mod queue;
mod s3_fifo;
mod sieve;
mod trace;
mod w_tinylfu;

use headpond_sim::rng::Rng;
use std::collections::HashSet;
use std::process::ExitCode;
use trace::Trace;

/// A cache of blocks that decides what it holds.
pub trait Policy {
    /// One access: true if the block was held.
    fn access(&mut self, block: u64) -> bool;
    /// How many blocks are held: never more than the capacity.
    fn held(&self) -> usize;
}

/// The policies compared, with room for `capacity` blocks, which is not 0.
fn policies(capacity: usize) -> Vec<(&'static str, Box<dyn Policy>)> {
    vec![
        ("LRU", Box::new(lru::Lru::new(capacity))),
        ("ARC", Box::new(arc::Arc::new(capacity))),
        ("LIRS", Box::new(lirs::Lirs::new(capacity))),
        ("S3-FIFO", Box::new(s3_fifo::S3Fifo::new(capacity))),
        ("SIEVE", Box::new(sieve::Sieve::new(capacity))),
        ("W-TinyLFU", Box::new(w_tinylfu::WTinyLfu::new(capacity))),
        (OWN, Box::new(headpond::Headpond::new(capacity))),
    ]
}

/// The row that is compared with the best of the others.
const OWN: &str = "Headpond";
const PERCENTS: [usize; 4] = [1, 5, 10, 25];

fn main() -> ExitCode {
    check();
    // `cargo bench` says --bench, `cargo test` does not: words that come without it are names of tests.
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let traces: Vec<_> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    if traces.is_empty() || !arguments.iter().any(|a| a == "--bench") {
        println!("no traces: cargo bench -p headpond-sim --bench miss_ratios -- TRACE... (plain text, by absolute path)");
        return ExitCode::SUCCESS;
    }
    for path in traces {
        let read = std::fs::read(path).map_err(|e| e.to_string());
        let text = read.and_then(|bytes| String::from_utf8(bytes).map_err(|_| "not text: is it compressed?".into()));
        match text.and_then(|text| Trace::parse(&text)) {
            Ok(trace) => compare(path, &trace),
            Err(e) => {
                eprintln!("{path}: {e}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// A policy, and which accesses hit in its cache of each capacity.
type Row<'a> = (&'a str, [Vec<bool>; 4]);

/// Prints the tables of one trace.
fn compare(path: &str, trace: &Trace) {
    let footprint = trace.footprint();
    let capacities = PERCENTS.map(|percent| (footprint * percent / 100).max(1));
    let mut rows: Vec<Row> = policies(1).into_iter().map(|(name, _)| (name, [const { Vec::new() }; 4])).collect();
    for (column, &capacity) in capacities.iter().enumerate() {
        for (row, (_, mut policy)) in rows.iter_mut().zip(policies(capacity)) {
            row.1[column] = trace.accesses.iter().map(|&block| policy.access(block)).collect();
        }
    }
    let all = vec![true; trace.accesses.len()];
    let optimum = ("MIN", capacities.map(|capacity| min::hits(&trace.accesses, capacity)));
    println!("{path}: {} accesses to {footprint} blocks", all.len());
    table("all accesses", &capacities, &rows, Some(&optimum), &all);
    if let Some(reads) = &trace.reads {
        // MIN is left out: it has the fewest misses of all accesses, not of reads.
        table("reads alone", &capacities, &rows, None, reads);
    }
}

/// Prints the miss ratios, in percent, of the accesses that are `counted`; the best of the `rows` have a star.
fn table(title: &str, capacities: &[usize; 4], rows: &[Row], optimum: Option<&Row>, counted: &[bool]) {
    let total = counted.iter().filter(|&&c| c).count();
    let misses = |row: &Row| [0, 1, 2, 3].map(|i| row.1[i].iter().zip(counted).filter(|&(&hit, &c)| c && !hit).count());
    let best = [0, 1, 2, 3].map(|i| rows.iter().map(|row| misses(row)[i]).min());
    println!("\nmiss ratio in percent, {title} ({total})");
    print!("{:10}", "blocks");
    for (percent, capacity) in PERCENTS.iter().zip(capacities) {
        print!("{:>16}", format!("{capacity} ({percent} %) "));
    }
    println!();
    for (row, is_policy) in rows.iter().map(|row| (row, true)).chain(optimum.map(|row| (row, false))) {
        print!("{:10}", row.0);
        for (misses, best) in misses(row).into_iter().zip(best) {
            let star = if is_policy && Some(misses) == best { '*' } else { ' ' };
            print!("{:15.2}{star}", 100.0 * misses as f64 / total.max(1) as f64);
        }
        println!();
    }
    if let Some(own) = rows.iter().find(|row| row.0 == OWN) {
        print!("{:10}", "over best");
        for (misses, best) in misses(own).into_iter().zip(best) {
            print!("{:15.2} ", 100.0 * misses.saturating_sub(best.unwrap_or(0)) as f64 / total.max(1) as f64);
        }
        println!();
    }
    println!();
}

/// That the policies do what their papers say, as far as short sequences show it: `cargo test` runs this.
fn check() {
    trace::check();
    min::check();
    lru::check();
    arc::check();
    headpond::check();
    lirs::check();
    s3_fifo::check();
    sieve::check();
    w_tinylfu::check();
    for capacity in [1, 2, 3, 7, 20, 250] {
        check_against_naive_lru(capacity);
        check_bounds(capacity);
    }
}

/// Checks which of these accesses hit: `h` is a hit, `.` a miss.
fn check_hits(mut policy: impl Policy, accesses: &[u64], expected: &str) {
    let hits: String = accesses.iter().map(|&block| if policy.access(block) { 'h' } else { '.' }).collect();
    assert_eq!(hits, expected, "{accesses:?}");
}

/// Blocks of which some are hot, with a scan now and then.
fn random_accesses(seed: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    let mut accesses = Vec::new();
    while accesses.len() < 5_000 {
        if rng.one_in(50) {
            let from = rng.below(1_000);
            accesses.extend(from..from + rng.below(60));
        }
        let range = *rng.pick(&[10, 100, 1_000]);
        accesses.push(rng.below(range));
    }
    accesses
}

fn check_against_naive_lru(capacity: usize) {
    let mut lru = lru::Lru::new(capacity);
    let mut naive: Vec<u64> = Vec::new();
    for block in random_accesses(capacity as u64) {
        let place = naive.iter().position(|&b| b == block);
        place.map(|i| naive.remove(i));
        naive.push(block);
        if naive.len() > capacity {
            naive.remove(0);
        }
        assert_eq!(lru.access(block), place.is_some(), "LRU of {capacity}, block {block}");
    }
}

/// No policy holds more than its capacity, hits what never was accessed, or misses less than MIN.
fn check_bounds(capacity: usize) {
    let accesses = random_accesses(!(capacity as u64));
    let fewest = min::hits(&accesses, capacity).iter().filter(|&&hit| !hit).count();
    for (name, mut policy) in policies(capacity) {
        let mut seen = HashSet::new();
        let mut misses = 0;
        for &block in &accesses {
            let hit = policy.access(block);
            misses += usize::from(!hit);
            assert!(seen.contains(&block) || !hit, "{name} of {capacity} hits block {block}, never accessed before");
            assert!(policy.held() <= capacity, "{name} of {capacity} holds {}", policy.held());
            seen.insert(block);
        }
        assert!(misses >= fewest, "{name} of {capacity} has {misses} misses, fewer than the {fewest} of MIN");
    }
}
