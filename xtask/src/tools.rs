//! The programs that tests run against: installed once, quietly, where we may.

use crate::steps::run;
use anyhow::Result;
use std::path::Path;
use std::process::{Command, Stdio};

/// A program, and the Debian package it is in.
const TOOLS: [(&str, &str); 13] = [
    ("fio", "fio"),
    ("qemu-io", "qemu-utils"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_repair", "xfsprogs"),
    ("tmux", "tmux"),
    ("prometheus", "prometheus"),
    ("promtool", "prometheus"),
    ("udevadm", "udev"),
];

/// What the virtual machine is made of, and runs, beyond that.
const FOR_VM: [(&str, &str); 13] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("kmod", "kmod"),
    ("depmod", "kmod"),
    ("cpio", "cpio"),
    ("xz", "xz-utils"),
    ("ldd", "libc-bin"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("mount", "mount"),
    ("losetup", "mount"),
    ("dmsetup", "dmsetup"),
    ("make-bcache", "bcache-tools"),
    ("strip", "binutils"),
];

/// What its guest needs beyond that for the experiments of the NFS server. Debian starts a server with it, without exports, on a system
/// that starts services; so it is not installed for anything else.
const FOR_NFS: [(&str, &str); 4] = [
    ("rpc.nfsd", "nfs-kernel-server"),
    ("rpc.mountd", "nfs-kernel-server"),
    ("exportfs", "nfs-kernel-server"),
    ("mount.nfs", "nfs-common"),
];

/// Installs what is missing, as root on a system with apt; says what is missing otherwise, and what that means.
pub fn install() -> Result<()> {
    install_all(&TOOLS)
}

/// The same, with what the virtual machine needs.
pub fn install_for_vm() -> Result<()> {
    install_all(&[&TOOLS[..], &FOR_VM[..]].concat())
}

/// The same, with what an NFS server is made of.
pub fn install_for_nfs() -> Result<()> {
    install_all(&[&TOOLS[..], &FOR_VM[..], &FOR_NFS[..]].concat())
}

fn install_all(tools: &[(&'static str, &'static str)]) -> Result<()> {
    let mut missing: Vec<(&str, &str)> = tools.iter().copied().filter(|(program, _)| !is_there(program)).collect();
    if !missing.is_empty() && is_root() && is_there("apt-get") {
        println!("installing {}", packages(&missing).join(" "));
        let apt = |args: &[&str]| {
            let mut c = Command::new("apt-get");
            c.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
            c
        };
        run(apt(&["-qq", "update"]))?;
        let mut install = apt(&["-qq", "install", "--yes", "--no-install-recommends"]);
        install.args(packages(&missing));
        run(install)?;
        missing.retain(|(program, _)| !is_there(program));
    }
    if missing.is_empty() {
        println!("all there");
    } else {
        println!("missing: {}; tests that need them say so and are left out", packages(&missing).join(" "));
    }
    Ok(())
}

fn packages<'a>(of: &[(&'a str, &'a str)]) -> Vec<&'a str> {
    let mut packages: Vec<&str> = of.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

/// Whether a program is installed.
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<_> = std::env::split_paths(&path).collect();
    // Where a user's path may not lead, and root's does.
    folders.extend(["/usr/sbin", "/sbin"].map(Into::into));
    folders.iter().any(|f| f.join(program).is_file())
}

/// Whether we are root: by who owns what this process is.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    Path::new("/proc/self").metadata().is_ok_and(|m| m.uid() == 0)
}
