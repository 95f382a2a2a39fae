//! What the process's exit code says.

use std::io;
use std::process::ExitCode;

use headpond_host::control::{CallError, Fault, FaultKind};
use headpond_host::daemon::StartError;
use headpond_host::offline::{OfflineError, RepairError, WritebackError};
use headpond_host::pool::PoolError;

/// Shown at the end of `--help`.
pub const HELP: &str = "Exit codes:
  0  done
  1  tried, and failed; or looked, and found problems; or a pool lacks devices at its start, which may only be late
  2  not understood: the command line or the configuration; or no start can do what these say
  3  refused, since data could be lost; nothing was changed
  4  no daemon runs there";

/// The command line or the configuration makes no sense.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// What was looked for was found: problems.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Found(pub String);

/// Says what went wrong, once, and chooses the exit code for it.
pub fn code(result: anyhow::Result<()>) -> ExitCode {
    code_said(result, |text| eprintln!("headpond: {text}"))
}

/// The same, said in another way.
pub fn code_said(result: anyhow::Result<()>, say: impl FnOnce(&str)) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    // Whoever read our output has seen enough.
    // (A repair that is cut short by it changes something, and says what.)
    let offline = match error.downcast_ref::<RepairError>() {
        Some(RepairError::Offline(error)) => Some(error),
        _ => error.downcast_ref::<OfflineError>(),
    };
    let output = match offline {
        Some(OfflineError::Output(error)) => Some(error),
        _ => error.downcast_ref::<io::Error>(),
    };
    if output.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let end = if text.ends_with(['.', '!', '?', '\n']) { "" } else { "." };
    say(&format!("{text}{end}"));
    ExitCode::from(number(&error))
}

/// Whether a start was refused for want of devices that may come, or answer, in a while: who starts it again may find them.
fn may_be_late(error: &StartError) -> bool {
    use headpond_engine::StartError as Engine;
    use headpond_engine::election::Refusal;
    use headpond_engine::io::CommandError;
    match error {
        StartError::Engine(CommandError::Start(why)) => {
            matches!(why, Engine::CopiesMissing { .. } | Engine::NoMajority | Engine::LogUnreadable { .. })
        }
        StartError::Pool(PoolError::Refused { refusal, .. }) => {
            // Where the last one had left, none that comes back makes a difference.
            matches!(refusal, Refusal::TooFewVotes { .. })
                || matches!(refusal, Refusal::Stale { needed, .. } if !needed.is_empty())
        }
        StartError::Pool(PoolError::OtherPool { late, .. }) => late.is_some(),
        _ => false,
    }
}

fn number(error: &anyhow::Error) -> u8 {
    let of_pool = |error: &PoolError| match error {
        PoolError::NotText { .. } => 2,
        error if error.protects_data() => 3,
        _ => 1,
    };
    if error.is::<Usage>() {
        return 2;
    }
    if let Some(error) = error.downcast_ref::<PoolError>() {
        return of_pool(error);
    }
    match error.downcast_ref::<StartError>() {
        Some(error) if may_be_late(error) => return 1,
        // Not before something else is named. (systemd does not try these again.)
        Some(StartError::Pool(PoolError::Twice { .. } | PoolError::NoMember { .. } | PoolError::Blocks { .. })) => return 2,
        Some(StartError::NoUblk(_)) => return 2,
        Some(StartError::Pool(error)) => return of_pool(error),
        Some(StartError::Engine(_) | StartError::Name(_)) => return 3,
        // As it was told to.
        Some(StartError::Ended) => return 0,
        Some(StartError::NoVolume { .. } | StartError::NoDisk { .. }) => return 2,
        _ => {}
    }
    match error.downcast_ref::<WritebackError>() {
        Some(error) if error.protects_data() => return 3,
        Some(
            WritebackError::NoVolume { .. }
            | WritebackError::NoDisk { .. }
            | WritebackError::HasDisk { .. }
            | WritebackError::NotToSave { .. }
            | WritebackError::Twice { .. },
        ) => return 2,
        _ => {}
    }
    match error.downcast_ref::<RepairError>() {
        Some(RepairError::Offline(OfflineError::Pool(error))) => return of_pool(error),
        Some(
            RepairError::Unproven { .. }
            | RepairError::Changed { .. }
            | RepairError::Served { .. }
            | RepairError::Offline(OfflineError::Refused(_) | OfflineError::MayBeOlder { .. }),
        ) => return 3,
        _ => {}
    }
    match error.downcast_ref::<OfflineError>() {
        Some(OfflineError::Pool(error)) => return of_pool(error),
        Some(OfflineError::Refused(_) | OfflineError::MayBeOlder { .. }) => return 3,
        _ => {}
    }
    match error.downcast_ref::<CallError>() {
        Some(CallError::NotRunning(_) | CallError::NoneRuns(_)) => 4,
        Some(CallError::Fault(Fault { kind: FaultKind::Refused, .. })) => 3,
        Some(CallError::Fault(Fault { kind: FaultKind::Invalid, .. })) => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use headpond_engine::election::Refusal;

    use super::*;

    /// systemd tries a start that ended with 1 again, for ever, and no other.
    #[test]
    fn a_start_ends_with_1_where_the_next_one_may_find_what_it_lacks_and_with_2_or_3_where_none_will() {
        let of = |error: StartError| number(&error.into());
        let refused = |refusal| StartError::Pool(PoolError::Refused { refusal, places: String::new() });
        let stale = |needed| refused(Refusal::Stale { pool: "p".into(), epoch: 1, newest: 2, needed });
        let path = || PathBuf::from("/dev/ssd");
        assert_eq!(of(stale(vec![1])), 1);
        assert_eq!(of(stale(vec![])), 3, "the last one had left");
        let of_two = |late| {
            let (pool, other_pool) = ("p".into(), "q".into());
            of(StartError::Pool(PoolError::OtherPool { path: path(), pool, other: path(), other_pool, late }))
        };
        assert_eq!((of_two(Some(path())), of_two(None)), (1, 3));
        assert_eq!(of(StartError::Pool(PoolError::Silent { path: path(), seconds: 10.0 })), 1);
        assert_eq!(of(StartError::Folder { path: path(), source: io::ErrorKind::StorageFull.into() }), 1);
        assert_eq!(of(StartError::Pool(PoolError::Twice { path: path() })), 2);
        assert_eq!(of(StartError::Pool(PoolError::NoMember { path: path(), what: "nothing known" })), 2);
        assert_eq!(of(StartError::Pool(PoolError::Blocks { path: path(), block: 4096, unit: 512, pool: "p".into() })), 2);
        assert_eq!(of(StartError::NoUblk("none".into())), 2);
        assert_eq!(of(StartError::WaitingUblk { devices: "/dev/ublkb0".into(), why: "none".into() }), 1, "it may be there later");
    }
}
