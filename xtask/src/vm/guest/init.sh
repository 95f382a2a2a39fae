#!/bin/sh
# The guest's first process: loads what every guest needs, then runs the scripts that the host names, one at a time.
export PATH=/bin:/sbin HOME=/tmp DM_DISABLE_UDEV=1
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mkdir -p /dev/pts /run/headpond
for module in virtio_pci virtio_blk virtio_console virtio_rng 9pnet_virtio 9p; do
    modprobe "$module" || echo "module $module does not load"
done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 host /host || echo "the share does not mount"
# The channel to the host. It is opened once, as the kernel lets nobody open it twice.
for port in /sys/class/virtio-ports/*; do
    exec 3<>"/dev/${port##*/}"
done
cp /host/headpond /host/xtask /tmp/
echo "::ready" >&3
while read -r script <&3; do
    (
        set -e
        . /host/library.sh
        . "/host/$script"
    ) <&3 >&3 2>&3
    echo "::ended $?" >&3
done
poweroff -f
