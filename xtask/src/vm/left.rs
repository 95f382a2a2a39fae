//! A block device that a daemon left when it was killed: nothing takes its pool from under it, and what no daemon comes for can be ended.

use super::rig::Rig;
use super::{Context as Vm, Figures};
use anyhow::{Context as _, Result};

/// A client whose read waits for the next daemon, and what it must not be done to meanwhile.
const WAITS: &str = "device=$(volume)
refused 'is served by process' headpond volume give-up $device
echo $device >/run/device
kill_daemon
load read $device 0 64 1 </dev/null >/tmp/read.log 2>&1 3<&- &
reader=$!
for command in 'pool destroy' 'pool create --force other'; do
    refused \"$device of volume $NAME\" headpond $command $(drive ssda) $(drive ssdb) --state $STATE/headpond
done
refused \"$device of volume $NAME\" headpond writeback $(drive ssda) $(drive ssdb) --backing $(drive disk) --state $STATE/headpond
mv /dev/ublk-control /dev/ublk-control.away
refused \"$device of volume $NAME\" headpond serve $(drive ssda) $(drive ssdb) --state $STATE/headpond --socket $SOCKET --frontend auto
mv /dev/ublk-control.away /dev/ublk-control
kill -0 $reader || fail 'the read did not wait'";

/// The next daemon takes the device over, and what waited is answered.
const TAKEN_OVER: &str = "serve
wait $reader || fail 'what waited was read wrong'
must grep -q '^blocks 64 good' /tmp/read.log
[ \"$(volume)\" = \"$(cat /run/device)\" ] || fail 'the device has changed'
no_errors";

/// Nobody comes: it is ended by hand, and what waited with it.
const ENDED: &str = "device=$(cat /run/device)
kill_daemon
load read $device 0 64 1 </dev/null >/tmp/read.log 2>&1 3<&- &
reader=$!
usleep 300000
must headpond volume give-up $device
wait $reader
must grep -q '^blocks 0 good, 64 failed' /tmp/read.log
[ ! -e /sys/block/${device##*/} ] || fail 'the device is there yet'
refused 'is no ublk device' headpond volume give-up $device";

/// The pool is as it was: it is served, and its volume has a device again. Detached, it can be destroyed, and its devices are plain.
const GOES_ON: &str = "refused 'discard-dirty' headpond pool destroy $(drive ssda) $(drive ssdb) --state $STATE/headpond
serve
load read $(volume) 0 64 1 >/tmp/read.log
must grep -q '^blocks 64 good' /tmp/read.log
no_errors
detach_volume
stop_daemon
must headpond pool destroy $(drive ssda) $(drive ssdb) --state $STATE/headpond
create_pool
load read $(drive disk) 0 64 1 >/tmp/read.log
must grep -q '^blocks 64 good' /tmp/read.log";

/// All of it, where devices stay.
pub fn left(vm: &Vm) -> Result<Figures> {
    let mut rig = Rig::set_up(vm)?;
    rig.first_boot()?;
    let stays = rig.run("stays && echo stays || echo goes")?.iter().any(|line| line == "stays");
    if stays {
        rig.run("load write $(volume) 0 64 1")?;
        // One script: a shell waits for its own children alone.
        rig.run(&format!("{WAITS}\n{TAKEN_OVER}")).context("a device that waits for the next daemon")?;
        rig.run(ENDED).context("a device that no daemon comes for")?;
        rig.run(GOES_ON).context("after that")?;
    }
    let mut figures: Figures = vec![("device stays".into(), stays.into())];
    figures.extend(rig.passed());
    Ok(figures)
}
