//! [`embed`](crate::embed) for programs in C; `include/headpond.h` is its declaration, and its documentation.
//!
//! Handles are numbers that are never used twice, not addresses: one that is out of date is told from all others.
//!
//! `unsafe` because C hands over addresses: of texts that end in a zero byte, of buffers with their lengths, and of
//! where results go. Of each, null is refused; for the rest the caller answers, as the header says. Exported names are
//! `unsafe`, too, as another object of the program might have the same: all of these begin with `headpond_`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::claim::ClaimError;
use crate::control::FaultKind;
use crate::daemon::StartError;
use crate::embed::{Error, Pool, Volume};
use crate::pool::PoolError;

/// `headpond_pool`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolHandle {
    id: u64,
}

/// `headpond_volume`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VolumeHandle {
    id: u64,
}

/// What is behind the handles.
#[derive(Default)]
struct Handles {
    last: u64,
    pools: BTreeMap<u64, Arc<Pool>>,
    /// Each with its pool's number.
    volumes: BTreeMap<u64, (u64, Arc<Volume>)>,
}

static HANDLES: Mutex<Handles> = Mutex::new(Handles { last: 0, pools: BTreeMap::new(), volumes: BTreeMap::new() });

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Why a call from C failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum CallError {
    #[error("{0} is NULL. Nothing was done. Give an address")]
    Null(&'static str),
    #[error("{0} is not UTF-8 text. Nothing was done. Use letters, digits, '-', '_' and '.'")]
    NotText(&'static str),
    #[error("A length of {0} bytes is more than memory can have. Nothing was done. Check how it was worked out")]
    Length(usize),
    #[error("There is no mode {0:?}. Nothing was done. Choose one of write-back, write-through, write-around and pass-through")]
    Mode(String),
    #[error(
        "The pool's handle is of none that is open. Nothing was done. Use the one that headpond_pool_open gave, and close it once"
    )]
    NoPool,
    #[error(
        "The volume's handle is of none that is open. Nothing was done. Use the one that headpond_volume_attach or \
         headpond_volume_open gave, until the volume is detached or its pool closed"
    )]
    NoVolume,
    #[error(transparent)]
    Embed(#[from] Error),
}

impl CallError {
    /// The errno that comes nearest.
    fn number(&self) -> c_int {
        match self {
            CallError::Null(_) | CallError::NotText(_) | CallError::Length(_) | CallError::Mode(_) => libc::EINVAL,
            CallError::NoPool | CallError::NoVolume => libc::EBADF,
            CallError::Embed(error) => number(error),
        }
    }
}

fn number(error: &Error) -> c_int {
    match error {
        Error::Pool(error) | Error::Start(StartError::Pool(error)) => of_pool(error),
        Error::Start(StartError::Folder { source, .. }) | Error::Folder { source, .. } => raw(source),
        Error::Start(StartError::Devices(_)) => libc::ENOSYS,
        Error::Start(StartError::Engine(_)) => libc::EPERM,
        Error::Start(StartError::NoVolume { .. }) | Error::NoVolume { .. } => libc::ENOENT,
        Error::Start(_) | Error::Range { .. } | Error::NotText { .. } => libc::EINVAL,
        Error::Fault(fault) => fault.errno.unwrap_or(match fault.kind {
            FaultKind::Failed => libc::EIO,
            FaultKind::Refused => libc::EPERM,
            FaultKind::Invalid => libc::EINVAL,
        }),
        Error::Closed | Error::Detached { .. } => libc::EBADF,
        Error::NotServed { .. } => libc::ENXIO,
        Error::Io { .. } => libc::EIO,
        Error::NotDetached { .. } | Error::NotDeleted { .. } | Error::NotClosed { .. } => libc::ETIMEDOUT,
    }
}

fn of_pool(error: &PoolError) -> c_int {
    match error {
        PoolError::Claim(ClaimError::Held { .. }) => libc::EBUSY,
        PoolError::Claim(ClaimError::Open { source, .. } | ClaimError::Unfit { source, .. }) | PoolError::Io { source, .. } => {
            raw(source)
        }
        error if error.protects_data() => libc::EPERM,
        _ => libc::EINVAL,
    }
}

fn raw(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EINVAL)
}

/// Keeps the message of a call that failed, and gives the call's value.
fn told(result: Result<(), CallError>) -> c_int {
    let Err(error) = result else { return 0 };
    let mut text = error.to_string().replace('\0', "");
    if !text.ends_with('.') {
        text.push('.');
    }
    LAST_ERROR.with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
    -error.number()
}

fn handles() -> MutexGuard<'static, Handles> {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handles {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

fn pool(handle: PoolHandle) -> Result<Arc<Pool>, CallError> {
    handles().pools.get(&handle.id).cloned().ok_or(CallError::NoPool)
}

fn volume(handle: VolumeHandle) -> Result<Arc<Volume>, CallError> {
    handles().volumes.get(&handle.id).map(|(_, volume)| volume.clone()).ok_or(CallError::NoVolume)
}

/// A handle of a volume that was just opened; a pool that was closed meanwhile has none.
fn keep(pool: PoolHandle, volume: Volume) -> Result<VolumeHandle, CallError> {
    let mut handles = handles();
    if !handles.pools.contains_key(&pool.id) {
        return Err(CallError::NoPool);
    }
    let id = handles.next();
    handles.volumes.insert(id, (pool.id, Arc::new(volume)));
    Ok(VolumeHandle { id })
}

/// # Safety
/// `text` is null, or the address of bytes that end in a zero byte and do not change during the call.
unsafe fn bytes_of<'a>(text: *const c_char, name: &'static str) -> Result<&'a [u8], CallError> {
    if text.is_null() {
        return Err(CallError::Null(name));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// # Safety
/// As `bytes_of`.
unsafe fn text_of<'a>(text: *const c_char, name: &'static str) -> Result<&'a str, CallError> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes_of(text, name) }?;
    std::str::from_utf8(bytes).map_err(|_| CallError::NotText(name))
}

/// # Safety
/// As `bytes_of`.
unsafe fn path_of<'a>(path: *const c_char, name: &'static str) -> Result<&'a Path, CallError> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes_of(path, name) }?;
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// # Safety
/// `devices` is null, or the address of `count` addresses, each as for `bytes_of`.
unsafe fn paths_of(devices: *const *const c_char, count: usize) -> Result<Vec<PathBuf>, CallError> {
    if devices.is_null() {
        return Err(CallError::Null("devices"));
    }
    check_length(count, size_of::<*const c_char>())?;
    // SAFETY: the caller's promise; the length was checked.
    let devices = unsafe { slice::from_raw_parts(devices, count) };
    // SAFETY: the caller's promise, for each.
    devices.iter().map(|path| unsafe { path_of(*path, "a device") }.map(Path::to_owned)).collect()
}

/// What a slice may have at most.
fn check_length(count: usize, each: usize) -> Result<(), CallError> {
    match count.checked_mul(each) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        _ => Err(CallError::Length(count)),
    }
}

/// Makes a pool; see the header.
///
/// # Safety
/// The texts end in a zero byte, `devices` has `count` of them, and none of this changes during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headpond_pool_create(
    name: *const c_char,
    devices: *const *const c_char,
    count: usize,
    state: *const c_char,
) -> c_int {
    told((|| {
        // SAFETY: the caller's promise, for all three.
        let (name, devices, state) = unsafe { (text_of(name, "name")?, paths_of(devices, count)?, path_of(state, "state")?) };
        Ok(Pool::create(name, &devices, state)?)
    })())
}

/// Opens a pool; see the header.
///
/// # Safety
/// As [`headpond_pool_create`]; `pool` is where a handle may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headpond_pool_open(
    devices: *const *const c_char,
    count: usize,
    state: *const c_char,
    pool: *mut PoolHandle,
) -> c_int {
    told((|| {
        if pool.is_null() {
            return Err(CallError::Null("pool"));
        }
        // SAFETY: the caller's promise, for both.
        let (devices, state) = unsafe { (paths_of(devices, count)?, path_of(state, "state")?) };
        let opened = Arc::new(Pool::open(&devices, state)?);
        let mut handles = handles();
        let id = handles.next();
        handles.pools.insert(id, opened);
        // SAFETY: not null, and the caller's promise.
        unsafe { pool.write(PoolHandle { id }) };
        Ok(())
    })())
}

/// Closes a pool; see the header.
#[unsafe(no_mangle)]
pub extern "C" fn headpond_pool_close(pool: PoolHandle, within_ms: u64) -> c_int {
    told((|| {
        let closed = {
            let mut handles = handles();
            let closed = handles.pools.remove(&pool.id).ok_or(CallError::NoPool)?;
            handles.volumes.retain(|_, (of, _)| *of != pool.id);
            closed
        };
        Ok(closed.close(Duration::from_millis(within_ms))?)
    })())
}

/// Makes a device a volume; see the header.
///
/// # Safety
/// The texts end in a zero byte and do not change during the call; `volume` is where a handle may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headpond_volume_attach(
    pool: PoolHandle,
    name: *const c_char,
    backing: *const c_char,
    mode: *const c_char,
    volume: *mut VolumeHandle,
) -> c_int {
    told((|| {
        if volume.is_null() {
            return Err(CallError::Null("volume"));
        }
        // SAFETY: the caller's promise, for all three.
        let (name, backing, mode) = unsafe { (text_of(name, "name")?, path_of(backing, "backing")?, text_of(mode, "mode")?) };
        let mode = headpond_format::Mode::named(mode).ok_or_else(|| CallError::Mode(mode.into()))?;
        let attached = keep(pool, self::pool(pool)?.attach(name, backing, mode)?)?;
        // SAFETY: not null, and the caller's promise.
        unsafe { volume.write(attached) };
        Ok(())
    })())
}

/// Makes a volume without a backing device; see the header.
///
/// # Safety
/// As [`headpond_volume_attach`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headpond_volume_create(
    pool: PoolHandle,
    name: *const c_char,
    bytes: u64,
    volume: *mut VolumeHandle,
) -> c_int {
    told((|| {
        if volume.is_null() {
            return Err(CallError::Null("volume"));
        }
        // SAFETY: the caller's promise.
        let name = unsafe { text_of(name, "name")? };
        let created = keep(pool, self::pool(pool)?.create_volume(name, bytes)?)?;
        // SAFETY: not null, and the caller's promise.
        unsafe { volume.write(created) };
        Ok(())
    })())
}

/// A volume that is attached already; see the header.
///
/// # Safety
/// As [`headpond_volume_attach`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headpond_volume_open(pool: PoolHandle, name: *const c_char, volume: *mut VolumeHandle) -> c_int {
    told((|| {
        if volume.is_null() {
            return Err(CallError::Null("volume"));
        }
        // SAFETY: the caller's promise.
        let name = unsafe { text_of(name, "name")? };
        let opened = keep(pool, self::pool(pool)?.volume(name)?)?;
        // SAFETY: not null, and the caller's promise.
        unsafe { volume.write(opened) };
        Ok(())
    })())
}

/// Size of a volume, and of its blocks; see the header.
///
/// # Safety
/// `size` and `block` are each null or where a number may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headpond_volume_size(volume: VolumeHandle, size: *mut u64, block: *mut u32) -> c_int {
    told((|| {
        let volume = self::volume(volume)?;
        if !size.is_null() {
            // SAFETY: not null, and the caller's promise.
            unsafe { size.write(volume.size()) };
        }
        if !block.is_null() {
            // SAFETY: not null, and the caller's promise.
            unsafe { block.write(volume.block()) };
        }
        Ok(())
    })())
}

/// Deletes a volume without a backing device, with what is on it; see the header.
#[unsafe(no_mangle)]
pub extern "C" fn headpond_volume_delete(volume: VolumeHandle, within_ms: u64) -> c_int {
    told((|| {
        self::volume(volume)?.delete(Duration::from_millis(within_ms))?;
        handles().volumes.remove(&volume.id);
        Ok(())
    })())
}

/// Writes everything back and lets go of the disk; see the header.
#[unsafe(no_mangle)]
pub extern "C" fn headpond_volume_detach(volume: VolumeHandle, within_ms: u64) -> c_int {
    told((|| {
        self::volume(volume)?.detach(Duration::from_millis(within_ms))?;
        handles().volumes.remove(&volume.id);
        Ok(())
    })())
}

/// Lets go of a volume's handle alone; see the header.
#[unsafe(no_mangle)]
pub extern "C" fn headpond_volume_close(volume: VolumeHandle) -> c_int {
    told(handles().volumes.remove(&volume.id).map(drop).ok_or(CallError::NoVolume))
}

/// Reads; see the header.
///
/// # Safety
/// `buffer` has `bytes` bytes, which nobody else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headpond_read(volume: VolumeHandle, buffer: *mut c_void, bytes: usize, offset: u64) -> c_int {
    told((|| {
        let volume = self::volume(volume)?;
        if buffer.is_null() {
            return Err(CallError::Null("buffer"));
        }
        check_length(bytes, 1)?;
        // SAFETY: not null, of a length that a slice may have, and the caller's promise. What is in it is not looked at.
        let buffer = unsafe { slice::from_raw_parts_mut(buffer.cast::<u8>(), bytes) };
        Ok(volume.read(offset, buffer)?)
    })())
}

/// Writes; see the header.
///
/// # Safety
/// `data` has `bytes` bytes, which nobody changes during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headpond_write(volume: VolumeHandle, data: *const c_void, bytes: usize, offset: u64) -> c_int {
    told((|| {
        let volume = self::volume(volume)?;
        if data.is_null() {
            return Err(CallError::Null("data"));
        }
        check_length(bytes, 1)?;
        // SAFETY: not null, of a length that a slice may have, and the caller's promise.
        let data = unsafe { slice::from_raw_parts(data.cast::<u8>(), bytes) };
        Ok(volume.write(offset, data)?)
    })())
}

/// Makes durable what was written; see the header.
#[unsafe(no_mangle)]
pub extern "C" fn headpond_flush(volume: VolumeHandle) -> c_int {
    told(self::volume(volume).and_then(|volume| Ok(volume.flush()?)))
}

/// Lets go of what is in a range; see the header.
#[unsafe(no_mangle)]
pub extern "C" fn headpond_discard(volume: VolumeHandle, bytes: u64, offset: u64) -> c_int {
    told(self::volume(volume).and_then(|volume| Ok(volume.discard(offset, bytes)?)))
}

/// The last failure of this thread, in words; see the header.
#[unsafe(no_mangle)]
pub extern "C" fn headpond_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::CStr;
    use std::ptr::{null, null_mut};

    use super::*;

    const SOURCE: &str = include_str!("capi.rs");
    const HEADER: &str = include_str!("../include/headpond.h");

    /// What a Rust type is in C.
    fn in_c(rust: &str) -> &'static str {
        match rust {
            "c_int" => "int",
            "u64" => "uint64_t",
            "usize" => "size_t",
            "*mut u64" => "uint64_t *",
            "*mut u32" => "uint32_t *",
            "*const c_char" => "const char *",
            "*const *const c_char" => "const char *const *",
            "*mut c_void" => "void *",
            "*const c_void" => "const void *",
            "PoolHandle" => "headpond_pool",
            "VolumeHandle" => "headpond_volume",
            "*mut PoolHandle" => "headpond_pool *",
            "*mut VolumeHandle" => "headpond_volume *",
            other => panic!("what is {other} in C?"),
        }
    }

    /// Type and name, with no space after a star.
    fn declared(kind: &str, name: &str) -> String {
        if kind.ends_with('*') { format!("{kind}{name}") } else { format!("{kind} {name}") }
    }

    /// The exported functions, as C would declare them.
    fn exported() -> BTreeMap<String, String> {
        let (source, _) = SOURCE.split_once("#[cfg(test)]").unwrap();
        let functions = source.split("#[unsafe(no_mangle)]").skip(1);
        let declare = |text: &str| {
            let (_, text) = text.split_once("extern \"C\" fn ").unwrap();
            let (head, _) = text.split_once(" {").unwrap();
            let (name, rest) = head.split_once('(').unwrap();
            let (parameters, returns) = rest.split_once(") -> ").unwrap();
            let one = |it: &str| it.trim().split_once(": ").map(|(name, kind)| declared(in_c(kind), name));
            let parameters: Vec<String> = parameters.split(',').filter_map(one).collect();
            let parameters = if parameters.is_empty() { "void".to_owned() } else { parameters.join(", ") };
            (name.to_owned(), format!("{}({parameters})", declared(in_c(returns.trim()), name)))
        };
        functions.map(declare).collect()
    }

    /// The functions that the header declares, each on one line without its spaces.
    fn in_header() -> BTreeMap<String, String> {
        let mut text = String::new();
        let mut rest = HEADER;
        while let Some((before, comment)) = rest.split_once("/*") {
            text.push_str(before);
            rest = comment.split_once("*/").unwrap().1;
        }
        text.push_str(rest);
        let code: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let declarations = code.join(" ");
        let declarations = declarations.split(';').map(|it| it.split_whitespace().collect::<Vec<_>>().join(" "));
        let function = |it: String| {
            let it = it.trim_start_matches("extern \"C\" { ").to_owned();
            let name = it.split_once('(')?.0.rsplit([' ', '*']).next()?.to_owned();
            Some((name, it))
        };
        declarations.filter_map(function).collect()
    }

    #[test]
    fn what_is_exported_is_in_the_header_with_the_same_types_and_the_other_way_round() {
        let exported = exported();
        assert!(exported.len() > 10 && exported.keys().all(|name| name.starts_with("headpond_")), "{exported:#?}");
        assert_eq!(exported, in_header());
    }

    /// What the last failure of this thread says.
    fn said() -> String {
        // SAFETY: never null, ends in a zero byte, and no call fails on this thread meanwhile.
        unsafe { CStr::from_ptr(headpond_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_number_and_in_words() {
        assert_eq!(said(), "");
        let (mut pool, mut volume) = (PoolHandle { id: 0 }, VolumeHandle { id: 0 });
        let devices = [c"/nowhere/a".as_ptr(), c"/nowhere/b".as_ptr()];
        let folder = tempfile::tempdir().unwrap();
        let state = CString::new(folder.path().as_os_str().as_bytes()).unwrap();
        // SAFETY: null or what the header asks for, here and below.
        let result = unsafe { headpond_pool_open(null(), 2, state.as_ptr(), &mut pool) };
        assert_eq!((result, said().starts_with("devices is NULL.")), (-libc::EINVAL, true), "{}", said());
        // SAFETY: as above.
        let result = unsafe { headpond_pool_open(devices.as_ptr(), 2, state.as_ptr(), null_mut()) };
        assert_eq!((result, said().starts_with("pool is NULL.")), (-libc::EINVAL, true), "{}", said());
        // SAFETY: as above.
        let result = unsafe { headpond_pool_open(devices.as_ptr(), 2, state.as_ptr(), &mut pool) };
        assert_eq!((result, said().contains("/nowhere/a")), (-libc::ENOENT, true), "{}", said());
        // SAFETY: as above.
        let result = unsafe { headpond_volume_open(pool, c"home".as_ptr(), &mut volume) };
        assert_eq!((result, pool.id, volume.id), (-libc::EBADF, 0, 0));
        // SAFETY: as above.
        assert_eq!(unsafe { headpond_read(volume, null_mut(), 512, 0) }, -libc::EBADF);
        assert_eq!(headpond_flush(volume), -libc::EBADF);
        assert_eq!(headpond_volume_detach(volume, 0), -libc::EBADF);
        assert_eq!(headpond_volume_delete(volume, 0), -libc::EBADF);
        assert_eq!(headpond_pool_close(PoolHandle { id: u64::MAX }, 0), -libc::EBADF);
        assert!(said().contains("once"), "{}", said());
    }

    /// All of these were -EIO, which is for what was tried.
    #[test]
    fn what_cannot_be_attached_or_created_has_the_number_of_the_header() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let in_c = |path: PathBuf| CString::new(path.as_os_str().as_bytes()).unwrap();
        for name in ["ssd0", "ssd1", "disk"] {
            std::fs::File::create_new(path(name)).unwrap().set_len(64 << 20).unwrap();
        }
        Pool::create("tank", &[path("ssd0"), path("ssd1")], &path("state")).unwrap();
        let (first, second, state) = (in_c(path("ssd0")), in_c(path("ssd1")), in_c(path("state")));
        let (disk, nowhere) = (in_c(path("disk")), in_c(path("nowhere")));
        let (mut pool, mut volume) = (PoolHandle { id: 0 }, VolumeHandle { id: 0 });
        // SAFETY: what the header asks for, here and below.
        let opened = unsafe { headpond_pool_open([first.as_ptr(), second.as_ptr()].as_ptr(), 2, state.as_ptr(), &mut pool) };
        assert_eq!(opened, 0, "{}", said());
        // SAFETY: as above.
        let mut attach = |name: &CStr, disk: &CStr| unsafe {
            headpond_volume_attach(pool, name.as_ptr(), disk.as_ptr(), c"write-back".as_ptr(), &mut volume)
        };
        assert_eq!((attach(c"home", &nowhere), said().contains("nowhere")), (-libc::ENOENT, true), "{}", said());
        assert_eq!((attach(c"../home", &disk), said().contains("not a name")), (-libc::EINVAL, true), "{}", said());
        assert_eq!((attach(c"home", &first), said().contains("in use")), (-libc::EPERM, true), "{}", said());
        assert_eq!(attach(c"home", &disk), 0, "{}", said());
        // SAFETY: as above.
        let mut create = |name: &CStr, bytes| unsafe { headpond_volume_create(pool, name.as_ptr(), bytes, &mut volume) };
        assert_eq!((create(c"home", 4096), said().contains("already")), (-libc::EEXIST, true), "{}", said());
        assert_eq!((create(c"journal", 0), said().contains("at least one block")), (-libc::EINVAL, true), "{}", said());
        assert_eq!(headpond_pool_close(pool, 60_000), 0, "{}", said());
    }
}
