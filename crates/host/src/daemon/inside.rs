//! A daemon inside another program: asked by calls, without a control socket and without front ends.

use std::sync::Arc;

use serde_json::Value;

use super::{Choice, Daemon, Options, Shared, StartError, lock};
use crate::control::{Call, Fault, Service};
use crate::report::Report;
use crate::runtime::Handle;
use crate::succession::Estate;

/// What the program asks, from any of its threads. It outlives the daemon, and says then that this has ended.
#[derive(Clone)]
pub(crate) struct Inside(Arc<Shared>);

/// Starts a daemon that nobody outside this process reaches.
pub(crate) fn start(options: Options) -> Result<(Daemon, Inside), StartError> {
    let daemon = Daemon::start_listening(Options { frontend: Choice::None, ..options }, Estate::default(), false, &mut |_| true)?;
    let inside = Inside(daemon.shared.clone());
    Ok((daemon, inside))
}

impl Inside {
    /// As over the control socket.
    pub fn call(&self, call: Call, progress: &mut dyn FnMut(Value)) -> Result<Value, Fault> {
        self.0.call(call, progress)
    }

    /// Deletes a volume that has no backing device, with what is on it. `goes_on` is asked ten times a second for as long as what the pool
    /// holds is being read, which comes first; if it says no, nothing is changed.
    pub fn delete_volume(&self, name: &str, goes_on: &mut dyn FnMut() -> bool) -> Result<Value, Fault> {
        self.0.delete_volume(name, true, goes_on)
    }

    /// Where requests go.
    pub fn handle(&self) -> &Handle {
        &self.0.handle
    }

    /// How everything stands; `None` once the daemon has ended.
    pub fn report(&self) -> Option<Report> {
        self.0.report()
    }

    /// Bytes of which requests to a volume are multiples; `None` where its disk is not there.
    pub fn block(&self, volume: u16) -> Option<u32> {
        Some(lock(&self.0.volumes).get(&volume)?.shape.as_ref()?.block)
    }
}
