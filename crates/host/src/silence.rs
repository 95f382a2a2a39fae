//! Devices that are there and answer nothing, found out before anybody waits for them.
//!
//! Who reads from one waits in the kernel, where nothing interrupts him: a thread that does can be waited for by nobody, nor can its process
//! end. So children read first what will be read, the `dd` that each system has, and where they get no answer nobody else asks.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use headpond_format::Layout;
use rustix::fs::{FileType, Statx};
use rustix::process::{Pid, WaitOptions, geteuid, waitpid};

use crate::device::facts;

/// How long a device may take to answer: a disk at rest takes seconds to spin up.
pub const LIMIT: Duration = Duration::from_secs(10);
/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(2);
/// What asks a device.
const DD: &str = "dd";
/// What a child is told before the path of a device.
const FROM: &str = "if=";
/// What it is told behind that, whatever it reads.
const HOW: [&str; 3] = ["of=/dev/null", "count=1", "iflag=direct"];
/// What a child reads at once, in bytes.
const BLOCK: u64 = 4096;

/// Who asks a device.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Asker {
    Child(Pid),
    /// One that another process began, by its folder in `/proc`, and what that one told it.
    Orphan(PathBuf, Vec<u8>),
}

/// Those that were begun together, and when; orphans, when they were found.
struct Asked {
    children: Vec<Asker>,
    since: Instant,
}

/// Those that have no answer yet. A device has some at most once, which are left to the kernel for as long as the device is silent.
static ASKING: Mutex<BTreeMap<PathBuf, Asked>> = Mutex::new(BTreeMap::new());

/// Devices of which it was looked whether somebody asks them already.
static KNOWN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn asking() -> MutexGuard<'static, BTreeMap<PathBuf, Asked>> {
    ASKING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits up to `limit` for a device to answer, be it with an error: whoever opens it is told that. One that cannot be asked, as it is
/// not there or there is no `dd`, counts as one that does.
///
/// # Errors
/// It has not answered for so long.
pub fn answers(path: &Path, limit: Duration) -> Result<(), Duration> {
    let Some(places) = places(path) else { return Ok(()) };
    let until = Instant::now() + limit;
    let earlier = asking().remove(path);
    if let Some(earlier) = earlier {
        let since = earlier.since;
        ends(path, earlier, until)?;
        // What was answered long ago says nothing of now; a slow disk has answered.
        if since.elapsed() <= LIMIT {
            return Ok(());
        }
    }
    // A daemon that ended beside a silent device has left its children to the kernel, and so did each that was started again since. None of them
    // says that the device answers at both its ends: when they have ended it is asked.
    let is_first = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned());
    let orphans = if is_first { orphans("/proc".as_ref(), path) } else { Vec::new() };
    ends(path, Asked { children: orphans, since: Instant::now() }, until)?;
    ends(path, ask(path, &places), until)
}

/// Who asks a device already, among the processes that a folder like `/proc` shows. Only of this process's own user: any other one could have a
/// device taken for silent. Nor who has another device open, which was at this path before: that may never answer.
fn orphans(proc: &Path, device: &Path) -> Vec<Asker> {
    let (Ok(device), Ok(it)) = (std::path::absolute(device), facts::look(device)) else { return Vec::new() };
    let is_another = |open: &Statx| facts::kind(open) == FileType::BlockDevice && facts::number(open) != facts::number(&it);
    let processes = fs::read_dir(proc).into_iter().flatten().flatten().map(|entry| entry.path());
    let asks = |process: PathBuf| {
        let is_ours = fs::metadata(&process).is_ok_and(|it| it.uid() == geteuid().as_raw());
        // What others are told is not looked at: that takes a lock of theirs.
        let is_dd = || fs::read(process.join("comm")).is_ok_and(|name| name.trim_ascii_end() == DD.as_bytes());
        let told = (is_ours && is_dd()).then(|| fs::read(process.join("cmdline")).ok())??;
        let from = asked_of(&told)?;
        let named = fs::read_link(process.join("cwd")).ok()?.join(from);
        let open = facts::which(&process.join("fd/0"));
        (named == device && !open.is_ok_and(|open| is_another(&open))).then_some(Asker::Orphan(process, told))
    };
    processes.filter_map(asks).collect()
}

/// The device that a process asks as children of ours do, by what it was told.
fn asked_of(told: &[u8]) -> Option<&Path> {
    let words: Vec<&[u8]> = told.split(|byte| *byte == 0).collect();
    let [dd, from, how @ .., _block, _skip, b""] = &words[..] else { return None };
    let is_one = *dd == DD.as_bytes() && how.iter().eq(HOW.map(str::as_bytes).iter());
    from.strip_prefix(FROM.as_bytes()).filter(|_| is_one).map(|from| Path::new(OsStr::from_bytes(from)))
}

/// Takes note of children that have ended though nobody waits for them any more. To be called now and then: until then the system keeps what
/// is left of them.
pub(crate) fn reap() {
    asking().retain(|_, asked| {
        asked.children.retain_mut(is_under_way);
        // An answer counts for as long.
        !asked.children.is_empty() || asked.since.elapsed() <= LIMIT
    });
}

fn is_under_way(asker: &mut Asker) -> bool {
    match asker {
        Asker::Child(child) => matches!(waitpid(Some(*child), WaitOptions::NOHANG), Ok(None)),
        // One that has ended is told nothing any more, and whoever has its number by now something else.
        Asker::Orphan(process, told) => fs::read(process.join("cmdline")).is_ok_and(|now| now == *told),
    }
}

/// Takes in the children of the program that this process ran before it ran this one: nobody else knows of them. To be called before this one
/// has any.
pub(crate) fn inherit() {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    take_in(children.collect::<String>().split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)));
}

/// Takes in children; those that ask a device, as its own.
fn take_in(children: impl Iterator<Item = Pid>) {
    for child in children {
        let command = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        let device = command.split(|byte| *byte == 0).find_map(|word| word.strip_prefix(FROM.as_bytes())).unwrap_or_default();
        let device = PathBuf::from(OsStr::from_bytes(device));
        let none = || Asked { children: Vec::new(), since: Instant::now() };
        asking().entry(device).or_insert_with(none).children.push(Asker::Child(child));
    }
}

/// The same of several, all asked at once: what has become of each, in their order.
pub fn all_answer(paths: &[PathBuf], limit: Duration) -> Vec<Result<(), Duration>> {
    at_once(paths, |path| answers(path, limit))
}

/// Asks about several at once, and waits for all the answers.
pub(crate) fn at_once<T: Send>(paths: &[PathBuf], ask: impl Fn(&Path) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let ask = &ask;
        let asking: Vec<_> = paths.iter().map(|path| scope.spawn(move || ask(path))).collect();
        asking.into_iter().map(|it| it.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// The blocks that are looked at before a disk is taken: its first, and one at its end, which may be on another device of an array.
/// `None` of what to open might already do something.
fn places(path: &Path) -> Option<Vec<u64>> {
    let it = facts::look(path).ok()?;
    let size = match facts::kind(&it) {
        FileType::RegularFile => it.stx_size,
        FileType::BlockDevice => {
            let sectors = fs::read_to_string(facts::sysfs(facts::number(&it)).join("size")).unwrap_or_default();
            sectors.trim().parse::<u64>().unwrap_or(0) * 512
        }
        _ => return None,
    };
    let tail = Layout::tail_of(size);
    Some(if tail == 0 { vec![0] } else { vec![0, tail / BLOCK] })
}

fn ask(path: &Path, places: &[u64]) -> Asked {
    let mut from = OsString::from(FROM);
    from.push(path);
    let child = |block: &u64| {
        let mut dd = Command::new(DD);
        dd.arg(&from).args(HOW).arg(format!("bs={BLOCK}")).arg(format!("skip={block}"));
        let begun = dd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        begun.ok().map(|child| Asker::Child(Pid::from_child(&child)))
    };
    Asked { children: places.iter().filter_map(child).collect(), since: Instant::now() }
}

/// Waits for them to end; kept if they do not.
fn ends(path: &Path, mut asked: Asked, until: Instant) -> Result<(), Duration> {
    loop {
        asked.children.retain_mut(is_under_way);
        if asked.children.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            let silent = asked.since.elapsed();
            asking()
                .entry(path.to_owned())
                .or_insert(Asked { children: Vec::new(), since: asked.since })
                .children
                .extend(asked.children);
            return Err(silent);
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
#[expect(clippy::zombie_processes, reason = "their end is taken in by what is tested")]
mod tests {
    use super::*;
    use crate::silent;

    fn file(folder: &tempfile::TempDir, bytes: usize) -> PathBuf {
        let file = folder.path().join("file");
        fs::write(&file, vec![0; bytes]).unwrap();
        file
    }

    /// Waits until a child has ended, whether anybody has taken note or not.
    fn until_it_has_ended(child: u32) {
        let until = Instant::now() + Duration::from_secs(60);
        let stat = || fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        while stat().rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')) {
            assert!(Instant::now() < until, "it does not end");
            thread::sleep(LOOK);
        }
    }

    #[test]
    fn what_can_be_read_what_cannot_and_what_is_not_there_are_not_silent() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder, 512);
        for path in [&file, folder.path(), &folder.path().join("none"), Path::new("/dev/null")] {
            assert_eq!(answers(path, LIMIT), Ok(()), "{}", path.display());
        }
        assert!(!asking().contains_key(&file));
    }

    /// Of a volume over two paths the second one never answered: its first block did.
    #[test]
    fn a_device_is_asked_at_both_ends() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(places(&file(&folder, 512)), Some(vec![0]));
        assert_eq!(places(&file(&folder, 1 << 20)), Some(vec![0, ((1 << 20) - (128 << 10)) / BLOCK]));
        assert_eq!(places(Path::new("/dev/null")), None);
    }

    #[test]
    fn children_without_an_answer_are_waited_for_again_and_their_answer_counts() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder, 512);
        // It ends when it is told to.
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (tells, number) = (child.stdin.take(), child.id());
        let children = vec![Asker::Child(Pid::from_child(&child))];
        assert!(ends(&file, Asked { children, since: Instant::now() }, Instant::now()).is_err());
        let silent = answers(&file, Duration::from_millis(50)).unwrap_err();
        assert!(silent >= Duration::from_millis(50), "from the beginning on: {silent:?}");
        assert_eq!(asking().get(&file).map(|asked| asked.children.len()), Some(1), "no second one was begun");
        // A disk that takes longer than anybody waits has answered in the end.
        drop(tells);
        until_it_has_ended(number);
        assert_eq!(answers(&file, Duration::ZERO), Ok(()));
        assert!(!asking().contains_key(&file));
    }

    #[test]
    fn children_that_nobody_asks_after_any_more_do_not_stay_when_they_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder, 512);
        let child = Command::new("true").spawn().unwrap();
        let rest = PathBuf::from(format!("/proc/{}", child.id()));
        until_it_has_ended(child.id());
        assert!(rest.exists(), "it has ended, and nobody has taken note");
        asking()
            .insert(file.clone(), Asked { children: vec![Asker::Child(Pid::from_child(&child))], since: Instant::now() - LIMIT });
        reap();
        assert!(!rest.exists() && !asking().contains_key(&file));
    }

    /// Each upgrade beside a silent disk began children of its own, and those before stayed as dead processes when it answered.
    #[test]
    fn children_that_an_earlier_program_began_are_waited_for_by_the_next_ones() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder, 512);
        // Ends when it is told to, and is called as one that asks the device.
        let mut child = Command::new("sh");
        child.args(["-c", "read line"]).arg(format!("if={}", file.display()));
        let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
        let (tells, number) = (child.stdin.take(), child.id());
        // For a moment it has no name yet.
        while fs::read(format!("/proc/{number}/cmdline")).unwrap().is_empty() {
            thread::sleep(LOOK);
        }
        for _ in 0..2 {
            take_in([Pid::from_child(&child)].into_iter());
            assert!(answers(&file, Duration::from_millis(50)).is_err());
            let known = asking().remove(&file).map(|asked| asked.children);
            assert_eq!(known, Some(vec![Asker::Child(Pid::from_child(&child))]), "and no others");
        }
        take_in([Pid::from_child(&child)].into_iter());
        drop(tells);
        until_it_has_ended(number);
        reap();
        assert!(!Path::new(&format!("/proc/{number}")).exists());
    }

    /// Each start of a daemon beside silent cache devices began children of its own, which the kernel holds for as long as the devices are silent:
    /// systemd starts it again each time that it has given up, and there were a thousand of them in an hour. Found by reading.
    #[test]
    fn what_an_earlier_daemon_has_left_to_ask_a_device_is_waited_for_and_nobody_is_begun_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let Some(disk) = silent::Disk::new(&folder.path().join("mount"), 16 << 20) else { return };
        let (path, proc) = (disk.path(), Path::new("/proc"));
        disk.fall_silent();
        // As that daemon has begun it, and this process knows nothing of it.
        let Asked { children, .. } = ask(&path, &[0]);
        let until = Instant::now() + Duration::from_secs(60);
        while orphans(proc, &path).is_empty() {
            assert!(Instant::now() < until, "it is not found");
            thread::sleep(LOOK);
        }
        let asking_it = |path: &Path| orphans(proc, path).len();
        for _ in 0..2 {
            assert!(answers(&path, Duration::from_millis(50)).is_err());
            assert_eq!(asking_it(&path), 1, "nobody asks beside it");
        }
        // What is at this path by now may be another one.
        assert_eq!(asking_it(&folder.path().join("other")), 0);
        disk.speak();
        assert_eq!(answers(&path, Duration::from_secs(60)), Ok(()));
        assert!(ends(&path, Asked { children, since: Instant::now() }, until).is_ok());
    }

    #[test]
    fn nobody_is_taken_for_one_who_asks_that_does_something_else_or_asks_another_device() {
        let told = |words: &[&str]| words.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect::<Vec<u8>>();
        let one = told(&["dd", "if=/dev/sda", "of=/dev/null", "count=1", "iflag=direct", "bs=4096", "skip=0"]);
        assert_eq!(asked_of(&one), Some(Path::new("/dev/sda")));
        for other in [
            told(&["dd", "if=/dev/sda", "of=/dev/sdb", "count=1", "iflag=direct", "bs=4096", "skip=0"]),
            told(&["dd", "if=/dev/sda"]),
            told(&["cat", "if=/dev/sda", "of=/dev/null", "count=1", "iflag=direct", "bs=4096", "skip=0"]),
            Vec::new(),
        ] {
            assert_eq!(asked_of(&other), None);
        }
    }
}
