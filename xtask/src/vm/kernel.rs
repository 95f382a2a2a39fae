//! A kernel that nobody built for us: Debian's package, fetched at run time and installed nowhere.

use crate::hammer::tool;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A kernel package, unpacked.
pub struct Kernel {
    /// Its version, as its folder of modules is called.
    pub version: String,
    /// The kernel itself.
    pub image: PathBuf,
    /// Where it was unpacked: `lib/modules` is in there.
    pub root: PathBuf,
}

/// The suite that has a newer kernel than this machine's release: `bookworm-backports`, or its successor's.
pub fn suite() -> Result<String> {
    let release =
        fs::read_to_string("/etc/os-release").context("which Debian this is cannot be told; name a suite with --suite")?;
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let name = name.context("/etc/os-release names no release; name a suite with --suite")?;
    Ok(format!("{}-backports", name.trim_matches('"')))
}

/// The newest kernel of a suite, in `folder`; fetched if it is not there yet.
pub fn fetch(folder: &Path, suite: &str) -> Result<Kernel> {
    let root = folder.join("kernel");
    if let Ok(kernel) = unpacked(&root) {
        return Ok(kernel);
    }
    eprintln!("fetching the kernel of {suite}");
    let apt = Apt::new(folder, suite)?;
    apt.run("apt-get", &["-qq", "update"])?;
    let wanted = apt.newest()?;
    let packages = folder.join("packages");
    let _ = fs::remove_dir_all(&packages);
    fs::create_dir_all(&packages)?;
    let args: Vec<&str> = ["-qq", "download"].into_iter().chain(wanted.iter().map(String::as_str)).collect();
    apt.run_in(&packages, "apt-get", &args)?;
    let files = fs::read_dir(&packages)?.flatten().map(|entry| entry.path());
    let files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|it| it == "deb")).collect();
    if files.len() != wanted.len() {
        bail!("apt-get did not download all of {}", wanted.join(", "));
    }
    // Beside its place first: a half of it is never taken for a whole.
    let half = folder.join("kernel.half");
    let _ = fs::remove_dir_all(&half);
    for file in &files {
        tool::run(Command::new("dpkg-deb").arg("--extract").arg(file).arg(&half), &folder.join("dpkg.log"))?;
    }
    let _ = fs::remove_dir_all(&root);
    fs::rename(&half, &root)?;
    fs::remove_dir_all(&packages)?;
    unpacked(&root)
}

fn unpacked(root: &Path) -> Result<Kernel> {
    // A package of a system whose /lib is a link has its modules below /usr.
    if root.join("usr/lib/modules").is_dir() && !root.join("lib/modules").exists() {
        fs::create_dir_all(root.join("lib"))?;
        fs::rename(root.join("usr/lib/modules"), root.join("lib/modules"))?;
    }
    let modules = root.join("lib/modules");
    let versions = fs::read_dir(&modules).with_context(|| format!("there are no modules in {}", root.display()))?;
    let images = versions.flatten().filter_map(|entry| {
        let version = entry.file_name().into_string().ok()?;
        // Beside its modules from 2026 on.
        let places = [root.join(format!("boot/vmlinuz-{version}")), entry.path().join("vmlinuz")];
        Some((places.into_iter().find(|it| it.is_file())?, version))
    });
    let (image, version) = images.last().with_context(|| format!("there is no kernel in {}", root.display()))?;
    Ok(Kernel { image, version, root: root.to_owned() })
}

/// apt with lists and caches of its own, and one suite more than the machine's own sources may have.
struct Apt {
    options: Vec<String>,
    log: PathBuf,
}

impl Apt {
    fn new(folder: &Path, suite: &str) -> Result<Apt> {
        let apt = folder.join("apt");
        for name in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(apt.join(name))?;
        }
        let sources = apt.join("suite.sources");
        let archive = archive()?;
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        fs::write(&sources, format!("Types: deb\nURIs: {archive}\nSuites: {suite}\nComponents: main\nSigned-By: {keyring}\n"))?;
        let options = [
            ("Dir::Etc::sourcelist", sources),
            ("Dir::Etc::sourceparts", "/nonexistent".into()),
            ("Dir::State::lists", apt.join("lists")),
            ("Dir::Cache", apt.clone()),
        ];
        let options = options.iter().flat_map(|(name, value)| ["-o".into(), format!("{name}={}", value.display())]).collect();
        Ok(Apt { options, log: folder.join("apt.log") })
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        self.run_in(Path::new("/"), program, args)
    }

    fn run_in(&self, folder: &Path, program: &str, args: &[&str]) -> Result<String> {
        let said = tool::run(Command::new(program).args(&self.options).args(args).current_dir(folder), &self.log);
        said.context("Debian's archive cannot be asked; see that this machine reaches it, or name another suite with --suite")
    }

    /// The packages that the newest kernel of the suite is in: never named here, so that it is the one of today.
    fn newest(&self) -> Result<Vec<String>> {
        let depends = |of: &str| -> Result<Vec<String>> {
            let said = self.run("apt-cache", &["depends", of])?;
            Ok(said.lines().filter_map(|line| Some(line.trim().strip_prefix("Depends: ")?.to_owned())).collect())
        };
        let package = depends("linux-image-amd64")?.into_iter().find(|it| it.starts_with("linux-image-"));
        let package = package.context("the suite has no package linux-image-amd64; name another one with --suite")?;
        // From 2026 on it is only a name for these.
        let parts = depends(&package)?
            .into_iter()
            .filter(|it| ["binary", "modules", "base"].iter().any(|part| it.starts_with(&format!("linux-{part}-"))));
        Ok(parts.chain([package.clone()]).collect())
    }
}

/// Where this machine's own sources find Debian.
fn archive() -> Result<String> {
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]);
    let said = crate::steps::output(command)?;
    let archives: Vec<&str> = said.lines().map(str::trim).collect();
    // The archive itself, not that of security updates or somebody else's.
    let found = archives.iter().find(|uri| uri.trim_end_matches('/').ends_with("/debian"));
    Ok(found.context("no source of apt is Debian's archive: add one")?.to_string())
}
