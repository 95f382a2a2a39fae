//! Which experiments have a real form, and why the others have none.

use super::tools::Tool;
use super::{Run, b, c_apps, c_small, c_streams, metadata, tar};
use anyhow::Result;
use headpond_sim::experiments::outcome::Outcome;

/// What there is of an experiment.
pub enum Form {
    /// It can be run.
    Runs {
        /// How it is done here.
        method: &'static str,
        /// What it needs.
        tools: &'static [Tool],
        /// Runs it.
        run: fn(&Run<'_>) -> Result<Outcome>,
    },
    /// It cannot, and why.
    Not(&'static str),
}

const NFS: &str = "it is about a server of NFS and its clients. They belong into the virtual machine, with the kernel's own NFS, which is not built \
                   yet; on a local file system it would be another experiment (C1 and C2 have its streams and random requests). The \
                   simulated form has it";

/// All of them, by number.
pub const ALL: &[(&str, Form)] = &[
    ("A1", Form::Not(NFS)),
    ("A2", Form::Not(NFS)),
    ("A3", Form::Not(NFS)),
    ("A4", Form::Not(NFS)),
    (
        "A5",
        Form::Runs {
            method: "fio's file-creation, stat and delete engines in place of mdtest, on a local file system that is mounted with dirsync in \
                     place of a synchronous NFS export: 1 to 512 threads share out the files of a point (scaled from a million to 512 and \
                     more), each in one directory; before stat and delete it is unmounted and mounted again.",
            tools: &[Tool::Fio],
            run: metadata::a5,
        },
    ),
    ("A6", Form::Not(NFS)),
    ("A7", Form::Not(NFS)),
    (
        "B1",
        Form::Runs {
            method: "fio: two processes stream, past a cache that random writes have filled; then 4 KiB anywhere in 512 MiB (scaled from \
                     4 GiB), into an empty cache whose space for writes is small beside that, second by second.",
            tools: &[Tool::Fio],
            run: b::b1,
        },
    ),
    (
        "B2",
        Form::Runs {
            method: "fio: 1, 2 and 4 clients, each with a file system, a volume and a disk of its own, write a file and read another's \
                     (scaled from 64 clients and 16 GiB to what two cores carry).",
            tools: &[Tool::Fio],
            run: b::b2,
        },
    ),
    (
        "C1",
        Form::Runs {
            method: "fio in place of ior: 4 streams (scaled from 32 processes), each over a file of its own, 1 MiB requests, 4 under way, direct \
                     I/O; written, then read.",
            tools: &[Tool::Fio],
            run: c_streams::c1,
        },
    ),
    (
        "C2",
        Form::Runs {
            method: "C1's streams with 4 processes beside them that ask for 4 KiB anywhere in their files (scaled from 280 MiB each to 64, and \
                     to 128 where the cache is to be full), 4 under way; what \
                     they read has been written so and read once before. Then with SSDs whose space for writes is 9 % of these files.",
            tools: &[Tool::Fio],
            run: c_streams::c2,
        },
    ),
    (
        "C3",
        Form::Runs {
            method: "C1's streams beside 0, 4, 8 and 12 random writers (scaled from 32, 96, 160 and 224 threads in all), while the dirty set \
                     fits.",
            tools: &[Tool::Fio],
            run: c_streams::c3,
        },
    ),
    (
        "C4",
        Form::Runs {
            method: "A Python program with h5py in SWMR mode appends 4 KiB to a dataset, flushes it and calls fsync, again and again; two readers \
                     refresh and read the end of it every 10 ms. They are on the same host, so that its page cache serves them.",
            tools: &[Tool::H5py],
            run: c_small::c4,
        },
    ),
    (
        "C5",
        Form::Runs {
            method: "fio: 4 processes write, write again and read 4 KiB and 64 KiB anywhere and streams of 1 MiB, on multiples of their size and \
                     2,560 bytes past them; direct I/O.",
            tools: &[Tool::Fio],
            run: c_small::c5,
        },
    ),
    (
        "C6",
        Form::Runs {
            method: "GNU tar -x of 2,000 small files (scaled; half of them up to 8 KiB) in an order that is not the directories', as in a tree that \
                     has been in use, until all is synced; then, after an unmount and a mount, tar -c of it, synced; and the same once more.",
            tools: &[Tool::Tar],
            run: tar::c6,
        },
    ),
    (
        "C7",
        Form::Runs {
            method: "fio, 2 processes each with the published mixes of request sizes: large requests one after the other, small ones anywhere \
                     in another file. The mark of large-block ones is 0.97 here, where the simulated form has 0.995.",
            tools: &[Tool::Fio],
            run: c_apps::c7,
        },
    ),
];
