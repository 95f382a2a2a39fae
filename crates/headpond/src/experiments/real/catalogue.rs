//! The real form of each experiment.

use super::tools::Tool;
use super::{Run, b, c_apps, c_small, c_streams, metadata, nfs_random, nfs_streams, tar};
use anyhow::Result;
use headpond_sim::experiments::outcome::Outcome;

/// How an experiment is run.
pub struct Form {
    /// How it is done here.
    pub method: &'static str,
    /// What it needs: where that is missing, it is said why.
    pub tools: &'static [Tool],
    /// Runs it.
    pub run: fn(&Run<'_>) -> Result<Outcome>,
}

/// What all of those of the NFS server need.
const NFS: &[Tool] = &[Tool::Nfs, Tool::Fio];

/// Whether an experiment can be run on devices that are given.
pub fn takes_devices(id: &str) -> bool {
    ALL.iter().any(|(it, form)| *it == id && form.tools.contains(&Tool::Nfs))
}

/// All of them, by number.
pub const ALL: &[(&str, Form)] = &[
    (
        "A1",
        Form {
            method: "The kernel's NFS server with 64 threads (scaled from 256), synchronous exports, and its client in the same kernel, NFS 4.2 over loopback (scaled from InfiniBand); fio in place of iozone: 1 and 16 clients (scaled from 64) write 256 MiB together (quick: 16, 128 MiB; scaled from 4 GiB each), a file each, new and then again, past the clients' page cache in requests of 4 MiB that end in a COMMIT. Before each the server's page cache is emptied and what is dirty written down.",
            tools: NFS,
            run: nfs_streams::a1,
        },
    ),
    (
        "A2",
        Form {
            method: "The kernel's NFS server with 64 threads (scaled from 256), synchronous exports, and its client in the same kernel, NFS 4.2 over loopback (scaled from InfiniBand); fio: A1's files, preloaded into the cache, are read once by 1 and 16 clients in requests of 1 MiB, 4 under way, while the server's page cache is empty. The SSDs alone are two others like the pool's, each with a file system, in pass-through.",
            tools: NFS,
            run: nfs_streams::a2,
        },
    ),
    (
        "A3",
        Form {
            method: "The kernel's NFS server with 64 threads (scaled from 256), synchronous exports, and its client in the same kernel, NFS 4.2 over loopback (scaled from InfiniBand); fio: 1 and 64 clients (quick: 64) with a file each, 256 MiB together (scaled from 4 GiB each), write 4 KiB anywhere, one request of each under way, and each durable before it is answered; while the dirty set fits. Then 64 files of 8 MiB, and SSDs of which the space for writes is a tenth of these: filled by random writes on the server itself, and then measured. The SSDs alone are as in A4.",
            tools: &[Tool::Nfs, Tool::Fio, Tool::Dmsetup],
            run: nfs_random::a3,
        },
    ),
    (
        "A4",
        Form {
            method: "The kernel's NFS server with 64 threads (scaled from 256), synchronous exports, and its client in the same kernel, NFS 4.2 over loopback (scaled from InfiniBand); fio: A3's files, preloaded, are read by 1 and 64 clients, 4 KiB anywhere, one request of each under way. The server's page cache is emptied ten times a second, as its files would be many times its memory. The SSDs alone are two others like the pool's, each with a file system, in pass-through.",
            tools: NFS,
            run: nfs_random::a4,
        },
    ),
    (
        "A5",
        Form {
            method: "fio's file-creation, stat and delete engines in place of mdtest, on a local file system that is mounted with dirsync in \
                     place of a synchronous NFS export: 1 to 512 threads share out the files of a point (scaled from a million to 512 and \
                     more), each in one directory; before stat and delete it is unmounted and mounted again.",
            tools: &[Tool::Fio],
            run: metadata::a5,
        },
    ),
    (
        "A6",
        Form {
            method: "The kernel's NFS server with 64 threads (scaled from 256), synchronous exports, and its client in the same kernel, NFS 4.2 over loopback (scaled from InfiniBand); fio: 64 clients read 4 KiB anywhere, no place twice; then 256 KiB of each file (quick: 128) again and again, second by second. The server's page cache is emptied ten times a second. Before each the cache is made cold while the volume is mounted and exported.",
            tools: NFS,
            run: nfs_random::a6,
        },
    ),
    (
        "A7",
        Form {
            method: "The kernel's NFS server with 64 threads (scaled from 256), synchronous exports, and its client in the same kernel, NFS 4.2 over loopback (scaled from InfiniBand); fio: A1's files are read once by 1 and 16 clients, in requests of 1 MiB, 4 under way. Before each the cache is made cold, as in A6.",
            tools: NFS,
            run: nfs_streams::a7,
        },
    ),
    (
        "B1",
        Form {
            method: "fio: two processes stream, past a cache that random writes have filled; then 4 KiB anywhere in 512 MiB (scaled from \
                     4 GiB), into an empty cache whose space for writes is small beside that, second by second.",
            tools: &[Tool::Fio],
            run: b::b1,
        },
    ),
    (
        "B2",
        Form {
            method: "fio: 1, 2 and 4 clients, each with a file system, a volume and a disk of its own, write a file and read another's \
                     (scaled from 64 clients and 16 GiB to what two cores carry).",
            tools: &[Tool::Fio],
            run: b::b2,
        },
    ),
    (
        "C1",
        Form {
            method: "fio in place of ior: 4 streams (scaled from 32 processes), each over a file of its own, 1 MiB requests, 4 under way, direct \
                     I/O; written, then read.",
            tools: &[Tool::Fio],
            run: c_streams::c1,
        },
    ),
    (
        "C2",
        Form {
            method: "C1's streams with 4 processes beside them that ask for 4 KiB anywhere in their files (scaled from 280 MiB each to 64, and \
                     to 512 where the cache is to be full), 4 under way; what \
                     they read has been written so and read once before. Then with SSDs whose space for writes is 9 % of these files.",
            tools: &[Tool::Fio],
            run: c_streams::c2,
        },
    ),
    (
        "C3",
        Form {
            method: "C1's streams beside 0, 4, 8 and 12 random writers (scaled from 32, 96, 160 and 224 threads in all), while the dirty set \
                     fits.",
            tools: &[Tool::Fio],
            run: c_streams::c3,
        },
    ),
    (
        "C4",
        Form {
            method: "A Python program with h5py in SWMR mode appends 4 KiB to a dataset, flushes it and calls fsync, again and again; two readers \
                     refresh and read the end of it every 10 ms. They are on the same host, so that its page cache serves them. The SSDs have \
                     power-loss protection, as the original's: a flush takes 0.1 ms.",
            tools: &[Tool::H5py],
            run: c_small::c4,
        },
    ),
    (
        "C5",
        Form {
            method: "fio: 4 processes write, write again and read 4 KiB and 64 KiB anywhere and streams of 1 MiB, on multiples of their size and \
                     2,560 bytes past them; direct I/O.",
            tools: &[Tool::Fio],
            run: c_small::c5,
        },
    ),
    (
        "C6",
        Form {
            method: "GNU tar -x of 2,000 small files (scaled; half of them up to 8 KiB) in an order that is not the directories', as in a tree that \
                     has been in use, until all is synced; then, after an unmount and a mount, tar -c of it, synced; and the same once more.",
            tools: &[Tool::Tar],
            run: tar::c6,
        },
    ),
    (
        "C7",
        Form {
            method: "fio, 2 processes each with the published mixes of request sizes: large requests one after the other, small ones anywhere \
                     in another file. The mark of large-block ones is 0.97 here, where the simulated form has 0.995.",
            tools: &[Tool::Fio],
            run: c_apps::c7,
        },
    ),
];
