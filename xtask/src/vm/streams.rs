//! Streams go past the cache, and where the kernel can without a copy: with what is dirty laid over, beside writes of the same blocks,
//! and under kills.

use super::rig::Rig;
use super::{Context as Vm, Figures, Progress};
use anyhow::{Context, Result, bail};

/// MiB of a stream.
const MIB: u64 = 160;

/// A stream written and verified, with its cost to the daemon; what is dirty in the middle of it, read with large requests and small ones.
const STREAM: &str = "stream() {
    cat >/tmp/stream.fio <<JOB
[stream]
filename=$(volume)
size=$1m
rw=write
bs=1m
ioengine=libaio
iodepth=4
direct=1
verify=crc32c
verify_fatal=1
JOB
    before=$(cpu)
    must fio /tmp/stream.fio
    echo \"::figure daemon-ms-for-$2 $((($(cpu) - before) * 10))\"
}
cpu() {
    # shellcheck disable=SC2046 # many words
    set -- $(cat /proc/$(cat /run/daemon.pid)/stat)
    echo $((${14} + ${15}))
}
zero_copied() {
    status | grep -o '\"zero_copy_bytes\":[0-9]*' | cut -d : -f 2 | sort -n | tail -n 1
}
sum() {
    dd if=$(volume) iflag=direct bs=$1 count=$2 2>/dev/null | md5sum | cut -d ' ' -f 1
}
laid_over() {
    load write $(volume) 1000 600 $1
    dirty=$(sum 1M 64)
    [ $dirty = $(sum 16k 4096) ] || fail 'MISMATCH: large requests read something else than small ones'
    load read $(volume) 1000 600 $1
    must headpond flush $NAME --socket $SOCKET
    [ $dirty = $(sum 1M 64) ] || fail 'MISMATCH: what is on the disk reads as something else than when it was dirty'
}
";

/// Streams in each form of the front end, then kills beside one.
pub fn streams(vm: &Vm) -> Result<Figures> {
    let mut rig = Rig::set_up(vm)?;
    rig.boot()?;
    rig.run("state_disk new\ncreate_pool\nserve\nattach")?;
    let kernel = rig.run("uname -r")?.first().cloned().unwrap_or_default();
    let lends = lends(&kernel);
    let mut figures: Figures = vec![("kernel".into(), kernel.into())];
    for (form, config, is_lent) in
        [("copies", "zero_copy = false", false), ("the-engine-s-thread", "", lends), ("two-threads", "queues = 2", lends)]
    {
        rig.run(&format!("detach_volume\nstop_daemon\necho '{config}' >$CONFIG\nserve\nattach"))?;
        let said = rig.run(&format!(
            "{STREAM}stream {MIB} {form}\nlaid_over 7\nstream 64 warm-{form}\nlaid_over 8\necho moved $(zero_copied)\nno_errors"
        ));
        let said = said.with_context(|| format!("a stream, {form}"))?;
        let moved: u64 = said.iter().find_map(|line| line.strip_prefix("moved ")?.parse().ok()).context("no count of bytes")?;
        let streamed = MIB << 20;
        if !is_lent && moved > 0 || is_lent && moved < streamed {
            bail!("{form}: {moved} bytes went without a copy, of two streams of {streamed}");
        }
        figures.push((format!("MiB without a copy, {form}"), (moved >> 20).into()));
    }
    under_kills(&mut rig, vm)?;
    rig.run("detach_volume\nstop_daemon").context("at the end")?;
    figures.extend(rig.passed());
    Ok(figures)
}

/// Whether a kernel lends clients' memory to any ring: from 6.17 on.
fn lends(kernel: &str) -> bool {
    let mut numbers = kernel.split(['.', '-', '+']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(17))
}

/// The daemon is killed while a stream is written and verified: the kernel asks the next one for what it was doing with clients' memory.
fn under_kills(rig: &mut Rig, vm: &Vm) -> Result<()> {
    let console = rig.console_len();
    rig.run(&format!("{STREAM}cat >/tmp/endless.sh <<'END'\nwhile [ ! -e /run/stop-stream ]; do fio /tmp/stream.fio || exit 1; done\nEND\nrm -f /run/stop-stream\nsh /tmp/endless.sh </dev/null >/tmp/endless.log 2>&1 3<&- &\necho $! >/run/endless.pid"))?;
    let mut progress = Progress::begin(vm.rounds);
    for round in 1..=vm.rounds {
        progress.say(round);
        rig.sleep(vm.length_of(round))?;
        let queues = if round % 2 == 0 { "--queues 2" } else { "" };
        let replaced = format!(
            "kill -0 $(cat /run/endless.pid) || {{ tail -n 5 /tmp/endless.log; fail 'the stream ended by itself'; }}\nreplace_daemon 0 {queues}\nno_errors"
        );
        rig.run(&replaced).with_context(|| format!("SIGKILL {round}"))?;
    }
    rig.sleep(vm.length)?;
    rig.run("touch /run/stop-stream\nwhile kill -0 $(cat /run/endless.pid) 2>/dev/null; do usleep 100000; done\n! grep -E 'verify failed|verify: bad|error' /tmp/endless.log || fail 'MISMATCH: a stream read what it did not write'\nno_errors")?;
    if let Some(line) = rig.console_errors(console).first() {
        bail!("the guest's kernel tells of an error, and there may be none: {line}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn kernels_lend_from_6_17_on() {
        let lend = ["6.12.95+deb12-amd64", "6.16", "6.17.0-rc1", "6.18.6", "7.3.4+deb13-amd64", "5.19"].map(super::lends);
        assert_eq!(lend, [false, false, true, true, true, false]);
    }
}
