//! Replays a block trace against a bare modelled disk and against Headpond over it.
//!
//! ```text
//! zcat cloudphysics.csv.gz | cargo run --release -p headpond-sim --example replay -- [FILE]
//!     [--cache-mib N] [--percent N | --depth N] [--phase N] [--ssd nvme] [--writes-only]
//! ```

use headpond_sim::models::ssd::SsdParams;
use headpond_sim::replay::{Options, Pace, replay};
use std::error::Error;
use std::io::{BufRead, BufReader};

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Options::default();
    let mut file: Option<String> = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse::<u64>().ok()).ok_or(format!("{arg} wants a number"));
        match arg.as_str() {
            "--cache-mib" => options.cache_bytes = number()? << 20,
            "--percent" => options.pace = Pace::Open { percent: number()? },
            "--depth" => options.pace = Pace::Closed { depth: number()? as usize },
            "--phase" => options.phase = Some(number()? as u8),
            "--writes-only" => options.writes_only = true,
            "--ssd" if args.next().as_deref() == Some("nvme") => options.ssd = SsdParams::nvme_plp(),
            other if other.starts_with('-') => return Err(format!("{other} is not an option here").into()),
            _ => file = Some(arg),
        }
    }
    let reader: Box<dyn BufRead> = match file {
        Some(path) => Box::new(BufReader::new(std::fs::File::open(path)?)),
        None => Box::new(std::io::stdin().lock()),
    };
    println!("{}", replay(reader, &options)?);
    Ok(())
}
