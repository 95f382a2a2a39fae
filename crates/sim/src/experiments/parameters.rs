//! What the models of the original hardware are made from, as a table for readers. The values themselves are in `hardware.rs`.

use super::hardware::Parameter;
use super::hardware::Source::{Assumed, Calibrated, DataSheet};
use std::borrow::Cow;

/// All that matters.
pub const PARAMETERS: &[Parameter] = &[
    Parameter {
        machine: "A",
        name: "array",
        value: Cow::Borrowed("48 disks, RAID 60: 4 spans of 10 + 2, segment 512 KiB"),
        source: DataSheet,
        why: "printed with the experiment",
    },
    Parameter {
        machine: "A",
        name: "disk",
        value: Cow::Borrowed("3 TB, 7200 rpm, 155 to 75 MB/s, mean seek 8.5 ms, its own cache off"),
        source: DataSheet,
        why: "near-line SAS disks of 3 TB of 2012; controllers turn the disks' caches off",
    },
    Parameter {
        machine: "A",
        name: "controller, writes",
        value: Cow::Borrowed("2,150 MB/s"),
        source: Calibrated,
        why: "A1: 40 data disks could take 6 GB/s, so that about 2,000 MiB/s is the controller's or the server's limit",
    },
    Parameter {
        machine: "A",
        name: "controller, reads",
        value: Cow::Borrowed("2,700 MB/s"),
        source: Assumed,
        why: "no bare figure for A2 is published; below the 3,050 MiB/s that the cache reached over it",
    },
    Parameter {
        machine: "A",
        name: "non-volatile write cache",
        value: Cow::Borrowed("1 GiB; whole rows go first, others in sweeps from a quarter full"),
        source: DataSheet,
        why: "size of the controllers sold with these enclosures; the order is the usual one",
    },
    Parameter {
        machine: "A",
        name: "rows on their way from that cache to the disks",
        value: Cow::Borrowed("3"),
        source: Calibrated,
        why: "A3: about 1,600 random writes per second once its sweeps find all that they ever will, which is 200 accesses per disk at six for each write",
    },
    Parameter {
        machine: "A",
        name: "random requests in flight per client",
        value: Cow::Borrowed("2"),
        source: Calibrated,
        why: "A4: 9,300 random reads per second keep 48 disks busy all of the time, which 64 requests cannot",
    },
    Parameter {
        machine: "A",
        name: "SSDs",
        value: Cow::Borrowed("2 x 350 GB PCIe SLC: 415,000 reads/s, 145,000 writes/s, 1,750 and 1,100 MB/s, no volatile cache"),
        source: DataSheet,
        why: "the class of 2.5 inch PCIe SSD that the system was sold with",
    },
    Parameter {
        machine: "A",
        name: "network",
        value: Cow::Borrowed("IPoIB: 35 us one way, 1.2 GB/s per client, 3.3 GB/s at the server"),
        source: Assumed,
        why: "usual of FDR with IPoIB; 3,050 MiB/s of A2 are the server's link",
    },
    Parameter {
        machine: "A",
        name: "NFS server",
        value: Cow::Borrowed("256 threads, 16 cores, 125 us of a core per request, 1 us per KiB"),
        source: Calibrated,
        why: "threads are printed; the time gives 128,000 requests per second, over the 123,000 that were published",
    },
    Parameter {
        machine: "B",
        name: "OST",
        value: Cow::Borrowed("one RAID 6 of 10 + 2 disks as in A, 256 MiB of non-volatile cache, 400 MB/s"),
        source: Assumed,
        why: "only totals are printed",
    },
    Parameter {
        machine: "B",
        name: "client",
        value: Cow::Borrowed("1.05 GB/s, cache of 12 GB; beyond it a block is freed for each that is written"),
        source: DataSheet,
        why: "printed: over 1 GB/s, then a third lower",
    },
    Parameter {
        machine: "C",
        name: "arrays",
        value: Cow::Borrowed(
            "41 disks, declustered 8 + 2 with the space of 2 spare, chunk 128 KiB; one of the two arrays is simulated",
        ),
        source: DataSheet,
        why: "printed, but for the chunk (1 MiB of data in a row); the other half is its twin, so the published sums are halved",
    },
    Parameter {
        machine: "C",
        name: "disk",
        value: Cow::Borrowed("6 TB, 7200 rpm, 226 to 110 MB/s, mean seek 8.5 ms, its own cache off, 128 requests sorted"),
        source: DataSheet,
        why: "near-line SAS disks of 6 TB; the block layer sorts 128 requests",
    },
    Parameter {
        machine: "C",
        name: "software RAID, either direction",
        value: Cow::Borrowed("6,600 MB/s"),
        source: Calibrated,
        why: "C1: half of 13,143 MB/s",
    },
    Parameter {
        machine: "C",
        name: "files being written",
        value: Cow::Borrowed("pieces of 1 MiB, given out as they are asked for; 16 MiB under way per process"),
        source: Assumed,
        why: "OSTs allocate as writes arrive, so what all processes write at one time lies side by side; with larger pieces the modelled disks now and then fall to 4 or 5 GB/s",
    },
    Parameter {
        machine: "C",
        name: "files being read",
        value: Cow::Borrowed("pieces of 256 MiB, read-ahead of 64 MiB per process"),
        source: Calibrated,
        why: "C1: half of 11,182 MB/s, to 12 %; runs on a disk must be long for it",
    },
    Parameter {
        machine: "C",
        name: "SSDs",
        value: Cow::Borrowed("2 x 3.2 TB SAS, mirrored; half of each: 100,000 reads/s, 40,000 writes/s, 950 and 425 MB/s"),
        source: DataSheet,
        why: "SAS SSDs of that size; the two servers share them",
    },
    Parameter {
        machine: "C",
        name: "network and server",
        value: Cow::Borrowed("30 us one way, 10 GB/s per client, 11 GB/s at the server, 40 us of one of 16 cores per request"),
        source: Assumed,
        why: "usual of EDR with RDMA and Lustre",
    },
];
