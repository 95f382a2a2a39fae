//! The guest's system: an initramfs of this machine's own programs, their libraries, and the kernel's modules.

use super::kernel::Kernel;
use crate::hammer::tool;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Changes with what is put in, so that an older image is made again.
const VERSION: u32 = 2;

/// Programs in the guest. Those that are not installed are left out, and checks that need them say so.
pub const PROGRAMS: [&str; 19] = [
    "kmod",
    "fio",
    "mount",
    "umount",
    "losetup",
    "blockdev",
    "mkfs.ext4",
    "e2fsck",
    "mkfs.xfs",
    "xfs_repair",
    "mkfs.btrfs",
    "btrfs",
    "dmsetup",
    "make-bcache",
    "bcache-super-show",
    "rpc.nfsd",
    "rpc.mountd",
    "exportfs",
    "mount.nfs",
];

/// Modules in the guest, with all that they need: front ends, file systems, what the rig stands on, the kernel's own caches,
/// and its NFS server and client.
const MODULES: [&str; 30] = [
    "virtio_pci",
    "virtio_blk",
    "virtio_console",
    "virtio_net",
    "virtio_rng",
    "9p",
    "9pnet_virtio",
    "fuse",
    "loop",
    "ublk_drv",
    "nbd",
    "null_blk",
    "ext4",
    "xfs",
    "btrfs",
    "crc32c_generic",
    "crc32c_intel",
    "dm-mod",
    "dm-cache",
    "dm-cache-smq",
    "dm-writecache",
    "dm-raid",
    "raid1",
    "dm-flakey",
    "dm-log-writes",
    "bcache",
    "configfs",
    "nfsd",
    "nfs",
    "nfsv4",
];

/// Files that programs look for, where this machine has them: which transports and services there are.
const FILES: [&str; 3] = ["/etc/netconfig", "/etc/protocols", "/etc/services"];

/// Loads what every guest needs, and runs what it is told to.
const INIT: &str = include_str!("guest/init.sh");

/// Makes the image, unless the one that is there is of the same kernel, programs and scripts.
pub fn make(folder: &Path, kernel: &Kernel) -> Result<PathBuf> {
    let image = folder.join("initramfs");
    let programs: Vec<(String, PathBuf)> = PROGRAMS.iter().filter_map(|name| Some(((*name).into(), find(name)?))).collect();
    let busybox = find("busybox").context("busybox is missing: install busybox-static")?;
    let mut wanted = format!("{VERSION}\n{}\n{INIT}\n{MODULES:?}\n{PROGRAMS:?}\n{FILES:?}\n", kernel.version);
    for (_, path) in &programs {
        let meta = path.metadata()?;
        wanted += &format!("{} {} {:?}\n", path.display(), meta.len(), meta.modified()?);
    }
    let stamp = folder.join("initramfs.stamp");
    if image.is_file() && fs::read_to_string(&stamp).is_ok_and(|it| it == wanted) {
        return Ok(image);
    }
    let _ = fs::remove_file(&stamp);
    let tree = folder.join("tree");
    let _ = fs::remove_dir_all(&tree);
    for name in ["bin", "sbin", "dev", "proc", "sys", "tmp", "run", "mnt", "host", "etc", "state"] {
        fs::create_dir_all(tree.join(name))?;
    }
    put_busybox(&tree, &busybox)?;
    let mut libraries = BTreeSet::new();
    for (name, path) in &programs {
        let to = tree.join("bin").join(name);
        let _ = fs::remove_file(&to);
        fs::copy(path, &to)?;
        libraries.extend(libraries_of(path)?);
    }
    // What is run from the share may need others.
    libraries.extend(libraries_of(&std::env::current_exe()?)?);
    for library in libraries {
        copy_into(&tree, &library)?;
    }
    for file in FILES.iter().map(Path::new).filter(|file| file.is_file()) {
        copy_into(&tree, file)?;
    }
    // For the kernel's own requests too: busybox's applet cannot load every module.
    for place in ["bin/modprobe", "sbin/modprobe"] {
        let _ = fs::remove_file(tree.join(place));
        symlink("/bin/kmod", tree.join(place))?;
    }
    put_modules(&tree, kernel, folder)?;
    fs::write(tree.join("init"), INIT)?;
    fs::set_permissions(tree.join("init"), fs::Permissions::from_mode(0o755))?;
    // Not compressed: to unpack it would take an emulated processor longer than to copy it.
    let archive = format!("cd '{}' && find . | cpio --quiet --create --format=newc > '{}'", tree.display(), image.display());
    tool::run(Command::new("sh").args(["-c", &archive]), &folder.join("cpio.log"))?;
    fs::remove_dir_all(&tree)?;
    fs::write(stamp, wanted)?;
    Ok(image)
}

/// Where a program is, root's folders included.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/sbin"].map(Into::into));
    folders.iter().map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn put_busybox(tree: &Path, busybox: &Path) -> Result<()> {
    fs::copy(busybox, tree.join("bin/busybox"))?;
    let mut list = Command::new(busybox);
    list.arg("--list");
    for applet in crate::steps::output(list)?.lines().filter(|name| *name != "busybox") {
        symlink("busybox", tree.join("bin").join(applet))?;
    }
    Ok(())
}

/// The shared libraries of a program, the loader among them; none of a static one.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let out = Command::new("ldd").arg(program).output().context("ldd cannot be run")?;
    let text = String::from_utf8_lossy(&out.stdout);
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        bail!("{} cannot run here: {}", program.display(), line.trim());
    }
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(Into::into).collect())
}

/// Copies a file to the same path.
fn copy_into(tree: &Path, file: &Path) -> Result<()> {
    let to = tree.join(file.strip_prefix("/").unwrap_or(file));
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(file, &to).with_context(|| format!("{} cannot be copied", file.display())).map(drop)
}

/// The modules, with those that they need, unpacked: so they load faster, and by any tool.
fn put_modules(tree: &Path, kernel: &Kernel, folder: &Path) -> Result<()> {
    let (root, version) = (kernel.root.display().to_string(), kernel.version.as_str());
    tool::run(Command::new("depmod").args(["-b", &root, version]), &folder.join("depmod.log"))?;
    let modules = kernel.root.join("lib/modules").join(version);
    let mut files = BTreeSet::new();
    for module in MODULES {
        let mut command = Command::new("modprobe");
        command.args(["-d", &root, "-S", version, "--show-depends", "--ignore-install", module]);
        let shown = tool::try_run(&mut command, &folder.join("modprobe.log"))?;
        // One that a kernel has no more, or has built in, is none to copy; checks look for what they need.
        let lines = shown.said.lines().filter_map(|line| line.strip_prefix("insmod "));
        files.extend(lines.filter_map(|line| Some(PathBuf::from(line.split_whitespace().next()?))));
    }
    let there = tree.join("lib/modules").join(version);
    for file in files {
        let inside = file.canonicalize()?.strip_prefix(modules.canonicalize()?)?.to_owned();
        let to = there.join(&inside);
        fs::create_dir_all(to.parent().context("a module is in a folder")?)?;
        match file.extension().and_then(|it| it.to_str()) {
            Some(packed @ ("xz" | "zst" | "gz")) => {
                let program = match packed {
                    "xz" => "xz",
                    "zst" => "zstd",
                    _ => "gzip",
                };
                let mut command = Command::new(program);
                command.args(["--decompress", "--stdout", "--quiet"]).arg(&file);
                let out = command.output().with_context(|| format!("{program} cannot be run, and a module needs it"))?;
                if !out.status.success() {
                    bail!("{} cannot be unpacked", file.display());
                }
                fs::write(to.with_extension(""), out.stdout)?;
            }
            _ => drop(fs::copy(&file, &to)?),
        }
    }
    for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        fs::copy(modules.join(name), there.join(name))?;
    }
    tool::run(Command::new("depmod").arg("-b").arg(tree).arg(version), &folder.join("depmod.log")).map(drop)
}
