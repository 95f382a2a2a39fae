//! The map in huge pages.
//!
//! With a map of some GiB, a hit's look-ups miss the processor's caches of addresses: in pages of 2 MiB they do not. The allocator asks for
//! none, and the kernel makes none by itself where it is set to `madvise`, as most distributions have it. So a thread gathers what the
//! other threads have allocated, from time to time; that is a hint to the kernel, and where it refuses nothing else is lost.
//!
//! `unsafe` because the kernel must be given addresses.

use std::fs;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{self, RecvTimeoutError, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// The allocator of glibc gives each thread heaps that begin at multiples of so many bytes. Stacks and the rest do not.
const HEAP: usize = 64 << 20;
/// Bytes that are asked for at once: who waits for memory meanwhile does not wait for long.
const STEP: usize = 32 << 20;
/// Ask the kernel to put a range into huge pages now, whatever its setting is (`linux/mman.h`, since 6.1).
const MADV_COLLAPSE: libc::c_int = 25;
/// How soon it is looked whether there is more, where there was some the last time; else twice as late as the last time, up to the other.
const SOON: Duration = Duration::from_secs(30);
const LATE: Duration = Duration::from_secs(3600);

/// What was gathered, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Gathered {
    /// In huge pages now, those included that were before.
    pub huge: usize,
    /// What the kernel did not put there: older ones cannot, and memory may be scattered.
    pub refused: usize,
}

/// Puts what threads have allocated into huge pages, as far as the kernel does that, and while `goes_on`. Data stays where it is for the
/// program.
///
/// # Errors
/// That this process' memory cannot be looked at.
pub fn gather(goes_on: impl Fn() -> bool) -> io::Result<Gathered> {
    let mut gathered = Gathered::default();
    for range in heaps(&fs::read_to_string("/proc/self/maps")?) {
        for from in range.clone().step_by(STEP) {
            if !goes_on() {
                return Ok(gathered);
            }
            let bytes = STEP.min(range.end - from);
            // SAFETY: of a range of addresses, whether or not anything is there yet, this only changes how the kernel keeps what the
            // program finds in it; a range that is gone by now it refuses.
            let refused = unsafe { libc::madvise(from as *mut libc::c_void, bytes, MADV_COLLAPSE) } != 0;
            match refused {
                true => gathered.refused += bytes,
                false => gathered.huge += bytes,
            }
        }
    }
    Ok(gathered)
}

/// The whole huge pages of what threads have allocated, in the words of `/proc/self/maps`.
fn heaps(maps: &str) -> Vec<Range<usize>> {
    maps.lines().filter_map(heap).collect()
}

fn heap(line: &str) -> Option<Range<usize>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [range, "rw-p", _, _, "0"] = words[..] else { return None };
    let (start, end) = range.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()? / HUGE * HUGE;
    (start.is_multiple_of(HEAP) && start < end).then_some(start..end)
}

/// A thread that gathers from time to time, until it is dropped.
pub(crate) struct Keeper {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// `None` where there can be no such thread: all goes on in small pages.
    pub(crate) fn start() -> Option<Keeper> {
        let (end, ended) = mpsc::channel();
        let body = move || {
            let (mut wait, mut huge) = (SOON, 0);
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(wait) {
                let gathered = match gather(|| ended.try_recv() == Err(TryRecvError::Empty)) {
                    Ok(gathered) => gathered,
                    Err(error) => return tracing::debug!("no huge pages: {error}"),
                };
                tracing::debug!("in huge pages: {} bytes, refused: {}", gathered.huge, gathered.refused);
                wait = if gathered.huge > huge { SOON } else { LATE.min(wait * 2) };
                huge = gathered.huge;
            }
        };
        let thread = thread::Builder::new().name("huge-pages".into()).spawn(body).ok()?;
        Some(Keeper { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heaps_are_told_from_stacks_files_and_what_is_not_used_yet() {
        let maps = "\
7f1000000000-7f1002345000 rw-p 00000000 00:00 0 
7f1002345000-7f1004000000 ---p 00000000 00:00 0 
7f1008000000-7f1008021000 rw-p 00000000 00:00 0 
7f1010200000-7f1010a00000 rw-p 00000000 00:00 0 
7f1014000000-7f1018000000 rw-p 00000000 08:01 4711 /var/lib/file
7f1018000000-7f101c000000 rw-p 00000000 00:00 0 
7ffd00000000-7ffd04000000 rw-p 00000000 00:00 0 [stack]
";
        assert_eq!(heaps(maps), [0x7f10_0000_0000..0x7f10_0220_0000, 0x7f10_1800_0000..0x7f10_1c00_0000]);
    }

    #[test]
    fn what_a_thread_allocated_is_the_same_after_it_was_gathered() {
        let bytes = thread::spawn(|| {
            // Small ones, as a map has: large ones the allocator maps by themselves.
            let data: Vec<Vec<u8>> = (0..4096u32).map(|n| vec![n as u8; 4096]).collect();
            let gathered = gather(|| true).expect("memory can be looked at");
            (gathered, data.iter().enumerate().filter(|(n, d)| d.iter().all(|b| *b == *n as u8)).count())
        });
        let (gathered, same) = bytes.join().expect("it ends");
        assert_eq!(same, 4096);
        assert!(gathered.huge + gathered.refused >= 8 << 20, "{gathered:?}");
    }
}
