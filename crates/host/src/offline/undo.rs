//! Puts back what was there before a repair: all of it or, where something was changed since, nothing.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;

use super::OfflineError;
use super::media::{Device, Media, write_back};
use super::repair::{Head, RepairError, Saved, VERSION, identity, sum_of};
use crate::state::hex;

/// What the first line of all versions has.
#[derive(Deserialize)]
struct Version {
    headpond_undo: u32,
}

/// A place that was changed, as the file has it: decoded.
struct Place<'a> {
    device: &'a Device,
    range: Range<u64>,
    /// What was there; `None`: it could not be read.
    old: Option<Vec<u8>>,
    /// XXH3-64 of what was put there.
    new: String,
}

/// Puts back what was there before a repair; how many places.
///
/// # Errors
/// The file is none of a repair, a device is not named, was written to since, or has a newer state of the pool.
pub fn undo(media: &Media, save: &Path) -> Result<u64, RepairError> {
    let (head, saved) = load(save)?;
    // Whether it was served since nobody can tell.
    if let Some(device) = media.devices.iter().find(|device| device.may_be_older.is_some()) {
        return Err(OfflineError::MayBeOlder { path: device.path().to_owned() }.into());
    }
    // An undo that was cut off may have left older ones.
    let is_newer =
        |device: &&Device| device.superblock.as_ref().is_some_and(|s| hex(&s.pool) == head.pool && s.newness() > head.newness);
    if let Some(device) = media.devices.iter().find(is_newer) {
        return Err(RepairError::Served { path: device.path().to_owned(), pool: head.name });
    }
    let places = places(media, save, &head, saved)?;
    for together in those_that_meet(&places) {
        if !is_as_it_was_left(&together) {
            return Err(RepairError::Changed { path: together[0].device.path().to_owned(), offset: together[0].range.start });
        }
    }
    let mut done = 0;
    for place in places.iter().rev() {
        let Some(old) = &place.old else { continue };
        let (path, offset) = (place.device.path(), place.range.start);
        write_back(place.device, offset, old).map_err(|source| RepairError::Write {
            path: path.to_owned(),
            offset,
            source,
            done,
        })?;
        done += 1;
    }
    Ok(done)
}

/// The places, in the order in which they were changed. One of which nothing was saved may be on a device that is not named.
fn places<'a>(media: &'a Media, save: &Path, head: &Head, saved: Vec<Saved>) -> Result<Vec<Place<'a>>, RepairError> {
    let mut places = Vec::new();
    for (n, saved) in saved.into_iter().enumerate() {
        let why = || RepairError::BadSave { path: save.to_owned(), line: n + 2, why: "what was there is not whole".into() };
        let old = saved.old.as_ref().map(|text| decode(text).filter(|old| old.len() as u64 == saved.bytes).ok_or_else(why));
        let old = old.transpose()?;
        let end = saved.offset.checked_add(saved.bytes).ok_or_else(why)?;
        match media.devices.iter().find(|device| identity(device).as_ref() == Some(&saved.member)) {
            Some(device) => places.push(Place { device, range: saved.offset..end, old, new: saved.new }),
            None if old.is_none() => {}
            None => return Err(RepairError::NotNamed { member: saved.member, pool: head.name.clone() }),
        }
    }
    Ok(places)
}

/// Places of one device that overlap one another, at once or by way of others, in the order in which they were changed.
fn those_that_meet<'a, 'b>(places: &'b [Place<'a>]) -> Vec<Vec<&'b Place<'a>>> {
    let mut sorted: Vec<usize> = (0..places.len()).collect();
    sorted.sort_by_key(|n| (places[*n].device.path(), places[*n].range.start));
    let mut all: Vec<Vec<usize>> = Vec::new();
    let mut end = 0;
    for n in sorted {
        let (device, range) = (places[n].device.path(), &places[n].range);
        match all.last_mut() {
            Some(last) if places[last[0]].device.path() == device && range.start < end => last.push(n),
            _ => {
                end = 0;
                all.push(vec![n]);
            }
        }
        end = end.max(range.end);
    }
    all.iter_mut().for_each(|together| together.sort_unstable());
    all.into_iter().map(|together| together.into_iter().map(|n| &places[n]).collect()).collect()
}

/// Whether the device has there what the repair left, or an undo that was cut off: nobody else has written to it.
fn is_as_it_was_left(together: &[&Place<'_>]) -> bool {
    let from = together.iter().map(|place| place.range.start).min().unwrap_or(0);
    let to = together.iter().map(|place| place.range.end).max().unwrap_or(0);
    let Ok(now) = together[0].device.read(from, to - from) else { return false };
    let at = |place: &Place<'_>| (place.range.start - from) as usize..(place.range.end - from) as usize;
    (0..=together.len()).any(|put_back| {
        let (left, back) = together.split_at(together.len() - put_back);
        // What was put back lies there already: nothing changes by it.
        let mut state = now.as_slice().to_vec();
        for place in back.iter().rev() {
            if let Some(old) = &place.old {
                state[at(place)].copy_from_slice(old);
            }
        }
        if state != now.as_slice() {
            return false;
        }
        // And below it each change is undone in mind, the last one first, so that what it lay on can be seen.
        for (n, place) in left.iter().enumerate().rev() {
            let is_hidden = together[n + 1..].iter().any(|later| later.old.is_none() && meets(later, place));
            if !is_hidden && sum_of(&state[at(place)]) != place.new {
                return false;
            }
            if let Some(old) = &place.old {
                state[at(place)].copy_from_slice(old);
            }
        }
        true
    })
}

fn meets(one: &Place<'_>, other: &Place<'_>) -> bool {
    one.range.start < other.range.end && other.range.start < one.range.end
}

fn load(path: &Path) -> Result<(Head, Vec<Saved>), RepairError> {
    let text = std::fs::read_to_string(path).map_err(|source| RepairError::NoSave { path: path.to_owned(), source })?;
    let bad = |line: usize, why: String| RepairError::BadSave { path: path.to_owned(), line, why };
    let mut lines = text.split_inclusive('\n').enumerate();
    let (_, first) = lines.next().ok_or_else(|| bad(1, "it is empty".into()))?;
    let Version { headpond_undo } = serde_json::from_str(first).map_err(|error| bad(1, error.to_string()))?;
    if headpond_undo != VERSION {
        return Err(bad(1, format!("it is of version {headpond_undo}, and this is {VERSION}")));
    }
    let head: Head = serde_json::from_str(first).map_err(|error| bad(1, error.to_string()))?;
    let mut places = Vec::new();
    for (n, line) in lines {
        // A line that a dead repair did not finish was about a change that it had not begun.
        if line.ends_with('\n') {
            let place: Saved = serde_json::from_str(line).map_err(|error| bad(n + 1, error.to_string()))?;
            if !place.is_sound() {
                return Err(bad(n + 1, "its checksum is another".into()));
            }
            places.push(place);
        }
    }
    Ok((head, places))
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(pair).collect::<Option<Vec<u8>>>()).flatten()
}
