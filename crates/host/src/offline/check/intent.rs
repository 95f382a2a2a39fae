//! Intent pages: both slots of each, on every member.

use headpond_format::{DecodeError, INTENT_PAGE_BYTES, IntentPage, VolumeEntry};

use super::Tell;
use crate::offline::finding::{Finding, Level, Mend};
use crate::offline::media::Pool;
use crate::offline::{OfflineError, Watch, told};

/// One copy of a page.
struct Copy {
    member: u8,
    slot: u8,
    at: u64,
    page: Result<IntentPage, String>,
    /// Nothing but zeroes: a device that joins is given these in both slots, and the page itself in the one that is due.
    is_blank: bool,
}

/// All pages of all volumes.
pub(super) fn check(pool: &Pool<'_>, say: Tell<'_>, watch: Watch<'_>) -> Result<(), OfflineError> {
    let volumes = &pool.superblock().volumes;
    let total: u64 = volumes.iter().map(|v| u64::from(v.intent_pages)).sum();
    let mut done = 0;
    for volume in volumes {
        for page in volume.intent_first..volume.intent_first.saturating_add(volume.intent_pages) {
            told(watch, "reading intent pages", done, total)?;
            done += 1;
            one(pool, volume, page, say)?;
        }
    }
    Ok(())
}

fn one(pool: &Pool<'_>, volume: &VolumeEntry, page: u32, say: Tell<'_>) -> Result<(), OfflineError> {
    let copies: Vec<Copy> = pool.present().flat_map(|m| [0, 1].map(|slot| copy(pool, volume, page, m, slot))).collect();
    let newest = copies.iter().filter_map(|c| c.page.as_ref().ok()).max_by_key(|p| p.sequence);
    let Some(newest) = newest else {
        return say(Finding::new(
            Level::Damage,
            "intent-lost",
            format!("No copy of intent page {page}, of volume {}, is whole", volume.name),
        )
        .of(&volume.name)
        .means("All its regions count as dirty and as written past the cache: clean data of them is dropped at a start. No data is lost")
        .next("Nothing: the next start writes the page anew"));
    };
    for c in &copies {
        let Some(device) = pool.device(c.member) else { continue };
        let place = |finding: Finding| finding.at(device.path(), Some(c.member), c.at, INTENT_PAGE_BYTES as u64).of(&volume.name);
        let other_is_whole = || copies.iter().any(|o| o.member == c.member && o.slot != c.slot && o.page.is_ok());
        match &c.page {
            Ok(_) => {}
            // As a start takes it: what this slot would have had, the other one of the device has newer.
            Err(_) if c.is_blank && other_is_whole() => {
                let what = format!("Intent page {page}, slot {}, has not been written since the device joined the pool", c.slot);
                say(place(Finding::new(Level::Note, "intent-unwritten", what))
                    .means("The other slot has all that counts. The next change of the page is written here"))?;
            }
            Err(why) => {
                // Only the same slot of another member proves what was here: an older page lacks bits.
                let same = copies.iter().find(|o| o.slot == c.slot && o.member != c.member && o.page.is_ok());
                let mends = same.and_then(|o| {
                    let bytes = o.page.as_ref().ok()?.encode(pool.superblock().key);
                    Some(Mend { device: pool.index(c.member)?, offset: c.at, bytes })
                });
                let what = format!("Intent page {page}, slot {}, is not whole ({why})", c.slot);
                let (meaning, next) = match &mends {
                    Some(_) => ("Another cache device has the same page. No data is lost", ""),
                    None => (
                        "No other device has this very copy. If it was the newest, regions marked in it alone are not known: \
                         clean data there may be older than the disk's",
                        "Write all dirty data to the disk with `headpond writeback`, and do not keep the volume's clean data",
                    ),
                };
                say(place(Finding::new(Level::Damage, "intent-damaged", what))
                    .means(meaning)
                    .next(next)
                    .mended_by(mends.into_iter().collect()))?;
            }
        }
    }
    for member in pool.present() {
        let own = copies.iter().filter(|c| c.member == member).filter_map(|c| c.page.as_ref().ok()).map(|p| p.sequence).max();
        let whole = copies.iter().filter(|c| c.member == member).all(|c| c.page.is_ok() || c.is_blank);
        if whole && own.is_some_and(|own| own < newest.sequence) {
            let what = format!("Intent page {page} of volume {} is older on cache device {member}", volume.name);
            say(Finding::new(Level::Note, "intent-behind", what)
                .of(&volume.name)
                .means("The daemon ended while it was being written. The newest counts; the next start writes it everywhere"))?;
        }
    }
    Ok(())
}

fn copy(pool: &Pool<'_>, volume: &VolumeEntry, page: u32, member: u8, slot: u8) -> Copy {
    let at = pool.layout(member).map_or(0, |layout| layout.intent(page, slot));
    let bytes = pool.device(member).map(|device| device.read(at, INTENT_PAGE_BYTES as u64));
    let is_blank = matches!(&bytes, Some(Ok(bytes)) if bytes.as_slice().iter().all(|byte| *byte == 0));
    let page = match bytes {
        Some(Ok(bytes)) => match IntentPage::decode(pool.superblock().key, bytes.as_slice(), page) {
            Ok(page) if page.volume == volume.number => Ok(page),
            Ok(_) => Err("it is of another volume".into()),
            Err(DecodeError::Foreign) => Err("it is no intent page of this number".into()),
            Err(error) => Err(error.to_string()),
        },
        Some(Err(error)) => Err(error.to_string()),
        None => Err("the device is not there".into()),
    };
    Copy { member, slot, at, page, is_blank }
}
