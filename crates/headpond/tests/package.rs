//! The package is not removed while a pool needs what is in it; what it says to systemd and needrestart.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Yard, have};

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
    assert!(said.contains("headpond volume give-up /dev/ublkbN"), "{said}");
}

fn packaged(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)).unwrap()
}

/// A daemon that died wrote all its memory to a file first, gigabytes with clients' data, while they waited; one with many volumes had no
/// descriptors left at 1024; and one that SIGHUP ended before it could take no notice stayed ended. Found by reading.
#[test]
fn the_service_has_descriptors_for_many_volumes_leaves_no_memory_behind_and_comes_back_after_a_hangup() {
    let unit = packaged("headpond@.service");
    let of = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default();
    assert_eq!((of("LimitCORE"), of("CoredumpFilter"), of("RestartForceExitStatus")), ("0", "elf-headers", "SIGHUP"));
    // 64 volumes of 64 queues: a thread's ring, the device and the disk.
    assert!(of("LimitNOFILE").parse::<u64>().unwrap() >= 64 * 64 * 3);
    assert!(unit.contains("LimitCORE=infinity"), "it does not say how to have a dump");
}

/// After an update of a library it restarted daemons by itself, on Ubuntu without a question. Found by reading.
#[test]
fn needrestart_is_told_to_restart_no_daemon() {
    if !have("perl") {
        println!("skipped: needrestart is Perl");
        return;
    }
    // As needrestart reads its files, and asks them.
    let asks = "our %nrconf; eval do { local $/; <STDIN> }; die $@ if $@;
        for my $unit (qw(headpond@tank.service other-headpond@tank.service)) {
            for my $re (keys %{$nrconf{override_rc}}) { print $unit, '=', $nrconf{override_rc}->{$re}, ';' if $unit =~ /$re/ }
        }";
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/needrestart.conf");
    let said = Command::new("perl").args(["-e", asks]).stdin(fs::File::open(conf).unwrap()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "headpond@tank.service=0;", "{}", String::from_utf8_lossy(&said.stderr));
}
