# The contenders of `cargo xtask peers`: each is set up on the disk and the two SSDs, told to clean, and set up again after a crash.
# The kernel's caches have a RAID 1 of both SSDs, without a bitmap, which costs them nothing in writes; Headpond mirrors by itself.

# Tells which block device the load goes to. A name that does not exist would become a file in memory, and benchmark wonderfully.
target_is() {
    [ -b "$1" ] || fail "$1 is no block device"
    echo "$1" >/run/target
}

target() {
    cat /run/target
}

# The RAID 1 of both SSDs: new ones are alike, as they are zeroes; after a crash they need not be, and are made so meanwhile.
mirror() {
    if [ "$1" = new ]; then how="4 0 nosync region_size 8192"; else how="3 0 region_size 8192"; fi
    sectors=$(blockdev --getsz "$(drive ssda)")
    must dmsetup create fast --table "0 $sectors raid raid1 $how 2 - $(drive ssda) - $(drive ssdb)"
    [ -b /dev/mapper/fast ] || fail "the mirror has no device"
}

bare_modules() { :; }

bare_up() {
    target_is "$(drive disk)"
}

bare_dirty() {
    echo 0
}

bare_clean() { :; }

bare_settings() { :; }

bcache_modules() {
    module raid1
    module dm-raid
    module bcache
}

bcache_up() {
    mirror "$1"
    [ "$1" = again ] || must make-bcache --writeback -C /dev/mapper/fast -B "$(drive disk)"
    for part in /dev/mapper/fast "$(drive disk)"; do
        echo "$part" >/sys/fs/bcache/register || fail "$part is not registered"
    done
    begun_waiting=$(now)
    until [ -b /dev/bcache0 ] && [ "$(cat /sys/block/bcache0/bcache/state)" != "no cache" ]; do
        [ $(($(now) - begun_waiting)) -lt 6000 ] || fail "bcache does not come up"
        usleep 10000
    done
    target_is /dev/bcache0
}

# In KiB, of a text such as 1.4M.
bcache_dirty() {
    awk '{ n = $1 + 0; if (/M/) n *= 1024; if (/G/) n *= 1048576; if (/T/) n *= 1073741824; if ($1 !~ /[kMGT]/) n /= 1024; printf "%d\n", n }' \
        /sys/block/bcache0/bcache/dirty_data
}

# It keeps a share of its cache dirty unless told that none shall be.
bcache_clean() {
    cd /sys/block/bcache0/bcache
    percent=$(cat writeback_percent) delay=$(cat writeback_delay)
    echo 0 >writeback_delay
    echo 0 >writeback_percent
    until [ "$(cat state)" = clean ] || late; do usleep 20000; done
    echo "$percent" >writeback_percent
    echo "$delay" >writeback_delay
    cd /
}

bcache_settings() {
    (
        cd /sys/block/bcache0/bcache
        for name in cache_mode sequential_cutoff writeback_percent writeback_delay writeback_rate_minimum; do
            echo "setting $name = $(cat $name)"
        done
        cd cache
        for name in congested_read_threshold_us congested_write_threshold_us; do
            echo "setting $name = $(cat $name)"
        done
        echo "setting bucket size = $(cat bucket_size)"
    )
    echo "setting fast: $(dmsetup table fast)"
}

dmcache_modules() {
    module raid1
    module dm-raid
    module dm-cache
    module dm-cache-smq
}

# Metadata: 8 MiB at the front of the mirror, far more than it takes.
dmcache_table() {
    echo "0 $(blockdev --getsz "$(drive disk)") cache /dev/mapper/fastmeta /dev/mapper/fastdata $(drive disk) 128 1 writeback $1 0"
}

dmcache_up() {
    mirror "$1"
    sectors=$(($(blockdev --getsz /dev/mapper/fast) - 16384))
    must dmsetup create fastmeta --table "0 16384 linear /dev/mapper/fast 0"
    must dmsetup create fastdata --table "0 $sectors linear /dev/mapper/fast 16384"
    must dmsetup create target --table "$(dmcache_table smq)"
    target_is /dev/mapper/target
}

dmcache_blocks() {
    dmsetup status target | cut -d ' ' -f 14
}

dmcache_dirty() {
    echo $(($(dmcache_blocks) * 64))
}

dmcache_policy() {
    must dmsetup suspend target
    must dmsetup reload target --table "$(dmcache_table "$1")"
    must dmsetup resume target
}

dmcache_clean() {
    dmcache_policy cleaner
    until [ "$(dmcache_blocks)" = 0 ] || late; do usleep 20000; done
    dmcache_policy smq
}

dmcache_settings() {
    for name in fast fastmeta fastdata target; do echo "setting $name: $(dmsetup table $name)"; done
}

writecache_modules() {
    module raid1
    module dm-raid
    module dm-writecache
}

writecache_up() {
    mirror "$1"
    sectors=$(blockdev --getsz "$(drive disk)")
    must dmsetup create target --table "0 $sectors writecache s $(drive disk) /dev/mapper/fast 4096 0"
    target_is /dev/mapper/target
}

writecache_dirty() {
    dmsetup status target | awk '{ print ($5 - $6) * 4 }'
}

# What is told to be written back at a suspension is then; the suspension waits for it.
writecache_clean() {
    must dmsetup message target 0 flush_on_suspend
    must dmsetup suspend target
    must dmsetup resume target
}

writecache_settings() {
    for name in fast target; do echo "setting $name: $(dmsetup table $name)"; done
}

headpond_modules() {
    front_end >/dev/null
    state_disk "$1"
    [ ! -e /host/headpond.toml ] || cp /host/headpond.toml "$CONFIG"
}

headpond_up() {
    if [ "$1" = new ]; then
        create_pool
        serve
        attach
        target_is "$(volume)"
    else
        # The only one there is: to ask would take one more start of the program, and what is timed is when the device can be used.
        serve
        target_is /dev/ublkb0
    fi
}

headpond_dirty() {
    status | grep -o '"dirty_bytes":[0-9]*' | cut -d : -f 2 | awk '{ if ($1 > most) most = $1 } END { printf "%d\n", most / 1024 }'
}

headpond_clean() {
    must headpond flush "$NAME" --socket "$SOCKET"
}

headpond_settings() {
    echo "setting $(cat /run/serve.arguments)"
    [ ! -e "$CONFIG" ] || sed 's/^/setting /' "$CONFIG"
}

# Whether what is waited for takes longer than it may.
late() {
    [ $(($(now) - begun)) -gt "$limit" ]
}

# All that was written is on the disk when its own cache has been flushed too.
flush_target() {
    must dd if=/dev/zero of="$(target)" bs=4096 count=0 conv=fsync,notrunc
}

# How long it takes, in hundredths of a second, until nothing is dirty; no longer than so many of these.
clean() {
    limit=$2
    echo "dirty $("$1_dirty")"
    begun=$(now)
    "$1_clean"
    flush_target
    echo "took $(($(now) - begun))"
    echo "left $("$1_dirty")"
}

# How long it takes after a crash until a block is read and one is written.
up_again() {
    "$1_modules" again
    begun=$(now)
    "$1_up" again
    must dd if="$(target)" of=/tmp/block bs=4096 count=1 iflag=direct
    must dd if=/tmp/block of="$(target)" bs=4096 count=1 oflag=direct conv=notrunc
    echo "took $(($(now) - begun))"
}

# What the processors did so far, and the daemon if there is one, in hundredths of a second.
processors() {
    read -r _ user nice system idle _ </proc/stat
    daemon=none
    [ ! -e /run/daemon.pid ] || daemon=$(cut -d ' ' -f 14,15 "/proc/$(cat /run/daemon.pid)/stat")
    echo "processors $1: user $((user + nice)), system $system, idle $idle; the daemon's user and system: $daemon"
}

# Runs a job; what fio counts goes to the host. What else is told says why a figure is what it is.
measure() {
    TARGET=$(target)
    export TARGET
    processors "before $1"
    must fio --output-format=json --output="/host/$1.json" "/host/$1.fio"
    processors "after $1"
    [ ! -e /run/daemon.pid ] || echo "status after $1: $(status)"
}
