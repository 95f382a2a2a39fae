//! Whether a daemon could be started, told before the one that serves ends for it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{Choice, Options, StartError, are_its_volumes, chosen, listen_for_metrics, reached_at, state_folder};
use crate::nbd::server::{ListenError, listen};
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
    let choice = chosen(options, before == Some(Choice::Fuse))?;
    if let Some(before) = before.filter(|before| *before != choice) {
        return Err(StartError::OtherFrontend { before: before.name(), after: choice.name() });
    }
    let state = state_folder(options)?;
    if superblock.witness {
        pool::lies_beside(&state, &options.devices)?;
    }
    let (socket, front) = reached_at(options, &superblock, choice, true)?;
    can_listen(&socket, present)?;
    if choice == Choice::Nbd {
        can_listen(&front, present)?;
    }
    let Some(address) = options.metrics else { return Ok(()) };
    let is_its_own = present.is_none_or(|present| present.has_metrics_at(address));
    match listen_for_metrics(address) {
        Err(StartError::Metrics { source, .. }) if source.kind() == ErrorKind::AddrInUse && is_its_own => Ok(()),
        listener => listener.map(drop),
    }
}

/// Whether a socket can be made there once the daemon that serves has let go of its own.
fn can_listen(path: &Path, present: Option<&Present>) -> Result<(), StartError> {
    let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let path = whole(&path.to_owned());
    match listen(&path) {
        Ok(listener) => {
            drop(listener);
            let _ = fs::remove_file(&path);
            Ok(())
        }
        Err(ListenError::InUse(_)) if present.is_none_or(|it| it.sockets.iter().any(|own| whole(own) == path)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
