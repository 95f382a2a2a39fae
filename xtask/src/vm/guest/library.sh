# What the host's scripts are written in. Each function does one thing, and ends the script with a word to the host if it cannot.

STATE=/state
SOCKET=/run/headpond.sock
# What the daemon is configured with, if a check has written it.
CONFIG=/run/headpond.toml
POINT=/mnt
NAME=rig

# Tells the host, and ends the script.
fail() {
    echo "::fail $*"
    echo "--- the daemon's last words:"
    tail -n 15 /host/daemon.log 2>/dev/null || :
    echo "--- the kernel's:"
    dmesg | tail -n 15
    exit 1
}

# Runs a command that must succeed; shows what it said only if it does not.
must() {
    "$@" >/tmp/must.log 2>&1 || {
        code=$?
        cat /tmp/must.log
        fail "$* ended with $code"
    }
}

# Runs a command that must be refused with these words.
refused() {
    words=$1
    shift
    if "$@" >/tmp/refused.log 2>&1; then
        fail "$* went through, and should be refused"
    fi
    grep -qF "$words" /tmp/refused.log || fail "$* was refused, without '$words': $(cat /tmp/refused.log)"
}

# Loads a module if the kernel has it as one.
module() {
    modprobe "$1" 2>/dev/null || :
}

# Hundredths of a second since the boot.
now() {
    read -r up _ </proc/uptime
    echo "${up%.*}${up#*.}"
}

# The block device of the drive with this name. A name that does not exist would become a file in memory, and benchmark wonderfully.
drive() {
    for block in /sys/block/vd*; do
        if [ "$(cat "$block/serial" 2>/dev/null)" = "$1" ]; then
            [ -b "/dev/${block##*/}" ] || fail "/dev/${block##*/} is no block device"
            echo "/dev/${block##*/}"
            return
        fi
    done
    fail "there is no drive $1"
}

headpond() {
    /tmp/headpond "$@"
}

# Loads and checks of our own: see xtask/src/vm/load.rs.
load() {
    /tmp/xtask guest "$@"
}

# The front end that is tested: ublk where the kernel and Headpond have it, else FUSE with a loop device. Looked for once in a boot, as
# what asks is timed.
front_end() {
    [ -e /run/front-end ] || find_front_end >/run/front-end
    cat /run/front-end
}

find_front_end() {
    module ublk_drv
    if [ -e /dev/ublk-control ] && headpond serve --help | grep -q '^ *- ublk:'; then
        echo ublk
    else
        module fuse
        module loop
        echo fuse
    fi
}

# The server's own small disk, which has the witness: made once, mounted at each boot.
state_disk() {
    module ext4
    if [ "$1" = new ]; then
        # Its superblock has two sectors, is written in place, and its drive tears writes at sectors: no real disk of this size does
        # that, and with a checksum over both ext4 would be right to refuse it.
        must mkfs.ext4 -q -F -O ^metadata_csum "$(drive root)"
    fi
    must mount -t ext4 "$(drive root)" "$STATE"
}

create_pool() {
    must headpond pool create "$NAME" "$(drive ssda)" "$(drive ssdb)" --state "$STATE/headpond"
}

# Starts the daemon on the cache devices that are given, both if none is, and waits until it says that it is up.
serve() {
    [ $# -gt 0 ] || set -- "$(drive ssda)" "$(drive ssdb)"
    begun=$(now)
    [ ! -e "$CONFIG" ] || set -- "$@" --config "$CONFIG"
    echo "serve $* --state $STATE/headpond --socket $SOCKET --frontend $(front_end)" >/run/serve.arguments
    rm -f /run/serve.out
    mkfifo /run/serve.out
    # shellcheck disable=SC2046 # several words are meant
    RUST_BACKTRACE=1 RUST_LOG=info /tmp/headpond $(cat /run/serve.arguments) </dev/null >/run/serve.out 2>>/host/daemon.log 3<&- &
    echo $! >/run/daemon.pid
    # Its first line says that it is up; there is none if it ends.
    read -r line </run/serve.out || fail "the daemon did not start"
    case $line in
    pool*) echo "::figure start-ms $((($(now) - begun) * 10))" ;;
    *) fail "the daemon says something else than that it is up: $line" ;;
    esac
}

# Kills the daemon, and starts it as it was started first, so many milliseconds after it is gone; with what else is given.
replace_daemon() {
    late=$1
    shift
    daemon=$(cat /run/daemon.pid)
    kill -0 "$daemon" 2>/dev/null || fail "the daemon ended by itself under load"
    # shellcheck disable=SC2046 # several words are meant
    load replace "$daemon" "$late" /tmp/headpond $(cat /run/serve.arguments) "$@" 3<&- || fail "the daemon was not started again"
}

# The name of the program that a process runs. Its folder Linux 7.3 tells from another root than the guest's.
runs() {
    exe=$(readlink "/proc/$1/exe")
    echo "${exe##*/}"
}

# Lets another program go on in the daemon's place: one and the same, under another name than the last.
upgrade_daemon() {
    daemon=$(cat /run/daemon.pid)
    program=/tmp/headpond-newer
    [ "$(runs "$daemon")" != "${program##*/}" ] || program=/tmp/headpond
    said=$(headpond upgrade --program "$program" --json --socket "$SOCKET" 2>&1) || fail "the upgrade failed: $said"
    [ "$(runs "$daemon")" = "${program##*/}" ] || fail "the daemon's process runs $(runs "$daemon"), and should run $program"
    seconds=$(echo "$said" | sed -n 's/.*"pause_seconds":\([0-9]*\.[0-9]*\).*/\1/p')
    thousandths=$(echo "${seconds#*.}000" | cut -c 1-3)
    echo "::figure upgrade-ms $((${seconds%.*} * 1000 + 1$thousandths - 1000))"
}

attach() {
    must headpond attach "$NAME" "$(drive disk)" --socket "$SOCKET" --phase 0
}

status() {
    headpond status --json --socket "$SOCKET"
}

# The volume's block device.
volume() {
    place=$(status | sed -n 's/.*"place":"\([^"]*\)".*/\1/p')
    case $place in
    /dev/*) echo "$place" ;;
    *) fail "the volume has no block device, but: $place" ;;
    esac
}

# Whether the device stays, and what uses it, while the daemon is away.
stays() {
    case $(volume) in
    /dev/ublkb*) return 0 ;;
    *) return 1 ;;
    esac
}

# Which volume a device is that stays, udev is told also while no daemon serves it.
named() {
    stays || return 0
    device=$(volume)
    is_named "$device"
    kill_daemon
    is_named "$device"
    serve
    [ "$(volume)" = "$device" ] || fail "the device has changed"
    is_named "$device"
}

is_named() {
    said=$(headpond udev-name "${1##*/}")
    [ "$said" = "$NAME/$NAME" ] || fail "$1 is named $said"
    echo "named $said"
}

kill_daemon() {
    daemon=$(cat /run/daemon.pid)
    kill -0 "$daemon" 2>/dev/null || fail "the daemon ended by itself under load"
    load kill "$daemon"
    while kill -0 "$daemon" 2>/dev/null; do usleep 10000; done
}

# Waits until the pause since the kill has been measured.
io_flows() {
    begun=$(now)
    while [ -e /run/killed ]; do
        [ $(($(now) - begun)) -lt 6000 ] || fail "the daemon is up again, and for a minute no request was answered"
        usleep 20000
    done
}

stop_daemon() {
    daemon=$(cat /run/daemon.pid)
    kill -TERM "$daemon" || fail "the daemon had ended by itself"
    begun=$(now)
    while kill -0 "$daemon" 2>/dev/null; do
        [ $(($(now) - begun)) -lt 9000 ] || fail "told to end, the daemon did not end within 90 s"
        usleep 50000
    done
}

# How many requests the daemon answered with an error since it was started.
errors() {
    status | grep -o '"errors":[0-9]*' | cut -d : -f 2
}

no_errors() {
    errors=$(errors)
    [ "$errors" = 0 ] || fail "the daemon counts ${errors:-an unknown number of} failed requests, and none may fail"
}

# Counts the hits of this daemon that threads of queues have served without its engine.
hits_beside() {
    echo "::count hits-beside-the-engine $(status | sed -n 's/.*"hit_beside":{"bytes":[0-9]*,"requests":\([0-9]*\)}.*/\1/p')"
}

make_fs() {
    module "$1"
    case $1 in
    ext4) must mkfs.ext4 -q -F -E lazy_itable_init=0 "$2" ;;
    xfs) must mkfs.xfs -q -f "$2" ;;
    btrfs) must mkfs.btrfs -q -f "$2" ;;
    esac
}

# Changes nothing, and fails if anything is wrong.
check_fs() {
    case $1 in
    ext4) must e2fsck -f -n "$2" ;;
    xfs) must xfs_repair -n "$2" ;;
    btrfs) must btrfs check --readonly "$2" ;;
    esac
    echo "::count clean-fscks 1"
}

# Mounts the volume, which replays the file system's journal.
mount_fs() {
    module "$1"
    must mount -t "$1" "$(volume)" "$POINT"
}

unmount_fs() {
    begun=$(now)
    until umount "$POINT" 2>/tmp/umount.log; do
        grep -q "$POINT" /proc/mounts || break
        [ $(($(now) - begun)) -lt 6000 ] || fail "the file system cannot be unmounted: $(cat /tmp/umount.log)"
        usleep 100000
    done
}

# fio, our own durable files, changes of names and reads of hot blocks, in the background, without an end of their own.
begin_load() {
    rm -f /run/stop /run/pauses.pid
    cat >/tmp/load.fio <<JOB
[global]
directory=$POINT
thread=1
randseed=$1
size=24m
rw=randrw
time_based=1
runtime=3600
[cached]
ioengine=psync
bsrange=512-128k
fsync=16
[direct]
ioengine=libaio
iodepth=4
direct=1
blockalign=4k
bsrange=4k-128k
fdatasync=32
[verified]
ioengine=psync
direct=1
rw=randwrite
blockalign=4k
bsrange=4k-64k
verify=crc32c
verify_backlog=64
verify_fatal=1
JOB
    fio /tmp/load.fio </dev/null >/tmp/load-fio.log 2>&1 3<&- &
    echo $! >/run/fio.pid
    load durable "$POINT" "$2" </dev/null 3<&- &
    echo $! >/run/durable.pid
    load names "$POINT/names" "$1" </dev/null 3<&- &
    echo $! >/run/names.pid
    load hot "$POINT/hot" "$1" </dev/null 3<&- &
    echo $! >/run/hot.pid
}

# Measures how long requests wait, beside the load.
begin_pauses() {
    rm -f /run/killed
    load pauses "$POINT/probe" </dev/null 3<&- &
    echo $! >/run/pauses.pid
}

# Ends what begin_load began. A load that met an error has ended by itself, and is told of by its own words.
end_load() {
    : >/run/stop
    kill -INT "$(cat /run/fio.pid)" 2>/dev/null || :
    for who in fio durable names hot pauses; do
        [ -e /run/$who.pid ] || continue
        begun=$(now)
        while kill -0 "$(cat /run/$who.pid)" 2>/dev/null; do
            [ $(($(now) - begun)) -lt 6000 ] || fail "the load $who does not end"
            usleep 50000
        done
    done
    # Errors of a device that died are expected, wrong data is not.
    if grep -E 'verify failed|verify: bad' /tmp/load-fio.log; then
        fail "MISMATCH: fio read what it did not write"
    fi
}

loads_run() {
    for who in fio durable names hot pauses; do
        [ -e /run/$who.pid ] || continue
        kill -0 "$(cat /run/$who.pid)" 2>/dev/null || {
            tail -n 5 /tmp/load-fio.log
            fail "the load $who ended by itself"
        }
    done
}

# A job that fio can verify later: at what, its size, seed.
verified_job() {
    cat >/tmp/verified.fio <<JOB
[verified]
filename=$1
size=$2
randseed=$3
ioengine=psync
rw=randwrite
bsrange=4k-64k
blockalign=4k
verify=crc32c
verify_fatal=1
end_fsync=1
fallocate=none
JOB
}

# Writes it, and makes it durable.
write_verified() {
    verified_job "$@"
    must fio --do_verify=0 /tmp/verified.fio
}

# Reads it again.
verify() {
    verified_job "$@"
    must fio --verify_only /tmp/verified.fio
    echo "::count fio-verifies 1"
}

# From now on the disk alone has the content.
detach_volume() {
    must headpond detach "$NAME" --socket "$SOCKET"
}
