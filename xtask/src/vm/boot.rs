//! The guest boots, has what it takes, and Headpond serves a volume in it.

use super::rig::Rig;
use super::{Context as Vm, Figures};
use anyhow::{Context as _, Result, bail};
use std::time::{Duration, Instant};

/// What a kernel must have for the rig to be of use, as modules or built in.
const WANTED: &str = "for module in ublk_drv fuse loop ext4 xfs btrfs; do
    modprobe $module 2>/dev/null && echo has $module || echo lacks $module
done";

/// A second volume comes and goes while the first one is used: through ublk both are attended to by one thread, as the guest has no
/// processors for more.
const SECOND: &str = "first=$(volume)
second=$(headpond volume create second --size 8MiB --json --socket $SOCKET | sed -n 's/.*\"place\":\"\\([^\"]*\\)\".*/\\1/p')
[ -b \"$second\" ] || fail \"the second volume has no block device, but: $second\"
load write $first 64 512 2 &
load write $second 0 64 3
load read $second 0 64 3
must headpond volume delete second --throw-away --socket $SOCKET
wait $!
load read $first 64 512 2
no_errors";

/// All of the daemon's threads have left the guest's mount namespace, where its own volume may be mounted: one that had not would be the last to unmount it
/// where nobody else is there, and wait for itself. Whose thread ends meanwhile is none.
const ONE_NAMESPACE: &str = "daemon=$(cat /run/daemon.pid)
own=$(readlink /proc/$daemon/ns/mnt)
[ $(front_end) != ublk ] || [ \"$own\" != \"$(readlink /proc/self/ns/mnt)\" ] || fail 'the daemon is in the mount namespace of the guest'
for thread in /proc/$daemon/task/*; do
    of=$(readlink $thread/ns/mnt) || continue
    [ \"$of\" = \"$own\" ] || fail \"thread $(cat $thread/comm) is in $of, and the daemon in $own\"
done";

/// Boots, looks, serves, writes and reads, ends cleanly.
pub fn boot(vm: &Vm) -> Result<Figures> {
    let mut rig = Rig::set_up(vm)?;
    rig.boot()?;
    let said = rig.run(&format!(
        "uname -r\nheadpond --version\n{WANTED}\n[ -e /dev/ublk-control ] && echo ublk control\necho front $(front_end)"
    ))?;
    let line = |n: usize| said.get(n).cloned().unwrap_or_default();
    let lacks: Vec<&str> = said.iter().filter_map(|line| line.strip_prefix("lacks ")).collect();
    if lacks.iter().any(|module| matches!(*module, "fuse" | "loop" | "ext4")) {
        bail!("the kernel lacks {}", lacks.join(", "));
    }
    let front = said.iter().find_map(|line| line.strip_prefix("front ")).unwrap_or("none").to_owned();
    rig.run("state_disk new\ncreate_pool\nserve\nattach\nload write $(volume) 0 64 1\nload read $(volume) 0 64 1\nno_errors")?;
    rig.run(SECOND).context("a second volume")?;
    rig.run(ONE_NAMESPACE).context("the daemon's mount namespace")?;
    // The kernel's own workers for the daemon come and go meanwhile; who is gone is none that attends.
    let names = "must [ -d /proc/$(cat /run/daemon.pid)/task ]\nfor name in /proc/$(cat /run/daemon.pid)/task/*/comm; do cat \"$name\" 2>/dev/null || true; done";
    let attend = rig.run(names)?.iter().filter(|name| name.starts_with("ublk-")).count();
    let named = rig.run("named")?.iter().filter(|line| line.starts_with("named ")).count();
    rig.run("detach_volume\nstop_daemon\nload read $(drive disk) 0 64 1")?;
    let mut figures: Figures = vec![
        ("guest's clock, percent of ours".into(), clock(&mut rig)?.into()),
        ("kernel".into(), line(0).into()),
        ("program".into(), line(1).into()),
        ("ublk control".into(), said.iter().any(|line| line == "ublk control").into()),
        ("front end".into(), front.into()),
        ("threads of ublk queues".into(), attend.into()),
        ("times that udev was told the volume's name".into(), named.into()),
    ];
    if !lacks.is_empty() {
        figures.push(("lacks".into(), lacks.join(" ").into()));
    }
    figures.extend(rig.passed());
    Ok(figures)
}

/// How fast the guest's clock goes, in percent of ours: what is measured in a guest is worth as much as its clock.
fn clock(rig: &mut Rig) -> Result<u64> {
    let mut now = || -> Result<(Instant, u64)> {
        let said = rig.run("now")?;
        let hundredths = said.last().and_then(|line| line.parse().ok()).context("the guest does not tell the time")?;
        Ok((Instant::now(), hundredths))
    };
    let (ours, theirs) = now()?;
    // The guest is asked over its console, which a busy machine may be late with.
    std::thread::sleep(Duration::from_secs(10));
    let (ours_now, theirs_now) = now()?;
    let percent = (theirs_now - theirs) * 1000 / (ours_now - ours).as_millis().max(1) as u64;
    match percent {
        50..200 => Ok(percent),
        _ => bail!("the guest's clock goes at {percent} percent of ours: nothing that it measures can be believed"),
    }
}
