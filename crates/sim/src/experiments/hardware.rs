//! The original hardware, from data sheets where there are any. Each figure that matters is listed with its reason: the report prints it.

use super::array::{ArrayParams, CacheParams, Layout};
use super::front::FrontParams;
use crate::models::MICROSECOND;
use crate::models::rotating::RotatingParams;
use crate::models::ssd::{Direction, SsdParams};
use std::borrow::Cow;

/// Where a figure comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The source of the experiment, or a data sheet of the part.
    DataSheet,
    /// Set so that the published bare figures come out.
    Calibrated,
    /// Neither: what is usual of the part and the time.
    Assumed,
    /// Found on the machine on which an experiment ran.
    ThisMachine,
}

/// A parameter of a model.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The machine: A, B or C.
    pub machine: &'static str,
    /// What it is.
    pub name: &'static str,
    /// Its value.
    pub value: Cow<'static, str>,
    /// Where it comes from.
    pub source: Source,
    /// Why this value.
    pub why: &'static str,
}

/// A server, its array and its SSDs.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The array of each volume.
    pub array: ArrayParams,
    /// Each of the two SSDs.
    pub ssd: SsdParams,
    /// Bytes of each SSD.
    pub ssd_bytes: u64,
    /// Network and server.
    pub front: FrontParams,
}

/// A: one NFS server, 48 disks in RAID 60, two PCIe SSDs, InfiniBand.
#[must_use]
pub fn nfs_server() -> Machine {
    let disk = RotatingParams {
        capacity: 3_000_000_000_000 / 4096 * 4096,
        outer_rate: 155_000_000,
        inner_rate: 75_000_000,
        interface_rate: 600_000_000,
        ..RotatingParams::nearline_7200()
    };
    Machine {
        array: ArrayParams {
            disk,
            layout: Layout::Raid60 { spans: 4, width: 12, chunk: 512 << 10 },
            read_rate: 2_700_000_000,
            write_rate: 2_150_000_000,
            request_ns: 60 * MICROSECOND,
            cache: Some(CacheParams { bytes: 1 << 30, rows: 3, percent: 25 }),
        },
        ssd: SsdParams {
            read: Direction { latency_ns: 42 * MICROSECOND, channels: 18, iops: Some(415_000), bytes_per_s: 1_750_000_000 },
            write: Direction { latency_ns: 15 * MICROSECOND, channels: 4, iops: Some(145_000), bytes_per_s: 1_100_000_000 },
            total_iops: None,
            total_bytes_per_s: None,
            flush_ns: 10 * MICROSECOND,
            discard_ns: 50 * MICROSECOND,
            pauses: None,
        },
        ssd_bytes: 350_000_000_000 / 4096 * 4096,
        front: FrontParams {
            latency_ns: 35 * MICROSECOND,
            client_rate: 1_200_000_000,
            server_rate: 3_300_000_000,
            threads: 256,
            cores: 16,
            op_ns: 125 * MICROSECOND,
            kib_ns: 1_000,
            journal: None,
        },
    }
}

/// C: one of the two servers of the pair, its array of 41 disks, and its half of the mirrored SAS SSDs.
#[must_use]
pub fn lustre_server() -> Machine {
    let disk = RotatingParams {
        capacity: 6_000_000_000_000 / 4096 * 4096,
        outer_rate: 226_000_000,
        inner_rate: 110_000_000,
        interface_rate: 1_100_000_000,
        queue_depth: 128,
        ..RotatingParams::nearline_7200()
    };
    Machine {
        array: ArrayParams {
            disk,
            layout: Layout::Declustered { disks: 41, width: 10, spares: 2, chunk: 128 << 10 },
            read_rate: 6_600_000_000,
            write_rate: 6_600_000_000,
            request_ns: 40 * MICROSECOND,
            cache: None,
        },
        ssd: SsdParams {
            read: Direction { latency_ns: 100 * MICROSECOND, channels: 10, iops: Some(100_000), bytes_per_s: 950_000_000 },
            write: Direction { latency_ns: 40 * MICROSECOND, channels: 2, iops: Some(40_000), bytes_per_s: 425_000_000 },
            total_iops: None,
            total_bytes_per_s: None,
            flush_ns: 50 * MICROSECOND,
            discard_ns: 100 * MICROSECOND,
            pauses: None,
        },
        ssd_bytes: 1_600_000_000_000 / 4096 * 4096,
        front: FrontParams {
            latency_ns: 30 * MICROSECOND,
            client_rate: 10_000_000_000,
            server_rate: 11_000_000_000,
            threads: 4096,
            cores: 16,
            op_ns: 40 * MICROSECOND,
            kib_ns: 50,
            journal: None,
        },
    }
}
