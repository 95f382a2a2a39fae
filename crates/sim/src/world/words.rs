//! Requests and stamps in words, for stories and failures.

use crate::buf::SimBuf;
use headpond_engine::Request;

/// A request in words.
pub fn in_words(r: &Request<SimBuf>) -> String {
    match r {
        Request::Read { sector, sectors, into } => {
            format!("read {sector} +{sectors}{}", if into.is_some() { ", into lent memory" } else { "" })
        }
        Request::Write { sector, data, fua } => {
            let write = data.cell(0).stamp().unwrap_or(0) >> 20;
            let lent = if data.is_lent() { ", from lent memory" } else { "" };
            format!("write {write}: {sector} +{}{}{lent}", data.sectors(), if *fua { ", durable" } else { "" })
        }
        Request::Flush => "flush".into(),
        Request::OwnFlush => "flush of who serves the volume".into(),
        Request::Discard { sector, sectors } => format!("discard {sector} +{sectors}"),
        Request::WriteZeroes { sector, sectors, fua } => {
            format!("write zeroes {sector} +{sectors}{}", if *fua { ", durable" } else { "" })
        }
    }
}

/// A stamp in words.
pub fn show(stamp: u64) -> String {
    match stamp {
        0 => "zeroes".into(),
        u64::MAX => "metadata".into(),
        s if s >= 1 << 50 => format!("as at first (sector {})", s & ((1 << 50) - 1)),
        s => format!("write {} (sector {})", s >> 20, s & 0xf_ffff),
    }
}

/// Stamps in words.
pub fn show_all(stamps: &[u64]) -> String {
    stamps.iter().map(|s| show(*s)).collect::<Vec<_>>().join(", ")
}
