//! What of the pool each volume is sure of, and may have at most: changed while it is served, and remembered.

use headpond_engine::io::{Command, CommandError};
use headpond_engine::policy::shares::Share;
use headpond_engine::status::VolumeStatus;
use serde_json::{Value, json};

use super::service::{ended, failed};
use super::status::share_report;
use super::{Shared, lock};
use crate::control::Fault;
use crate::state::Shares;

impl Shared {
    /// Changes what is named of a volume's share; remembered for the next start. How it stands then.
    pub(super) fn share(&self, name: &str, min: Option<u8>, max: Option<u8>) -> Result<Value, Fault> {
        let mut volume = self.volume_with_disk(name)?;
        if min.is_some() || max.is_some() {
            // Two who change it at once have one after the other what they named.
            let mut shares = lock(&self.shares);
            let now = self.volume_with_disk(name)?.share;
            let share = Share { min: min.unwrap_or(now.min), max: max.unwrap_or(now.max) };
            self.give(&volume, share).map_err(|error| failed(&volume, &error))?;
            match share == Share::default() {
                true => drop(shares.remove(name)),
                false => drop(shares.insert(name.to_owned(), [share.min, share.max])),
            }
            self.save_shares(&shares);
            drop(shares);
            volume = self.volume(name)?;
        }
        let segment_bytes = self.handle.status().ok_or_else(ended)?.segment_bytes;
        Ok(json!(share_report(&volume, segment_bytes)))
    }

    fn give(&self, volume: &VolumeStatus, share: Share) -> Result<(), CommandError> {
        self.handle.begin(Command::Share { volume: volume.number, share }).end()
    }

    /// Gives volumes the shares that they had when the daemon ended.
    pub(super) fn share_again(&self) {
        let Some(status) = self.handle.status() else { return };
        for (name, [min, max]) in lock(&self.shares).iter() {
            let Some(volume) = status.volume(name) else { continue };
            if let Err(error) = self.give(volume, Share { min: *min, max: *max }) {
                tracing::warn!(
                    "volume {name} has no share of the pool any more, where it had {min} to {max} percent: {error} \
                     Give it one with `headpond share`"
                );
            }
        }
    }

    /// A volume is not the pool's any more.
    pub(super) fn forget_share(&self, name: &str) {
        let mut shares = lock(&self.shares);
        if shares.remove(name).is_some() {
            self.save_shares(&shares);
        }
    }

    fn save_shares(&self, shares: &Shares) {
        if let Err(error) = self.state.remember_shares(&self.pool, shares) {
            tracing::warn!(
                "cannot remember the shares of volumes: {error}; after a restart they are what they were before. Make room in the \
                 state folder, and give them again with `headpond share`"
            );
        }
    }
}
