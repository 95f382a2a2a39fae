//! The Debian package, put together by `dpkg-deb`, and its life from the first installation to its removal.

use crate::root;
use crate::steps::{cargo, output, run};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What systemd is told of all volumes' devices.
pub const FOR_VOLUMES: &str = "packaging/dev-headpond-.device.conf";
/// Where files of `packaging` go, and with which mode.
const FILES: [(&str, &str, u32); 13] = [
    ("packaging/headpond@.service", "usr/lib/systemd/system/headpond@.service", 0o644),
    ("packaging/headpond-devices@.service", "usr/lib/systemd/system/headpond-devices@.service", 0o644),
    (FOR_VOLUMES, "usr/lib/systemd/system/dev-headpond-.device.d/10-headpond.conf", 0o644),
    ("packaging/61-headpond.rules", "usr/lib/udev/rules.d/61-headpond.rules", 0o644),
    ("packaging/63-z-headpond-raw-NAME.rules", "usr/share/doc/headpond/examples/63-z-headpond-raw-NAME.rules", 0o644),
    ("packaging/headpond.toml", "usr/share/doc/headpond/examples/headpond.toml", 0o644),
    ("packaging/metrics.conf", "usr/share/doc/headpond/examples/metrics.conf", 0o644),
    ("packaging/grafana-dashboard.json", "usr/share/doc/headpond/examples/grafana-dashboard.json", 0o644),
    ("packaging/needrestart.conf", "etc/needrestart/conf.d/headpond.conf", 0o644),
    ("packaging/debian/conffiles", "DEBIAN/conffiles", 0o644),
    ("packaging/debian/copyright", "usr/share/doc/headpond/copyright", 0o644),
    ("packaging/debian/postinst", "DEBIAN/postinst", 0o755),
    ("packaging/debian/prerm", "DEBIAN/prerm", 0o755),
];
/// Completions: the shell, and where it looks for them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/headpond"),
    ("zsh", "usr/share/zsh/vendor-completions/_headpond"),
    ("fish", "usr/share/fish/vendor_completions.d/headpond.fish"),
];

/// `cargo xtask deb [--binary FILE] [--out DIR] [--check]`.
pub fn make(args: &[String]) -> Result<()> {
    let (mut binary, mut out, mut check) = (None, root().join("target/deb"), false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().map(PathBuf::from).with_context(|| format!("{arg} wants a path"));
        match arg.as_str() {
            "--binary" => binary = Some(value()?),
            "--out" => out = value()?,
            "--check" => check = true,
            _ => bail!("cargo xtask deb [--binary FILE] [--out DIR] [--check]"),
        }
    }
    let binary = match binary {
        Some(binary) => binary,
        None => {
            run(cargo(&["build", "--release", "--package", "headpond"]))?;
            let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
            target.join("release/headpond")
        }
    };
    let version = env!("CARGO_PKG_VERSION");
    let package = build(&binary, &out, version)?;
    println!("{}", package.display());
    if check { lives(&package, &build(&binary, &out, &format!("{version}+next"))?, &out) } else { Ok(()) }
}

/// Where a file of `packaging` goes, below the system's root.
pub fn place_of(file: &str) -> Result<&'static Path> {
    let of = FILES.iter().find(|(from, ..)| *from == file);
    of.map(|(_, to, _)| Path::new(*to)).with_context(|| format!("{file} is not in the package"))
}

/// Puts the package of a version together in a folder.
fn build(binary: &Path, out: &Path, version: &str) -> Result<PathBuf> {
    let arch = output(dpkg("dpkg", &["--print-architecture"]))?.trim().to_owned();
    let name = format!("headpond_{version}_{arch}");
    let stage = out.join(&name);
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    let put = |from: &Path, to: &str, mode: u32| -> Result<()> {
        let to = stage.join(to);
        fs::create_dir_all(to.parent().context("a path in the package has a folder")?)?;
        fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        Ok(fs::set_permissions(&to, fs::Permissions::from_mode(mode))?)
    };
    put(binary, "usr/bin/headpond", 0o755)?;
    for (from, to, mode) in FILES {
        put(&root().join(from), to, mode)?;
    }
    let own = stage.join("usr/bin/headpond");
    let man = stage.join("usr/share/man/man1");
    run(dpkg(&own, &["man".as_ref(), "--out".as_ref(), man.as_os_str()]))?;
    let pages: Vec<PathBuf> = fs::read_dir(&man)?.map(|page| Ok(page?.path())).collect::<Result<_>>()?;
    ensure!(pages.len() > 10, "{} manual pages were made", pages.len());
    let mut gzip = Command::new("gzip");
    run({
        gzip.args(["-9", "-n"]).args(&pages);
        gzip
    })?;
    for (shell, to) in COMPLETIONS {
        let text = output(dpkg(&own, &["completions", shell]))?;
        let to = stage.join(to);
        fs::create_dir_all(to.parent().context("a path in the package has a folder")?)?;
        fs::write(to, text)?;
    }
    fs::create_dir_all(stage.join("etc/headpond"))?;
    fs::write(stage.join("DEBIAN/control"), control(version, &arch, &stage)?)?;
    let package = out.join(format!("{name}.deb"));
    run(dpkg("dpkg-deb", &["--root-owner-group".as_ref(), "-b".as_ref(), stage.as_os_str(), package.as_os_str()]))?;
    Ok(package)
}

fn dpkg(program: impl AsRef<std::ffi::OsStr>, args: &[impl AsRef<std::ffi::OsStr>]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

fn control(version: &str, arch: &str, stage: &Path) -> Result<String> {
    let size = output(dpkg("du", &["-sk".as_ref(), "--apparent-size".as_ref(), stage.as_os_str()]))?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    Ok(format!(
        "Package: headpond\nVersion: {version}\nArchitecture: {arch}\nMaintainer: Headpond authors <headpond@example.invalid>\n\
         Installed-Size: {size}\nDepends: libc6 (>= 2.34), libgcc-s1\nSection: admin\nPriority: optional\n\
         Description: SSD block cache for storage servers on rotating disks\n \
         Small and random I/O lives on a pool of SSDs, where dirty data is held on two of\n \
         them before it is acknowledged; large streams go past it, to the disks.\n"
    ))
}

/// Installs a package in a folder, upgrades and removes it, and looks at what is there in between.
fn lives(package: &Path, next: &Path, out: &Path) -> Result<()> {
    let place = out.join("root");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "etc"] {
        fs::create_dir_all(place.join(folder))?;
    }
    fs::write(place.join("var/lib/dpkg/status"), "")?;
    let dpkg = |args: &[&std::ffi::OsStr]| {
        let mut command = Command::new("dpkg");
        command.arg(format!("--root={}", place.display())).args(["--force-depends", "--force-script-chrootless"]).args(args);
        command.stdout(std::process::Stdio::null());
        run(command)
    };
    let installed = || {
        output(self::dpkg(
            "dpkg-query",
            &[&format!("--admindir={}/var/lib/dpkg", place.display()), "-W", "-f", "${Version} ${Status}", "headpond"],
        ))
    };
    dpkg(&["-i".as_ref(), package.as_os_str()])?;
    let version = env!("CARGO_PKG_VERSION");
    ensure!(installed()? == format!("{version} install ok installed"), "{}", installed()?);
    let binary = place.join("usr/bin/headpond");
    ensure!(output(self::dpkg(&binary, &["--version"]))?.contains(version), "what was installed does not run");
    let units = place.join("usr/lib/systemd/system/headpond@.service");
    ensure!(units.is_file() && place.join("usr/share/man/man1/headpond-serve.1.gz").is_file(), "files are missing");
    let devices = place.join("usr/lib/systemd/system/headpond-devices@.service");
    let patience = place.join(place_of(FOR_VOLUMES)?);
    ensure!(devices.is_file() && patience.is_file(), "units that the daemon's own waits for, or others for volumes, are missing");
    let rules = place.join("usr/lib/udev/rules.d/61-headpond.rules");
    ensure!(rules.is_file(), "the rules of udev are missing");
    // An owner's own configuration is nobody else's, and what he has changed of ours is his.
    let own = place.join("etc/headpond/tank.toml");
    fs::write(&own, "devices = []\n")?;
    let needrestart = place.join("etc/needrestart/conf.d/headpond.conf");
    let changed = fs::read_to_string(&needrestart).context("needrestart is not told to leave daemons alone")? + "# mine\n";
    fs::write(&needrestart, &changed)?;
    dpkg(&["-i".as_ref(), next.as_os_str()])?;
    ensure!(installed()? == format!("{version}+next install ok installed"), "{}", installed()?);
    dpkg(&["-r".as_ref(), "headpond".as_ref()])?;
    ensure!(![&binary, &units, &devices, &patience, &rules].iter().any(|it| it.exists()), "files were left behind");
    ensure!(own.is_file() && fs::read_to_string(&needrestart)? == changed, "the owner's configuration is gone");
    println!("installed, upgraded and removed; the owner's configuration is still there");
    Ok(())
}

/// Most exposure that `systemd-analyze security` may find of the unit, in tenths. Half of one is for looking who has a block device open.
const EXPOSURE: u64 = 25;

/// `cargo xtask unit`: how much the unit exposes.
pub fn unit() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("headpond-unit-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let unit = folder.join("headpond@pool.service");
    fs::copy(root().join("packaging/headpond@.service"), &unit)?;
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=true", &format!("--threshold={EXPOSURE}"), "--no-pager"]).arg(&unit);
    let said = output(analyze);
    fs::remove_dir_all(&folder)?;
    println!("{}", said?.lines().last().unwrap_or_default());
    Ok(())
}
