//! What the kernel's `linux/ublk_cmd.h` fixes: commands, flags, and the layout of what goes with them.
//!
//! Facts of the kernel's interface, which its header publishes under the MIT licence as well.

use rustix::ioctl::opcode::{read, read_write};

/// The control device.
pub const CONTROL: &str = "/dev/ublk-control";
/// The folder with one entry for each ublk device, by the name of its character device.
pub const DEVICES: &str = "/sys/class/ublk-char";

/// Features: bits of a device's flags.
pub mod feature {
    /// A device outlives its daemon; I/O waits for the next one (Linux 6.1).
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// What the dead daemon had not answered is asked of the next one (6.1).
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands are encoded as those of `ioctl` are (6.4).
    pub const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// Payload is read from and written to the character device (6.5).
    pub const USER_COPY: u64 = 1 << 7;
    /// The size of a device that is in use can be changed (6.16).
    pub const UPDATE_SIZE: u64 = 1 << 10;
    /// A request's pages can be had in a ring's table of buffers (6.15; the bit was there before).
    pub const SUPPORT_ZERO_COPY: u64 = 1 << 0;
    /// In that of any thread's ring, not only the one that attends to the queue (6.17).
    pub const BUF_REG_OFF_DAEMON: u64 = 1 << 14;
}

/// Commands to the control device.
pub mod control {
    use super::{ControlCommand, read, read_write};

    /// Tells about a device.
    pub const GET_DEV_INFO: u32 = read::<ControlCommand>(b'u', 0x02) as u32;
    /// Makes a device, which is not there for clients yet.
    pub const ADD_DEV: u32 = read_write::<ControlCommand>(b'u', 0x04) as u32;
    /// Removes a device.
    pub const DEL_DEV: u32 = read_write::<ControlCommand>(b'u', 0x05) as u32;
    /// Offers a device to clients, once all its queues are attended.
    pub const START_DEV: u32 = read_write::<ControlCommand>(b'u', 0x06) as u32;
    /// Takes a device from its clients.
    pub const STOP_DEV: u32 = read_write::<ControlCommand>(b'u', 0x07) as u32;
    /// Sets what the block layer shows of a device.
    pub const SET_PARAMS: u32 = read_write::<ControlCommand>(b'u', 0x08) as u32;
    /// Tells what the block layer shows of a device.
    pub const GET_PARAMS: u32 = read::<ControlCommand>(b'u', 0x09) as u32;
    /// Begins to take over the device of a dead daemon.
    pub const START_USER_RECOVERY: u32 = read_write::<ControlCommand>(b'u', 0x10) as u32;
    /// Lets I/O go on after a takeover.
    pub const END_USER_RECOVERY: u32 = read_write::<ControlCommand>(b'u', 0x11) as u32;
    /// Tells what the driver can do.
    pub const GET_FEATURES: u32 = read::<ControlCommand>(b'u', 0x13) as u32;
    /// Changes a device's size; the number that goes with it is in sectors (6.16).
    pub const UPDATE_SIZE: u32 = read_write::<ControlCommand>(b'u', 0x15) as u32;
    /// Removes a device, and does not wait until its last user has closed it.
    pub const DEL_DEV_ASYNC: u32 = read::<ControlCommand>(b'u', 0x14) as u32;
}

/// Commands to a queue.
pub mod io {
    use super::{IoCommand, read_write};

    /// Asks for the first request of a tag.
    pub const FETCH_REQ: u32 = read_write::<IoCommand>(b'u', 0x20) as u32;
    /// Answers a request, and asks for the next one of its tag.
    pub const COMMIT_AND_FETCH_REQ: u32 = read_write::<IoCommand>(b'u', 0x21) as u32;
    /// Puts a request's pages into the ring's table of buffers, at the place that `addr` is (6.15).
    pub const REGISTER_IO_BUF: u32 = read_write::<IoCommand>(b'u', 0x23) as u32;
    /// Takes out what is at that place.
    pub const UNREGISTER_IO_BUF: u32 = read_write::<IoCommand>(b'u', 0x24) as u32;
}

/// States of a device.
pub mod state {
    /// Not there for clients.
    pub const DEAD: u16 = 0;
    /// A daemon serves it.
    pub const LIVE: u16 = 1;
    /// Its daemon is dead, and I/O waits for another.
    pub const QUIESCED: u16 = 2;
}

/// What a request is about: the low byte of [`Descriptor::op_flags`].
pub mod op {
    /// Read.
    pub const READ: u32 = 0;
    /// Write.
    pub const WRITE: u32 = 1;
    /// Make durable what was acknowledged.
    pub const FLUSH: u32 = 2;
    /// Forget.
    pub const DISCARD: u32 = 3;
    /// Make zero.
    pub const WRITE_ZEROES: u32 = 5;
    /// A flag beside them: durable before the answer.
    pub const FUA: u32 = 1 << 13;
}

/// Kinds of parameters: bits of [`Params::types`].
pub mod params {
    /// [`super::Basic`] is there.
    pub const BASIC: u32 = 1 << 0;
    /// [`super::Discard`] is there.
    pub const DISCARD: u32 = 1 << 1;
}

/// Attributes: bits of [`Basic::attrs`].
pub mod attr {
    /// A rotating disk.
    pub const ROTATIONAL: u32 = 1 << 1;
    /// What was acknowledged needs a flush to be durable. Without it the block layer sends no flushes.
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    /// Takes writes that are durable before they are answered.
    pub const FUA: u32 = 1 << 3;
}

/// Where the payload of requests begins in the character device.
pub const PAYLOAD: u64 = 0x8000_0000;
/// The place of the tag in an offset into the character device.
pub const TAG_SHIFT: u32 = 25;
/// The place of the queue's number in an offset into the character device.
pub const QUEUE_SHIFT: u32 = 41;
/// The most requests of one queue.
pub const MAX_DEPTH: u16 = 4096;

/// `struct ublksrv_ctrl_cmd`: what goes with a command to the control device.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct ControlCommand {
    /// The device.
    pub dev_id: u32,
    /// The queue; all ones where none is meant.
    pub queue_id: u16,
    /// Bytes at `addr`.
    pub len: u16,
    /// What goes with it, in our memory.
    pub addr: u64,
    /// A number that goes with it.
    pub data: u64,
    /// For devices of users without privileges.
    pub dev_path_len: u16,
    /// Nothing.
    pub pad: u16,
    /// Nothing.
    pub reserved: u32,
}

/// `struct ublksrv_ctrl_dev_info`: a device.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct DeviceInfo {
    /// Its queues.
    pub nr_hw_queues: u16,
    /// Requests of each queue at a time.
    pub queue_depth: u16,
    /// See [`state`].
    pub state: u16,
    /// Nothing.
    pub pad0: u16,
    /// Bytes of the largest request.
    pub max_io_buf_bytes: u32,
    /// Its number.
    pub dev_id: u32,
    /// The process that serves it, or did last.
    pub ublksrv_pid: i32,
    /// Nothing.
    pub pad1: u32,
    /// See [`feature`].
    pub flags: u64,
    /// The daemon's own: the kernel keeps it and does not look at it.
    pub ublksrv_flags: u64,
    /// Who made it.
    pub owner_uid: u32,
    /// Who made it.
    pub owner_gid: u32,
    /// Nothing.
    pub reserved1: u64,
    /// Nothing.
    pub reserved2: u64,
}

/// `struct ublksrv_io_desc`: a request, in memory that the kernel shares with us.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Descriptor {
    /// See [`op`].
    pub op_flags: u32,
    /// How many sectors of 512 bytes.
    pub nr_sectors: u32,
    /// The first of them.
    pub start_sector: u64,
    /// Not used where payload is copied by ourselves.
    pub addr: u64,
}

/// `struct ublksrv_io_cmd`: what goes with a command to a queue.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct IoCommand {
    /// The queue.
    pub q_id: u16,
    /// The tag.
    pub tag: u16,
    /// The answer: bytes moved, 0, or an error number below 0.
    pub result: i32,
    /// A place in a ring's table of buffers, or zero.
    pub addr: u64,
}

/// `struct ublk_params`, up to where we use it: what the block layer shows of a device.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Params {
    /// Its length.
    pub len: u32,
    /// See [`params`].
    pub types: u32,
    /// Of every device.
    pub basic: Basic,
    /// Of those that discard or zero.
    pub discard: Discard,
    /// Numbers of the device nodes, told by the kernel: major and minor of the character device, then of the disk.
    pub devt: [u32; 4],
    /// The beginning of what zoned devices have.
    pub rest: u32,
}

/// `struct ublk_param_basic`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Basic {
    /// See [`attr`].
    pub attrs: u32,
    /// The unit of addresses, as a power of two, like those that follow.
    pub logical_bs_shift: u8,
    /// The unit that is written without reading first.
    pub physical_bs_shift: u8,
    /// The request that suits best.
    pub io_opt_shift: u8,
    /// The smallest request that suits.
    pub io_min_shift: u8,
    /// The largest request, in sectors.
    pub max_sectors: u32,
    /// Requests do not cross multiples of this; 0: they may.
    pub chunk_sectors: u32,
    /// The size, in sectors.
    pub dev_sectors: u64,
    /// Nothing for us.
    pub virt_boundary_mask: u64,
}

/// `struct ublk_param_discard`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Discard {
    /// Where the first unit begins, in bytes.
    pub discard_alignment: u32,
    /// The unit, in bytes.
    pub discard_granularity: u32,
    /// The largest discard, in sectors.
    pub max_discard_sectors: u32,
    /// The largest zeroing, in sectors.
    pub max_write_zeroes_sectors: u32,
    /// Ranges in one discard.
    pub max_discard_segments: u16,
    /// Nothing.
    pub reserved0: u16,
}

impl ControlCommand {
    /// As it stands in a submission of 128 bytes.
    pub fn to_bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[0..4].copy_from_slice(&self.dev_id.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.queue_id.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.addr.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_ne_bytes());
        bytes
    }
}

impl IoCommand {
    /// As it stands in a submission of 64 bytes.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0..2].copy_from_slice(&self.q_id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.addr.to_ne_bytes());
        bytes
    }
}

/// Where a byte of a request's payload is in the character device.
pub fn payload_at(queue: u16, tag: u16, offset: usize) -> u64 {
    PAYLOAD + (u64::from(queue) << QUEUE_SHIFT | u64::from(tag) << TAG_SHIFT | offset as u64)
}

/// Where the descriptors of a queue are in the character device, and their length, for `mmap`.
pub fn descriptors_at(queue: u16, depth: u16, page: usize) -> (u64, usize) {
    let of = |depth: u16| (usize::from(depth) * size_of::<Descriptor>()).next_multiple_of(page);
    (u64::from(queue) * of(MAX_DEPTH) as u64, of(depth))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn structures_are_laid_out_as_the_kernel_lays_them_out() {
        assert_eq!((size_of::<ControlCommand>(), size_of::<DeviceInfo>()), (32, 64));
        assert_eq!((size_of::<Descriptor>(), size_of::<IoCommand>(), size_of::<Params>()), (24, 16, 80));
        assert_eq!((size_of::<Basic>(), size_of::<Discard>()), (32, 20));
        let command = [
            offset_of!(ControlCommand, queue_id),
            offset_of!(ControlCommand, len),
            offset_of!(ControlCommand, addr),
            offset_of!(ControlCommand, data),
        ];
        assert_eq!(command, [4, 6, 8, 16]);
        let info = [
            offset_of!(DeviceInfo, state),
            offset_of!(DeviceInfo, max_io_buf_bytes),
            offset_of!(DeviceInfo, dev_id),
            offset_of!(DeviceInfo, ublksrv_pid),
            offset_of!(DeviceInfo, flags),
            offset_of!(DeviceInfo, ublksrv_flags),
            offset_of!(DeviceInfo, owner_uid),
        ];
        assert_eq!(info, [4, 8, 12, 16, 24, 32, 40]);
        assert_eq!([offset_of!(Descriptor, nr_sectors), offset_of!(Descriptor, start_sector)], [4, 8]);
        let params = [offset_of!(Params, basic), offset_of!(Params, discard), offset_of!(Params, devt)];
        assert_eq!(params, [8, 40, 60]);
        let basic = [
            offset_of!(Basic, logical_bs_shift),
            offset_of!(Basic, io_min_shift),
            offset_of!(Basic, max_sectors),
            offset_of!(Basic, dev_sectors),
        ];
        assert_eq!(basic, [4, 7, 8, 16]);
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
    fn commands_have_the_numbers_of_the_kernel() {
        assert_eq!((control::GET_DEV_INFO, control::GET_PARAMS, control::GET_FEATURES), (0x8020_7502, 0x8020_7509, 0x8020_7513));
        assert_eq!((control::ADD_DEV, control::DEL_DEV, control::START_DEV), (0xC020_7504, 0xC020_7505, 0xC020_7506));
        assert_eq!((control::STOP_DEV, control::SET_PARAMS, control::DEL_DEV_ASYNC), (0xC020_7507, 0xC020_7508, 0x8020_7514));
        assert_eq!((control::START_USER_RECOVERY, control::END_USER_RECOVERY), (0xC020_7510, 0xC020_7511));
        assert_eq!((io::FETCH_REQ, io::COMMIT_AND_FETCH_REQ), (0xC010_7520, 0xC010_7521));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn commands_are_written_as_they_are_laid_out() {
        let bytes = IoCommand { q_id: 0x0201, tag: 0x0403, result: -5, addr: 0 }.to_bytes();
        assert_eq!(bytes, [1, 2, 3, 4, 0xFB, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0]);
        let command = ControlCommand { dev_id: 1, queue_id: u16::MAX, len: 64, addr: 0x0807_0605, data: 9, ..Default::default() };
        assert_eq!(command.to_bytes()[..24], [1, 0, 0, 0, 255, 255, 64, 0, 5, 6, 7, 8, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn payload_and_descriptors_are_where_the_kernel_has_them() {
        assert_eq!(payload_at(0, 0, 0), 0x8000_0000);
        assert_eq!(payload_at(1, 2, 512), 0x8000_0000 + (1 << 41) + (2 << 25) + 512);
        assert_eq!(descriptors_at(0, 64, 4096), (0, 4096));
        assert_eq!(descriptors_at(2, 4096, 4096), (2 * 98_304, 98_304));
    }
}
