# The experiments of the NFS server, for real, on this machine's drives.

# What a kernel's NFS needs of the system around it: a loopback that is up, names and folders where its programs look for them.
nfs_is_ready() {
    for name in nfsd nfs nfsv4 fuse loop dm-mod xfs ext4; do module "$name"; done
    must ip link set lo up
    mkdir -p /var/lib/nfs/rpc_pipefs /var/lib/nfs/v4recovery
    : >/etc/exports
    : >/var/lib/nfs/etab
    : >/var/lib/nfs/rmtab
    echo "127.0.0.1 localhost" >/etc/hosts
    # mount looks for it there and nowhere else.
    for name in mount.nfs mount.nfs4; do ln -sf /bin/mount.nfs "/sbin/$name"; done
    ln -sf /proc/mounts /etc/mtab
}

# Runs them; what they say goes to the host as it is said, and their table to a file.
experiments() {
    nfs_is_ready
    front_end
    code=0
    RUST_LOG=warn /tmp/headpond experiments "$@" --real --yes-erase --dir /tmp --out /host/results 2>&1 >/host/results/table </dev/null || code=$?
    echo "experiments ended $code"
    dmesg | grep -E 'I/O error|BUG:|Oops|nfsd: |NFSD: |blocked for more' | tail -n 10 || :
}
