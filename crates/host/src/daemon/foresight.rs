//! Whether a daemon could be started, told before the one that serves ends for it.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::frontend::chosen;
use super::{Choice, Options, SOON, StartError, are_its_volumes, listen_for_metrics, reached_at, same_file, state_folder};
use crate::backing::Spec;
use crate::nbd::server::{ListenError, may_listen};
use crate::pool;
use crate::succession::Present;

/// Whether a daemon can be started with these options in the place of `present`, as far as that can be told while that one serves: it
/// has the devices, so these are looked at alone. Where nothing is known of it, whatever is in use counts as its own.
///
/// # Errors
/// Why [`Daemon::start`](super::Daemon::start) would refuse, or clients lose what they have open.
pub fn would_start(options: &Options, present: Option<&Present>) -> Result<(), StartError> {
    pool::create::are_text(&options.devices)?;
    let superblock = pool::open::look(&options.devices)?;
    are_its_volumes(options, &superblock)?;
    let before = present.and_then(|present| present.frontend);
    let choice = chosen(options, before == Some(Choice::Fuse))?.choice;
    if let Some(before) = before.filter(|before| *before != choice) {
        return Err(StartError::OtherFrontend { before: before.name(), after: choice.name() });
    }
    is_its_state(options, present)?;
    let state = state_folder(options)?;
    for (name, last) in present.iter().flat_map(|present| &present.disks) {
        let (before, after) = (Spec::new(last), options.backings.get(name).or_else(|| options.configured.get(name)));
        // One that is pulled is not what was edited.
        if let Some(after) = after.filter(|after| **after != before && !after.leads_where(&before)) {
            return Err(StartError::OtherDisk { name: name.clone(), before, after: after.clone() });
        }
    }
    if superblock.witness {
        pool::lies_beside(&state, &options.devices)?;
    }
    let (socket, front) = reached_at(options, &superblock, choice, true)?;
    if let Some(own) = present.and_then(|present| present.control.as_ref()).filter(|own| !same_file(own, &socket)) {
        return Err(StartError::OtherSocket { before: own.clone(), after: socket });
    }
    can_listen(&socket, present)?;
    if choice == Choice::Nbd {
        can_listen(&front, present)?;
    }
    let Some(address) = options.metrics else { return Ok(()) };
    let is_its_own = present.is_none_or(|present| present.has_metrics_at(address));
    match listen_for_metrics(address) {
        // It has them there, or lacks them too.
        Err(StartError::Metrics { .. }) if is_its_own => Ok(()),
        listener => listener.map(drop),
    }
}

/// Whether the state folder is the one in use. One that is not there is not made for the question.
fn is_its_state(options: &Options, present: Option<&Present>) -> Result<(), StartError> {
    let after = &options.state;
    match present.and_then(|present| present.state.as_ref()) {
        // What is no folder is said of it when it is opened.
        Some(own) if !same_file(own, after) && (after.is_dir() || !after.exists()) => {
            Err(StartError::OtherState { before: own.clone(), after: after.clone() })
        }
        _ => Ok(()),
    }
}

/// How long a daemon that has let go of its cache devices may take to let go of its control socket.
const LETS_GO: Duration = Duration::from_secs(2);

/// Whether the control socket can be made, before anything is served: another pool of the same name would have it each time that this one is
/// started again.
pub(super) fn has_its_socket(path: &Path) -> Result<(), StartError> {
    let until = Instant::now() + LETS_GO;
    loop {
        match may_listen(path) {
            Err(ListenError::InUse(_)) if Instant::now() < until => thread::sleep(SOON),
            end => return end.map_err(Into::into),
        }
    }
}

/// Whether a socket can be made there once the daemon that serves has let go of its own.
fn can_listen(path: &Path, present: Option<&Present>) -> Result<(), StartError> {
    let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let path = whole(&path.to_owned());
    match may_listen(&path) {
        Ok(()) => Ok(()),
        Err(ListenError::InUse(_)) if present.is_none_or(|it| it.sockets.iter().any(|own| whole(own) == path)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
