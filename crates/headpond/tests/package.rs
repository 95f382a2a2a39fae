//! The package is not removed while a pool needs what is in it.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::Yard;

/// What the package asks before it is removed, in a `/run` and a `/dev` of its own; its exit code and what it said. `units` is what systemd has
/// in the states that it was asked for.
fn removed(yard: &Yard, units: &str, devices: &str) -> (Option<i32>, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/debian/prerm");
    let tools = yard.path("tools");
    fs::create_dir_all(&tools).unwrap();
    let tool = |name: &str, text: &str| {
        fs::write(tools.join(name), text).unwrap();
        fs::set_permissions(tools.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    tool("systemctl", &format!("#!/bin/sh\ncase \"$*\" in *activating*) {units};; esac\n"));
    // There are no ublk devices where this is tried.
    let real = env!("CARGO_BIN_EXE_headpond");
    tool("headpond", &format!("#!/bin/sh\n[ \"$1 $2\" != 'udev-name ublkb0' ] || exit 0\nexec {real} \"$@\"\n"));
    let run = format!(
        "set -e; cp -a /dev/null null; mount -t tmpfs run /run; mkdir -p /run/systemd/system /run/headpond
        mount --bind sockets /run/headpond; mount -t tmpfs dev /dev; cp -a null /dev/; {devices}
        sh {} remove",
        script.display()
    );
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private", "sh", "-c", &run]).current_dir(yard.path("")).env("PATH", path);
    let output = unshare.env_remove("DPKG_ROOT").output().unwrap();
    let _ = fs::remove_file(yard.path("null"));
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_package_is_not_removed_while_a_daemon_serves_or_is_about_to_or_has_left_a_block_device() {
    let can = Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|it| it.success());
    if !can || !rustix::process::geteuid().is_root() {
        println!("skipped: it takes root, and mounts");
        return;
    }
    let yard = Yard::new();
    let sockets: PathBuf = yard.path("sockets");
    fs::create_dir(&sockets).unwrap();
    yard.pool();
    assert_eq!(removed(&yard, "true", ""), (Some(0), String::new()));
    // Between two tries, as systemd says it.
    let (code, said) = removed(&yard, "echo headpond@tank.service loaded activating auto-restart", "");
    assert!(code == Some(1) && said.contains("not removed") && said.contains("headpond@tank.service"), "{code:?}: {said}");
    // One that no unit has started.
    let serve = ["a", "b", "--frontend", "none", "--state", "state", "--socket", "sockets/pool.sock"];
    let daemon = yard.serve_with(&serve).unwrap();
    let (code, said) = removed(&yard, "true", "");
    assert!(code == Some(1) && said.contains("/run/headpond/pool.sock"), "{code:?}: {said}");
    daemon.kill();
    assert!(sockets.join("pool.sock").exists());
    assert_eq!(removed(&yard, "true", ""), (Some(0), String::new()));
    let (code, said) = removed(&yard, "true", "mknod /dev/ublkb0 b 259 0; mknod /dev/ublkb1 b 259 1");
    assert!(code == Some(1) && said.contains("/dev/ublkb0") && !said.contains("/dev/ublkb1"), "{code:?}: {said}");
}
