//! As much of HTTP as a scrape takes: one GET for each connection, which is closed behind the answer.
//!
//! Whoever reaches the address may connect and say nothing. So each connection has a few seconds in all, there are only so many, and
//! one more closes the oldest.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Source;

/// From connecting to having read the answer.
const LIMIT: Duration = Duration::from_secs(10);
/// Connections at a time.
const CONNECTIONS: usize = 16;
/// The most that a request may have: a scraper's has some hundred bytes.
const REQUEST: usize = 16 << 10;

/// An HTTP server for `GET /metrics`. Dropped, it ends.
pub struct Server {
    listener: TcpListener,
    stopping: Arc<AtomicBool>,
    open: Open,
    accepting: Option<JoinHandle<()>>,
}

/// The connections, the oldest first, each with its number.
type Open = Arc<Mutex<Vec<(u64, Arc<TcpStream>)>>>;

fn lock(open: &Open) -> MutexGuard<'_, Vec<(u64, Arc<TcpStream>)>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Answers whoever comes to `listener`, and who waits there already.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn start(listener: TcpListener, source: Arc<Source>) -> io::Result<Server> {
        let (stopping, open) = (Arc::new(AtomicBool::new(false)), Open::default());
        let (listens, stops, opens) = (listener.try_clone()?, stopping.clone(), open.clone());
        let body = move || accept(&listens, &stops, &opens, &source);
        let accepting = Some(thread::Builder::new().name("metrics".into()).spawn(body)?);
        Ok(Server { listener, stopping, open, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // Wakes the thread from its accept.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        lock(&self.open).iter().for_each(|(_, stream)| drop(stream.shutdown(Shutdown::Read)));
    }
}

fn accept(listener: &TcpListener, stopping: &AtomicBool, open: &Open, source: &Arc<Source>) {
    for number in 0.. {
        let accepted = listener.accept();
        if stopping.load(Ordering::Acquire) {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => Arc::new(stream),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for metrics. Look at the limit of open files, if it comes again");
                // Out of descriptors or memory: to try at once would only burn time.
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        {
            let mut open = lock(open);
            if open.len() >= CONNECTIONS {
                let (_, oldest) = open.remove(0);
                let _ = oldest.shutdown(Shutdown::Both);
            }
            open.push((number, stream.clone()));
        }
        let (source, of) = (source.clone(), open.clone());
        let spawned = thread::Builder::new().name("metrics-client".into()).spawn(move || {
            if let Err(error) = serve(&stream, &*source) {
                tracing::debug!(%error, "a connection for metrics ended");
            }
            lock(&of).retain(|(known, _)| *known != number);
        });
        if let Err(error) = spawned {
            lock(open).retain(|(known, _)| *known != number);
            tracing::warn!(%error, "no thread for a connection for metrics; closed it. Look at the limits of threads and memory");
        }
    }
}

/// Reads one request, and answers it.
fn serve(stream: &TcpStream, source: &Source) -> io::Result<()> {
    let until = Instant::now() + LIMIT;
    let Some(request) = read_head(stream, until)? else { return Ok(()) };
    let mut line = request.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (line.next().unwrap_or_default(), line.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => match source() {
            Some(text) => ("200 OK", text),
            None => ("503 Service Unavailable", "the daemon is ending\n".into()),
        },
        ("GET" | "HEAD", _) => ("404 Not Found", "the metrics are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", "the metrics are read with GET\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        prometheus::TEXT_FORMAT,
        body.len()
    );
    let body = if method == "HEAD" { "" } else { &body };
    write_all(stream, [head.as_bytes(), body.as_bytes()].concat(), until)?;
    stream.shutdown(Shutdown::Write)
}

/// The request up to its empty line, whatever comes behind; `None` if it ends before that, or is too long.
fn read_head(mut stream: &TcpStream, until: Instant) -> io::Result<Option<String>> {
    let (mut head, mut more) = (Vec::new(), [0; 1024]);
    while head.len() < REQUEST {
        stream.set_read_timeout(Some(left(until)?))?;
        let len = match stream.read(&mut more) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if len == 0 {
            return Ok(None);
        }
        head.extend(&more[..len]);
        if head.windows(4).any(|at| at == b"\r\n\r\n") || head.windows(2).any(|at| at == b"\n\n") {
            return Ok(Some(String::from_utf8_lossy(&head).into_owned()));
        }
    }
    Ok(None)
}

fn write_all(mut stream: &TcpStream, bytes: Vec<u8>, until: Instant) -> io::Result<()> {
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => rest = &rest[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> (Server, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (Server::start(listener, Arc::new(|| Some("headpond_up 1\n".into()))).unwrap(), address)
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn each_request_is_answered_as_it_should_be_and_the_connection_closed() {
        let (_server, address) = server();
        for (request, status, body) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK", "headpond_up 1\n"),
            ("GET /metrics?x=1 HTTP/1.0\n\n", "200 OK", "headpond_up 1\n"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "200 OK", ""),
            ("GET / HTTP/1.1\r\n\r\n", "404 Not Found", "the metrics are at /metrics\n"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed", "the metrics are read with GET\n"),
        ] {
            let answer = ask(address, request);
            let (head, rest) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}: {answer}");
            assert_eq!(rest, body, "{request}");
        }
        let endless = "x".repeat(2 * REQUEST);
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(endless.as_bytes());
        assert!(matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_)), "nothing is answered");
    }

    #[test]
    fn one_connection_too_many_closes_the_oldest() {
        let (_server, address) = server();
        let silent: Vec<TcpStream> = (0..CONNECTIONS + 1).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut oldest = &silent[0];
        oldest.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert!(matches!(oldest.read(&mut [0]), Ok(0)), "it is closed");
        assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").contains("headpond_up 1"));
    }
}
