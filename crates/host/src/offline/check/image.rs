//! The checkpoint: both copies of every page. What it says of the segments is handed on.

use std::collections::BTreeMap;

use headpond_format::{PAGE_BYTES, Page, PageBody, SegmentEntry};

use super::Tell;
use crate::offline::finding::{Finding, Level, Mend};
use crate::offline::media::Pool;
use crate::offline::{OfflineError, Watch, told};

/// Lost pages after which nobody wants to know of more.
const MOST_LOST: u32 = 4096;
/// Lost pages that are told one by one.
const MOST_TOLD: u32 = 16;

/// One copy of a page: member, byte on it, and the page or what is wrong with it.
type Copy = (u8, u64, Result<Page, String>);

/// All pages of the checkpoint. Those that are lost are lacking in the table.
pub(super) fn check(pool: &Pool<'_>, say: Tell<'_>, watch: Watch<'_>) -> Result<BTreeMap<u32, SegmentEntry>, OfflineError> {
    let mut table = BTreeMap::new();
    let pages = pool.superblock().checkpoint.pages;
    let mut lost = 0u32;
    for index in 0..pages {
        if index % 64 == 0 {
            told(watch, "reading the checkpoint", u64::from(index), u64::from(pages))?;
        }
        let copies = copies(pool, index);
        let whole = copies.iter().find_map(|(.., page)| page.as_ref().ok());
        let Some(page) = whole else {
            lost += 1;
            if lost == 1 || !copies.is_empty() && lost <= MOST_TOLD {
                of_lost(pool, index, &copies, say)?;
            }
            // What is beyond its area or on missing devices may be any number: the first ones have told all.
            if lost >= MOST_LOST {
                break;
            }
            continue;
        };
        if let PageBody::Segments(list) = &page.body {
            table.extend(list.iter().map(|s| (s.segment, *s)));
        }
        for (member, at, bad) in copies.iter().filter_map(|(m, at, page)| Some((*m, *at, page.as_ref().err()?))) {
            let Some((device, n)) = pool.device(member).zip(pool.index(member)) else { continue };
            let bytes = page.encode(pool.superblock().key);
            let what = format!("Page {index} of the checkpoint is not whole ({bad})");
            say(Finding::new(Level::Damage, "checkpoint-damaged", what)
                .at(device.path(), Some(member), at, bytes.len() as u64)
                .means("Its other copy is whole, and a start reads that. No data is lost")
                .mended_by(vec![Mend { device: n, offset: at, bytes }]))?;
        }
    }
    Ok(table)
}

/// The copies of a page on members that are there; none where it would lie beyond its area.
fn copies(pool: &Pool<'_>, index: u32) -> Vec<Copy> {
    let pointer = &pool.superblock().checkpoint;
    let mut copies = Vec::new();
    for (member, at) in pointer.places(index) {
        let Some((device, layout)) = pool.device(member).zip(pool.layout(member)) else { continue };
        if at + PAGE_BYTES as u64 > layout.checkpoint_bytes {
            continue;
        }
        let at = layout.checkpoint(pointer.area) + at;
        let page = match device.read(at, PAGE_BYTES as u64) {
            Ok(bytes) => {
                let page = Page::decode(pool.superblock().key, bytes.as_slice(), pointer.sequence, index);
                page.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        copies.push((member, at, page));
    }
    copies
}

fn of_lost(pool: &Pool<'_>, index: u32, copies: &[Copy], say: Tell<'_>) -> Result<(), OfflineError> {
    let mut finding =
        Finding::new(Level::Loss, "checkpoint-lost", format!("Page {index} of the checkpoint is whole on no device"));
    if let Some((member, at, _)) = copies.first()
        && let Some(device) = pool.device(*member)
    {
        finding = finding.at(device.path(), Some(*member), *at, PAGE_BYTES as u64);
    }
    say(finding
        .means("Where dirty data is cannot be known: the pool does not start, and all its volumes are refused. The data is still there")
        .next("Bring back any cache device that is missing; its copy may be whole. Copy the devices before anything else"))
}
