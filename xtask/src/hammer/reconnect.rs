//! A client that reconnects: an NBD server of its own, which hands each request to the daemon again and again until it is
//! answered, however often the daemon dies in between.
//!
//! Clients such as fio see one steady server, and no error unless the daemon itself answers with one. A request that was
//! not answered when the connection broke is sent again on a new one; nothing that was answered is ever sent again, so
//! what a dead daemon had acknowledged and lost stays lost, and is found.

use super::{interrupt, rig};
use anyhow::{Context, Result, bail};
use headpond_host::nbd::client::{Client, ClientError, Request};
use headpond_host::nbd::protocol::Errno;
use headpond_host::nbd::server::{Backend, Command, Completion, Limits, Server};
use headpond_host::nbd::session::ExportInfo;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Connections to the daemon, each with one request at a time: what clients have outstanding goes out at once.
const CONNECTIONS: usize = 16;
/// A daemon that is silent, or away, for this long is a finding.
pub const SILENCE: Duration = Duration::from_secs(60);

type Job = (Command<Vec<u8>>, Completion<Vec<u8>>);

/// The steady server.
pub struct Reconnecting {
    server: Option<Server>,
    shared: Arc<Shared>,
    socket: PathBuf,
}

#[derive(Default)]
struct Shared {
    replayed: AtomicU64,
    answered: AtomicU64,
    ended: AtomicBool,
    trouble: Mutex<Option<String>>,
}

impl Reconnecting {
    /// Serves at `socket` what the daemon serves at `upstream`, which must be there.
    pub fn serve(upstream: &Path, socket: &Path) -> Result<Reconnecting> {
        let client = Client::connect_within(upstream, rig::NAME, SILENCE, SILENCE)?;
        let size = client.export().size;
        client.disconnect()?;
        let (jobs, queue) = mpsc::channel::<Job>();
        let (queue, shared) = (Arc::new(Mutex::new(queue)), Arc::new(Shared::default()));
        for _ in 0..CONNECTIONS {
            let (queue, shared, upstream) = (queue.clone(), shared.clone(), upstream.to_owned());
            thread::spawn(move || work(&queue, &shared, &upstream));
        }
        let backend = Arc::new(Steady { size, jobs: Mutex::new(jobs) });
        let server = Server::start(socket, backend, Limits::default()).context("the reconnecting client cannot listen")?;
        Ok(Reconnecting { server: Some(server), shared, socket: socket.to_owned() })
    }

    /// The volume, as clients name it here.
    pub fn uri(&self) -> String {
        rig::uri(&self.socket)
    }

    /// How many requests were answered, and how often one was sent again.
    pub fn figures(&self) -> (u64, u64) {
        (self.shared.answered.load(Ordering::Relaxed), self.shared.replayed.load(Ordering::Relaxed))
    }

    /// Fails if the daemon answered a request with an error, or did not come back.
    pub fn check(&self) -> Result<()> {
        match &*self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(what) => bail!("{what}"),
            None => Ok(()),
        }
    }
}

impl Reconnecting {
    /// Answers everything with errors from now on: the daemon will not come back.
    pub fn give_up(&self) {
        self.shared.ended.store(true, Ordering::SeqCst);
    }
}

impl Drop for Reconnecting {
    fn drop(&mut self) {
        self.give_up();
        if let Some(server) = self.server.take() {
            server.shutdown(Duration::from_secs(1));
        }
    }
}

struct Steady {
    size: u64,
    jobs: Mutex<Sender<Job>>,
}

impl Backend for Steady {
    type Space = Vec<u8>;
    type Data = Vec<u8>;

    fn exports(&self) -> Vec<ExportInfo> {
        vec![ExportInfo { multi_conn: true, ..ExportInfo::new(0, rig::NAME, self.size) }]
    }

    fn alloc(&self, len: usize) -> Vec<u8> {
        vec![0; len]
    }

    fn submit(&self, _export: usize, command: Command<Vec<u8>>, done: Completion<Vec<u8>>) {
        // If nobody takes it, it is dropped, and so answered with an error.
        let _ = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).send((command, done));
    }
}

fn work(queue: &Mutex<Receiver<Job>>, shared: &Shared, upstream: &Path) {
    let mut client = None;
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((command, done)) = job else { return };
        match answer(&mut client, &command, shared, upstream) {
            Ok(data) => {
                shared.answered.fetch_add(1, Ordering::Relaxed);
                done.finish(Ok(data));
            }
            Err(what) => {
                if !shared.ended.load(Ordering::SeqCst) {
                    shared.trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
                }
                done.finish(Err(Errno::Io));
            }
        }
    }
}

/// Asks until there is an answer.
fn answer(
    slot: &mut Option<Client>,
    command: &Command<Vec<u8>>,
    shared: &Shared,
    upstream: &Path,
) -> Result<Vec<Vec<u8>>, String> {
    let since = Instant::now();
    loop {
        if shared.ended.load(Ordering::SeqCst) || interrupt::interrupted() {
            return Err("the check is over".into());
        }
        // In short steps, so that an end is noticed.
        let step = Duration::from_millis(200);
        let client = match slot {
            Some(client) => client,
            None => match Client::connect_within(upstream, rig::NAME, SILENCE, step) {
                Ok(client) => slot.insert(client),
                Err(_) if since.elapsed() < SILENCE => continue,
                Err(error) => return Err(format!("the daemon did not come back within {} s: {error}", SILENCE.as_secs())),
            },
        };
        match ask(client, command) {
            Ok(data) => return Ok(data),
            Err(
                error @ (ClientError::Failed(_) | ClientError::Invalid(_) | ClientError::Protocol(_) | ClientError::Silent(_)),
            ) => {
                *slot = None;
                return Err(format!("the daemon was asked for {}, and: {error}", named(command)));
            }
            // The connection broke: nobody knows whether it was done, so it is done again.
            Err(_) => {
                *slot = None;
                shared.replayed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn ask(client: &mut Client, command: &Command<Vec<u8>>) -> Result<Vec<Vec<u8>>, ClientError> {
    // A write carries its wish for durability with it; our client has no such flag for the others.
    let durable = match *command {
        Command::Read { offset, len } => return client.call(Request::Read { offset, len }).map(|data| vec![data]),
        Command::Write { offset, ref data, fua } => {
            client.call(Request::Write { offset, data, fua })?;
            false
        }
        Command::Flush => true,
        Command::Trim { offset, len, fua } => {
            client.call(Request::Trim { offset, len })?;
            fua
        }
        Command::WriteZeroes { offset, len, fua } => {
            client.call(Request::WriteZeroes { offset, len })?;
            fua
        }
    };
    if durable {
        client.call(Request::Flush)?;
    }
    Ok(Vec::new())
}

fn named(command: &Command<Vec<u8>>) -> String {
    match command {
        Command::Read { offset, len } => format!("a read of {len} bytes at {offset}"),
        Command::Write { offset, data, fua } => format!("a write of {} bytes at {offset}, durable {fua}", data.len()),
        Command::Flush => "a flush".into(),
        Command::Trim { offset, len, .. } => format!("a trim of {len} bytes at {offset}"),
        Command::WriteZeroes { offset, len, .. } => format!("zeroes for {len} bytes at {offset}"),
    }
}
