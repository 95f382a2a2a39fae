//! Every message that names a problem names the next step: each variant of each error type as it is told, and each message
//! that is made on the spot, found in the source.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headpond_engine::StartError as EngineStart;
use headpond_engine::create::PlanError;
use headpond_engine::election::Refusal;
use headpond_engine::io::CommandError;
use headpond_host::backing::{BackingError, Spec};
use headpond_host::capi::CallError as FromC;
use headpond_host::claim::ClaimError;
use headpond_host::control::{CallError, Fault};
use headpond_host::daemon::StartError as DaemonStart;
use headpond_host::device::DevicesError;
use headpond_host::embed::Error as Embed;
use headpond_host::extents::ExtentsError;
use headpond_host::journal::JournalError;
use headpond_host::names::fits_a_path;
use headpond_host::nbd::server::ListenError;
use headpond_host::offline::{OfflineError, RepairError, WritebackError};
use headpond_host::pool::PoolError;
use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Expr, Lit, Token};

/// Words with which a sentence begins that says what to do.
const STEPS: [&str; 43] = [
    "add", "ask", "boot", "bring", "check", "choose", "close", "copy", "detach", "end", "free", "give", "keep", "leave", "look",
    "make", "move", "name", "nothing:", "nothing,", "put", "release", "remove", "repair", "replace", "report", "restart",
    "restore", "retry", "run", "see", "serve", "set", "start", "stop", "switch", "take", "try", "unmount", "use", "wait",
    "write", "rename",
];

/// Whether a message says what to do: a sentence, or a part of one, begins with a word that says so; or a command is named.
fn names_a_next_step(message: &str) -> bool {
    let parts = message.split(". ").flat_map(|it| it.split("; ")).flat_map(|it| it.split(": ")).flat_map(|it| it.split('\n'));
    let step = |part: &str| {
        let word = part.trim_start().split(' ').next().unwrap_or_default().trim_end_matches([',', '.']).to_lowercase();
        STEPS.contains(&word.as_str())
    };
    // "Nothing was changed" is none: of "nothing" only what is said as an answer counts.
    let nothing = |part: &str| part.trim_start().starts_with("Nothing needs to be done") || part.trim_start() == "Nothing";
    message.contains("`headpond ") || parts.clone().any(step) || message.contains("Nothing: ") || parts.clone().any(nothing)
}

#[test]
fn a_message_without_a_next_step_is_told_from_one_with_it() {
    for good in [
        "a is in use: process 1 has it open. Release it there, or name another device",
        "cannot listen on x: denied; see that its directory exists",
        "The volume is not served. `headpond status` says why.",
        "Nothing: the device is free.",
    ] {
        assert!(names_a_next_step(good), "{good}");
    }
    for bad in [
        "x cannot be read: denied",
        "There is no volume w. Nothing was changed.",
        "It failed; the client gets EIO",
        "Its names are: a, b",
        "Used up. Starting is not possible",
    ] {
        assert!(!names_a_next_step(bad), "{bad}");
    }
}

/// One of each variant of an error type, with its name. A variant that is not here does not compile.
macro_rules! one_of_each {
    ($file:literal, $name:literal, $error:ident: $($variant:ident $({ $($named:tt)* })? $(( $($plain:tt)* ))?),* $(,)?) => {{
        let all = [$($error::$variant $({ $($named)* })? $(( $($plain)* ))?),*];
        let said = all.iter().map(|error| {
            let name = match error { $($error::$variant { .. } => stringify!($variant)),* };
            (name, error.to_string())
        });
        Walked { file: $file, name: $name, said: said.collect() }
    }};
}

/// An error type of which every variant was told.
struct Walked {
    file: &'static str,
    name: &'static str,
    said: Vec<(&'static str, String)>,
}

fn text() -> String {
    "x".to_owned()
}

fn path() -> PathBuf {
    "/dev/x".into()
}

fn io() -> io::Error {
    io::Error::from_raw_os_error(5)
}

fn all_errors() -> Vec<Walked> {
    let claim = || ClaimError::Held { path: path(), holder: text(), waited: Duration::ZERO };
    let refusal = || Refusal::NoMembers;
    vec![
        one_of_each!("engine/src/create.rs", "PlanError", PlanError:
            Name(text()), Members(0), Copies, Small { device: 0, bytes: 1, least: 2 }, Segment(1)),
        one_of_each!("engine/src/election.rs", "Refusal", Refusal:
            NoMembers, Foreign { device: 0 }, Twice { member: 0 },
            TooFewVotes { pool: text(), epoch: 1, missing: vec![1], witness_missing: true, witness_epoch: Some(1) },
            Stale { pool: text(), epoch: 1, newest: 2, needed: vec![1] }),
        one_of_each!("engine/src/recovery.rs", "StartError", EngineStart:
            CheckpointLost { page: 0 }, LogUnreadable { members: vec![0, 1] }, NoMajority, CopiesMissing { missing: vec![1] }),
        one_of_each!("engine/src/io.rs", "CommandError", CommandError:
            Start(EngineStart::NoMajority), NoSuchVolume, NameTaken, BackingTaken, TooManyVolumes, TooLarge, NoDisk,
            NoRoom { most_bytes: 4096 }, NoRoomWithout, NotServed, Served,
            DiskThere, NotLarger { sectors: 8 }, GrowBusy, Refused, Cancelled, Disk, Unkept, CannotEmpty { blocks: 1 }, Lost { blocks: 1 }, NoMembers, NoSuchMember, MemberTaken, MemberSmall { least: 1 }, MemberFailed, TooFewMembers,
            CopiesLacking, DetachBusy, MembersBusy, ScrubBusy, PreloadBusy, PassThrough, TooMuch { most_bytes: 1 }, OutsideVolume { sectors: 8 }, ShareOrder, ShareTooMuch { left: 1 }),
        one_of_each!("host/src/extents.rs", "ExtentsError", ExtentsError:
            Read { path: path(), source: io() }, Untold { path: path(), source: io() }),
        one_of_each!("host/src/journal.rs", "JournalError", JournalError:
            Read(io()), NoFileSystem, NotHere("XFS"), Senseless { of: "XFS", what: "the log's place" }),
        one_of_each!("host/src/claim.rs", "ClaimError", ClaimError:
            Held { path: path(), holder: text(), waited: Duration::ZERO }, Open { path: path(), source: io() },
            Unfit { path: path(), source: io() }),
        one_of_each!("host/src/pool.rs", "PoolError", PoolError:
            Claim(claim()), Io { path: path(), what: "read", source: io(), meaning: "Nothing was changed" },
            Silent { path: path(), seconds: 10.0 }, Twice { path: path() }, NotText { path: path() }, Signature { path: path(), what: "x" }, Taken { path: path(), pool: text(), id: text(), epoch: 1 },
            Dirty { path: path(), pool: text(), id: text(), epoch: 1, why: text() },
            Waiting { path: path(), volume: text(), pool: text() },
            Left { path: path(), pool: text(), id: text(), epoch: 1, why: text() }, Newer { path: path(), version: 2 },
            Damaged { path: path(), why: text() }, NoMember { path: path(), what: "x" },
            OtherPool { path: path(), pool: text(), other: path(), other_pool: text(), late: Some(path()) },
            Shrunk { path: path(), size: 1, needed: 2, pool: text() }, Blocks { path: path(), block: 4096, unit: 512, pool: text() },
            PlanOf { path: path(), source: PlanError::Copies }, Plan(PlanError::Copies),
            Refused { refusal: refusal(), places: String::new() }, WitnessOnMember { folder: path(), device: path() },
            Witness { path: path(), source: io() }, NotForgotten { folder: path(), id: text(), source: io() }, NotNamed { given: text() }),
        one_of_each!("host/src/backing.rs", "BackingError", BackingError:
            Claim(claim()), Silent { path: path(), seconds: 10.0 }, Read { path: path(), source: io() },
            Member { path: path(), pool: text() },
            Small { path: path(), size: 1 }),
        one_of_each!("host/src/device.rs", "DevicesError", DevicesError: Setup(io()), Ring(io())),
        one_of_each!("host/src/nbd/server.rs", "ListenError", ListenError: InUse(path()), NotASocket(path()), Io(path(), io())),
        one_of_each!("host/src/daemon.rs", "StartError", DaemonStart:
            Folder { path: path(), source: io() }, Pool(PoolError::Twice { path: path() }), Name(fits_a_path("").unwrap_err()),
            NoVolume { name: text(), pool: text(), volumes: text() }, NoDisk { name: text() },
            Devices(DevicesError::Setup(io())), Engine(CommandError::Disk), Listen(ListenError::InUse(path())),
            Metrics { address: ([127, 0, 0, 1], 1).into(), source: io() }, NoUblk(text()), WaitingUblk { devices: text(), why: text() },
            OtherFrontend { before: "ublk", after: "nbd" }, OtherState { before: path(), after: path() },
            OtherSocket { before: path(), after: path() },
            OtherDisk { name: text(), before: Spec::new("/dev/x"), after: Spec::new("/dev/y") },
            // Its next step is a field: what may be in it is looked at where a `ublk::Error` is made.
            GiveUp { wrong: text(), next: "Unmount it".into() }, Ended {}),
        one_of_each!("host/src/control.rs", "CallError", CallError:
            NotRunning(path()), NoneRuns(path()), Denied(path()), Silent { path: path(), seconds: 10 }, Broken(path(), io()), Fault(Fault::failed("x. Try again."))),
        one_of_each!("host/src/offline.rs", "OfflineError", OfflineError:
            Served { path: path(), holder: text() }, Claim(claim()), Pool(PoolError::Twice { path: path() }),
            NoSuperblock, MayBeOlder { path: path() }, Refused(refusal()), Cancelled, Output(io())),
        one_of_each!("host/src/offline/repair.rs", "RepairError", RepairError:
            Offline(OfflineError::Cancelled), Unproven { refusal: text() }, Save { path: path(), source: io() },
            Saving { path: path(), source: io(), done: 1 }, Write { path: path(), offset: 1, source: io(), done: 1 },
            Flush { path: path(), source: io() },
            Cancelled { done: 1, save: path() }, Output { done: 1, save: path(), source: io() }, NoSave { path: path(), source: io() },
            BadSave { path: path(), line: 1, why: text() }, NotNamed { member: text(), pool: text() },
            Changed { path: path(), offset: 1 }, Served { path: path(), pool: text() }),
        one_of_each!("host/src/offline/writeback.rs", "WritebackError", WritebackError:
            Offline(OfflineError::Cancelled), Pool(PoolError::Twice { path: path() }), Backing(BackingError::Small { path: path(), size: 1 }),
            Devices(DevicesError::Setup(io())), Folder { path: path(), source: io() },
            NoVolume { name: text(), pool: text(), volumes: text() }, NoDisk { name: text() }, HasDisk { volume: text(), path: path() },
            NotToSave { name: text(), pool: text(), volumes: text() }, Twice { volume: text(), option: "--backing" }, SaveExists { path: path() }, Save { path: path(), source: io() },
            Identity { path: path(), volume: text(), found: text(), expected: text() },
            OfAnother { path: path(), volume: text(), other: text(), found: text() },
            Size { path: path(), volume: text(), found: 1, expected: 2 }, Changed { path: path(), volume: text() },
            NotProven { why: text(), lost: text() }, NotFound { volumes: text() }, Waiting { path: path(), volume: text() }, Start(CommandError::Disk), Disk { path: path(), source: io() }, Cancelled),
        one_of_each!("host/src/embed.rs", "Error", Embed:
            Pool(PoolError::Twice { path: path() }), Start(DaemonStart::NoUblk(text())), Fault(Fault::failed("x. Try again.")),
            Folder { path: path(), source: io() }, NotText { path: path() }, Closed, Detached { name: text() },
            NoVolume { name: text(), volumes: text() }, NotServed { name: text(), next: "Look at the kernel's log.".into() },
            Range { name: text(), offset: 1, bytes: 1, size: 1, block: 1 },
            Io { what: "The read", name: text(), offset: 1, bytes: 1 }, NotDetached { name: text(), within: Duration::ZERO },
            NotDeleted { name: text(), within: Duration::ZERO },
            NotClosed { within: Duration::ZERO }),
        one_of_each!("host/src/capi.rs", "CallError", FromC:
            Null("x"), NotText("x"), Length(1), Mode(text()), NoPool, NoVolume, Embed(Embed::Closed)),
    ]
}

/// Variants that say two things, by what is in them.
fn more() -> Vec<String> {
    vec![
        Refusal::Stale { pool: text(), epoch: 1, newest: 2, needed: vec![] }.to_string(),
        Refusal::TooFewVotes { pool: text(), epoch: 1, missing: vec![], witness_missing: true, witness_epoch: None }.to_string(),
        EngineStart::CopiesMissing { missing: vec![0, 1] }.to_string(),
    ]
}

/// Error types whose messages are looked at elsewhere, or are nobody's to act on.
const NOT_WALKED: [(&str, &str, &str); 11] = [
    ("host/src/control.rs", "Fault", "every place that makes one is looked at"),
    ("headpond/src/exit.rs", "Usage", "every place that makes one is looked at"),
    ("headpond/src/exit.rs", "Found", "every place that makes one is looked at"),
    ("host/src/ublk/mod.rs", "Error", "has a next step beside it: every place that makes one is looked at"),
    ("host/src/fuse/mod.rs", "Error", "told with the next step of whoever shows it: each is looked at"),
    ("host/src/daemon/disks.rs", "Mismatch", "told by `find_backing` alone, with a next step"),
    ("host/src/names.rs", "Unfit", "told as `StartError::Name`, which is looked at, or with a volume's own next step"),
    ("host/src/nbd/client.rs", "ClientError", "what the demo and the tests get; the demo says what to do"),
    ("headpond/src/demo.rs", "Interrupted", "the demo says what to do"),
    ("headpond/src/experiments/real/tools.rs", "Interrupted", "the user's own wish; it says how to have the report"),
    ("engine/src/io.rs", "DeviceError", "an answer of a device to the engine"),
];

#[test]
fn every_variant_of_every_error_type_names_the_next_step() {
    let walked = all_errors();
    let mut without = Vec::new();
    for it in &walked {
        for (variant, said) in &it.said {
            if !names_a_next_step(said) {
                without.push(format!("{}::{variant}: headpond: {said}", it.name));
            }
        }
    }
    without.extend(more().into_iter().filter(|said| !names_a_next_step(said)));
    assert!(without.is_empty(), "no next step in:\n{}", without.join("\n"));
    // And there is no error type beside these.
    let found: BTreeSet<(String, String)> = sources().iter().flat_map(errors_of).collect();
    let known = |file: &str, name: &str| {
        walked.iter().any(|it| (it.file, it.name) == (file, name)) || NOT_WALKED.iter().any(|it| (it.0, it.1) == (file, name))
    };
    let unknown: Vec<_> = found.iter().filter(|(file, name)| !known(file, name)).collect();
    assert!(unknown.is_empty(), "error types of which nobody has looked whether they name the next step: {unknown:?}");
    let there = |file: &str, name: &str| found.contains(&(file.to_owned(), name.to_owned()));
    assert!(walked.iter().all(|it| there(it.file, it.name)), "an error type has moved");
}

/// A source file of the engine, the host, or the command, without its tests.
struct Source {
    /// Below `crates`.
    name: String,
    tree: syn::File,
}

fn sources() -> Vec<Source> {
    fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match entry.is_dir() {
                true => walk(&entry, files),
                false if entry.extension().is_some_and(|it| it == "rs") => files.push(entry),
                false => {}
            }
        }
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for name in ["engine", "host", "headpond"] {
        walk(&crates.join(name).join("src"), &mut files);
    }
    files.sort();
    assert!(files.len() > 100, "{files:?}");
    let files = files.into_iter().filter(|path| !path.file_stem().unwrap().to_string_lossy().ends_with("tests"));
    let parse = |path: PathBuf| Source {
        tree: syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap(),
        name: path.strip_prefix(crates).unwrap().display().to_string(),
    };
    files.map(parse).collect()
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes
        .iter()
        .any(|it| it.path().is_ident("cfg") && it.meta.require_list().is_ok_and(|it| it.tokens.to_string() == "test"))
}

fn last(path: &syn::Path) -> String {
    path.segments.last().map(|it| it.ident.to_string()).unwrap_or_default()
}

/// The error types that a file makes: by what they derive, or implement.
fn errors_of(source: &Source) -> Vec<(String, String)> {
    let derives = |attributes: &[syn::Attribute]| {
        attributes.iter().any(|it| {
            let list =
                it.path().is_ident("derive").then(|| it.parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated));
            list.and_then(Result::ok).is_some_and(|list| list.iter().any(|path| last(path) == "Error"))
        })
    };
    let name = |item: &syn::Item| match item {
        syn::Item::Enum(it) if derives(&it.attrs) => Some(it.ident.to_string()),
        syn::Item::Struct(it) if derives(&it.attrs) => Some(it.ident.to_string()),
        syn::Item::Impl(it) if it.trait_.as_ref().is_some_and(|(_, path, _)| last(path) == "Error") => match &*it.self_ty {
            syn::Type::Path(path) => Some(last(&path.path)),
            _ => None,
        },
        _ => None,
    };
    source.tree.items.iter().filter_map(name).map(|name| (source.name.clone(), name)).collect()
}

/// What a name stands for; of a tuple that is taken apart, which part of it.
type Value = (Expr, Option<usize>);

/// What names in the source stand for, as far as a message is made of them.
#[derive(Default)]
struct Names {
    /// Of one file: `let`, and what functions end in.
    values: BTreeMap<(String, String), Vec<Value>>,
    /// Of all files: `const`.
    constants: BTreeMap<String, Expr>,
}

struct Collect<'a> {
    file: &'a str,
    names: &'a mut Names,
}

impl<'ast> Visit<'ast> for Collect<'_> {
    fn visit_item_mod(&mut self, it: &'ast syn::ItemMod) {
        if !is_test(&it.attrs) {
            visit::visit_item_mod(self, it);
        }
    }
    fn visit_local(&mut self, it: &'ast syn::Local) {
        if let Some(init) = &it.init {
            let mut add = |pat: &syn::Pat, part| {
                if let syn::Pat::Ident(name) = pat {
                    let key = (self.file.into(), name.ident.to_string());
                    self.names.values.entry(key).or_default().push(((*init.expr).clone(), part));
                }
            };
            match &it.pat {
                syn::Pat::Tuple(parts) => parts.elems.iter().enumerate().for_each(|(n, pat)| add(pat, Some(n))),
                pat => add(pat, None),
            }
        }
        visit::visit_local(self, it);
    }
    fn visit_item_const(&mut self, it: &'ast syn::ItemConst) {
        self.names.constants.insert(it.ident.to_string(), (*it.expr).clone());
    }
    fn visit_item_fn(&mut self, it: &'ast syn::ItemFn) {
        if let Some(syn::Stmt::Expr(end, None)) = it.block.stmts.last() {
            self.names.values.entry((self.file.into(), it.sig.ident.to_string())).or_default().push((end.clone(), None));
        }
        visit::visit_item_fn(self, it);
    }
}

/// What a message is made of, as far as the source tells.
#[derive(Clone, PartialEq, Debug)]
enum Made {
    /// Text, with the places where something is filled in.
    Text(String),
    /// An error told as it is: its own type is walked.
    Error,
    /// Something that cannot be seen here.
    Unseen(String),
}

impl Names {
    /// All that a message may be.
    fn made(&self, file: &str, expr: &Expr, part: Option<usize>, depth: usize) -> Vec<Made> {
        let unseen = || vec![Made::Unseen(file.to_owned())];
        if depth > 12 {
            return unseen();
        }
        let again = |expr: &Expr| self.made(file, expr, part, depth + 1);
        let all_of = |all: &[Value]| -> Vec<Made> {
            all.iter().flat_map(|(expr, inner)| self.made(file, expr, inner.or(part), depth + 1)).collect()
        };
        let tail = |block: &syn::Block| match block.stmts.last() {
            Some(syn::Stmt::Expr(end, None)) => again(end),
            _ => unseen(),
        };
        match expr {
            Expr::Lit(it) => match &it.lit {
                Lit::Str(text) => vec![Made::Text(text.value())],
                _ => unseen(),
            },
            Expr::Macro(it) if last(&it.mac.path) == "format" => {
                first_text(&it.mac.tokens).map_or_else(unseen, |it| vec![Made::Text(it)])
            }
            Expr::MethodCall(it)
                if ["into", "to_string", "to_owned", "as_str", "clone"].contains(&it.method.to_string().as_str()) =>
            {
                let inner = again(&it.receiver);
                let is_error = match &*it.receiver {
                    Expr::Path(path) => {
                        let first = path.path.segments.first().map(|it| it.ident.to_string()).unwrap_or_default();
                        first == "error" || first.ends_with("Error")
                    }
                    _ => false,
                };
                let seen = inner.iter().all(|it| matches!(it, Made::Text(_)));
                if it.method == "to_string" && is_error && !seen { vec![Made::Error] } else { inner }
            }
            Expr::Path(it) => {
                let name = last(&it.path);
                let local = self.values.get(&(file.to_owned(), name.clone()));
                match (local, self.constants.get(&name)) {
                    (Some(all), _) => all_of(all),
                    (None, Some(constant)) => again(constant),
                    (None, None) => unseen(),
                }
            }
            Expr::Call(it) => match &*it.func {
                Expr::Path(path) => match self.values.get(&(file.to_owned(), last(&path.path))) {
                    Some(all) => all_of(all),
                    None => unseen(),
                },
                _ => unseen(),
            },
            Expr::Match(it) => it.arms.iter().flat_map(|arm| again(&arm.body)).collect(),
            Expr::If(it) => {
                let mut all = tail(&it.then_branch);
                all.extend(it.else_branch.as_ref().map(|(_, other)| again(other)).unwrap_or_default());
                all
            }
            Expr::Block(it) => tail(&it.block),
            Expr::Binary(it) => {
                // What is put together: the text of both sides, what cannot be seen left out.
                let side = |expr: &Expr| match again(expr).into_iter().next() {
                    Some(Made::Text(text)) => text,
                    _ => String::new(),
                };
                vec![Made::Text(side(&it.left) + &side(&it.right))]
            }
            Expr::Tuple(it) => match part.and_then(|part| it.elems.get(part)) {
                Some(own) => self.made(file, own, None, depth + 1),
                None => unseen(),
            },
            Expr::Reference(it) => again(&it.expr),
            Expr::Paren(it) => again(&it.expr),
            _ => unseen(),
        }
    }
}

/// The first text among the arguments of a macro.
fn first_text(tokens: &TokenStream) -> Option<String> {
    tokens.clone().into_iter().find_map(|token| match token {
        TokenTree::Literal(it) => syn::parse_str::<syn::LitStr>(&it.to_string()).ok().map(|it| it.value()),
        _ => None,
    })
}

/// A place in the source that makes a message, and what it may say.
struct Site {
    place: String,
    made: Vec<Made>,
}

struct Look<'a> {
    file: &'a str,
    names: &'a Names,
    sites: Vec<Site>,
}

impl Look<'_> {
    fn site(&mut self, at: proc_macro2::Span, made: Vec<Made>) {
        self.sites.push(Site { place: format!("{}:{}", self.file, at.start().line), made });
    }

    fn message(&mut self, expr: &Expr) {
        let made = self.names.made(self.file, expr, None, 0);
        self.site(expr.span(), made);
    }

    /// Which argument of a call is a message, or its next step.
    fn argument(&self, path: &syn::Path) -> Option<usize> {
        let names: Vec<String> = path.segments.iter().map(|it| it.ident.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match names[..] {
            ["Fault", "failed" | "refused"] | ["Usage" | "Found"] => Some(0),
            ["Error", "new"] if self.file.contains("/ublk/") => Some(1),
            ["tell"] if self.file.ends_with("daemon/watch.rs") => Some(3),
            _ => None,
        }
    }
}

impl<'ast> Visit<'ast> for Look<'_> {
    fn visit_item_mod(&mut self, it: &'ast syn::ItemMod) {
        if !is_test(&it.attrs) {
            visit::visit_item_mod(self, it);
        }
    }

    fn visit_expr_call(&mut self, it: &'ast syn::ExprCall) {
        match &*it.func {
            Expr::Path(path) if self.argument(&path.path).is_some() => {
                let argument = self.argument(&path.path).and_then(|n| it.args.get(n));
                argument.into_iter().for_each(|argument| self.message(argument));
                it.args.iter().for_each(|it| self.visit_expr(it));
            }
            _ => visit::visit_expr_call(self, it),
        }
    }

    /// Handed on as a function: what it is called with cannot be seen.
    fn visit_expr_path(&mut self, it: &'ast syn::ExprPath) {
        if self.argument(&it.path).is_some() {
            self.site(it.span(), vec![Made::Unseen(last(&it.path))]);
        }
    }

    fn visit_expr_struct(&mut self, it: &'ast syn::ExprStruct) {
        let field = match last(&it.path).as_str() {
            "Advice" | "News" => "next",
            "Fault" if self.file.ends_with("host/src/control.rs") => "message",
            _ => "",
        };
        for value in it.fields.iter().filter(|it| matches!(&it.member, syn::Member::Named(name) if name == field)) {
            self.message(&value.expr);
        }
        visit::visit_expr_struct(self, it);
    }

    fn visit_expr_method_call(&mut self, it: &'ast syn::ExprMethodCall) {
        match it.method.to_string().as_str() {
            "context" => it.args.iter().for_each(|it| self.message(it)),
            "with_context" => {
                if let Some(Expr::Closure(closure)) = it.args.first() {
                    self.message(&closure.body);
                }
            }
            // A finding's.
            "next" if it.args.len() == 1 => it.args.iter().for_each(|it| self.message(it)),
            _ => {}
        }
        visit::visit_expr_method_call(self, it);
    }

    fn visit_macro(&mut self, it: &'ast syn::Macro) {
        let name = last(&it.path);
        let logs = ["warn", "error"].contains(&name.as_str()) && it.path.segments.len() == 2;
        if logs || ["bail", "anyhow", "ensure"].contains(&name.as_str()) {
            let made = first_text(&it.tokens).map_or(Made::Unseen(it.tokens.to_string()), Made::Text);
            self.site(it.path.span(), vec![made]);
        }
        // What is made within the arguments of other macros.
        if let Ok(arguments) = it.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
            arguments.iter().for_each(|it| self.visit_expr(it));
        }
    }
}

/// Messages that need no next step of their own: the file, a part of what is said (or of the place, where that cannot be seen),
/// and the reason.
const PASSED_ON: [(&str, &str, &str); 32] = [
    ("headpond/src/commands/mod.rs", "{wrong} {next}", "what the daemon says, each part of which is looked at"),
    ("headpond/src/commands/check.rs", "Nothing was changed. {next}", "it ends in one of two next steps, three lines above"),
    (
        "headpond/src/commands/serve.rs",
        "(cannot be seen)",
        "what `Daemon::stop` says: the engine's, or that it takes longer, which is looked at",
    ),
    ("headpond/src/commands/serve.rs", "{what}", "what `ublk::prepare_process` says, which is looked at"),
    ("headpond/src/commands/serve.rs", "{text}", "the command's error, which is looked at, as a line of the log"),
    ("host/src/control.rs", "(cannot be seen)", "where faults are made from what callers say, each of which is looked at"),
    ("host/src/daemon/diskless.rs", "Volume {name}: {}", "the engine's own message"),
    ("host/src/daemon/diskless.rs", "was not created: {error}", "ends in the engine's own message"),
    ("host/src/daemon/diskless.rs", "was not deleted: {error}", "ends in the engine's own message"),
    (
        "host/src/daemon/diskless.rs",
        "was not deleted, and nothing was changed: {error}",
        "ends in the block device's own next step",
    ),
    ("host/src/daemon/grow.rs", "{wrong} {next}", "the answer's two fields, each of which is looked at"),
    ("host/src/daemon/members.rs", "was not added: {error}", "ends in the engine's own message"),
    ("host/src/daemon/members.rs", "was not removed: {error}", "ends in the engine's own message"),
    ("host/src/daemon/service.rs", "{error}.", "a backing device's own message"),
    ("host/src/daemon/service.rs", "{} {what}.", "what the program is instead, which `introduced` ends with the next step"),
    ("host/src/daemon/service.rs", "was not attached: {error}", "has the engine's own message"),
    (
        "host/src/daemon/service.rs",
        "was not detached, and nothing was changed: {error}",
        "ends in the block device's own next step",
    ),
    ("host/src/daemon/service.rs", "(cannot be seen)", "how the engine ended, in its own words"),
    ("host/src/daemon/service.rs", "Volume {}: {error}", "ends in the engine's own message"),
    ("headpond/src/commands/targets.rs", "On {on}: {error}", "ends in what the search for a journal says"),
    ("host/src/daemon/watch.rs", "(cannot be seen)", "`tell` itself: all that call it are looked at"),
    ("host/src/daemon/offer.rs", "{}.", "the next step of a `ublk::Error`"),
    ("host/src/daemon/offer.rs", "is no more, but its block device", "ends in the next step of a `ublk::Error`"),
    ("host/src/daemon/offer.rs", "{warning}", "a warning of a front end, with its own next step"),
    ("host/src/daemon/offer.rs", "{warning}. {}", "a warning of a front end, with its own next step"),
    ("host/src/daemon.rs", "{} {}", "an advice's two fields, each of which is looked at"),
    ("host/src/pool/open.rs", "{what}", "what `try_open` says of devices that were named in vain, each with what to do about it"),
    ("headpond/src/commands/volume.rs", "{error}. {}", "a `ublk::Error` with its own next step"),
    ("host/src/ublk/device.rs", "{error}. {}", "a `ublk::Error` with its own next step"),
    ("host/src/daemon.rs", "{error}; waiting for it", "ends in the block device's own next step: unmount it"),
    ("host/src/events.rs", "{what}", "an event: its next step is a field of the line"),
    ("host/src/offline/check/intent.rs", "", "another copy mends it: `mended_by` says so"),
];

/// What is excused by fewer bytes than these must be the whole message.
const SHORT: usize = 16;

/// The demo's own messages, those of the experiments' real form, and of the bench's: `commands/demo.rs`, `real/mod.rs` and
/// `commands/bench.rs` tell them all with what to do.
const WRAPPED: [&str; 3] = ["headpond/src/demo", "headpond/src/experiments/real", "headpond/src/bench/real"];

#[test]
fn every_message_that_is_made_on_the_spot_names_the_next_step() {
    let sources = sources();
    let mut names = Names::default();
    for source in &sources {
        Collect { file: &source.name, names: &mut names }.visit_file(&source.tree);
    }
    let mut sites = Vec::new();
    for source in sources.iter().filter(|it| !WRAPPED.iter().any(|wrapped| it.name.starts_with(wrapped))) {
        let mut look = Look { file: &source.name, names: &names, sites: Vec::new() };
        look.visit_file(&source.tree);
        sites.extend(look.sites);
    }
    // The walk sees what is there.
    assert!(sites.len() > 120, "only {} messages were found", sites.len());
    let mut used = BTreeSet::new();
    let mut without = Vec::new();
    for Site { place, made } in &sites {
        for made in made {
            let said = match made {
                Made::Text(text) if names_a_next_step(text) => continue,
                Made::Error => continue,
                Made::Text(text) => text.as_str(),
                Made::Unseen(_) => "(cannot be seen)",
            };
            let excuse = PASSED_ON.iter().position(|(file, part, _)| {
                place.starts_with(file) && (said == *part || part.len() > SHORT && said.contains(part))
            });
            match excuse {
                Some(excuse) => drop(used.insert(excuse)),
                None => without.push(format!("{place}: {said}")),
            }
        }
    }
    assert!(without.is_empty(), "{} messages without a next step:\n{}", without.len(), without.join("\n"));
    let unused: Vec<_> = PASSED_ON.iter().enumerate().filter(|(n, _)| !used.contains(n)).map(|(_, it)| it).collect();
    assert!(unused.is_empty(), "excused, and not there any more: {unused:?}");
}
