//! QEMU's own control socket, for what a running machine's owner can do to it: pull a drive out, and put it in.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long QEMU, or a guest that has to let go of a device, may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection.
pub struct Qmp {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects, and ends the greeting.
    pub fn connect(socket: &Path) -> Result<Qmp> {
        let stream = UnixStream::connect(socket).context("the machine's control socket does not answer")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let lines = BufReader::new(stream.try_clone()?);
        let mut qmp = Qmp { stream, lines };
        qmp.message()?;
        qmp.call("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Pulls the device with this identity out, and waits until the guest's kernel has let go of it.
    pub fn pull(&mut self, id: &str) -> Result<()> {
        let mut message = self.call("device_del", &json!({ "id": id }))?;
        while message["event"] != "DEVICE_DELETED" || message["data"]["device"] != id {
            message = self.message().with_context(|| format!("the guest's kernel does not let go of {id}"))?;
        }
        Ok(())
    }

    /// Puts a device in; the arguments are those of `-device`.
    pub fn put(&mut self, device: &Value) -> Result<()> {
        self.call("device_add", device).map(drop)
    }

    /// Asks, and takes the answer. Events before it are of no use.
    fn call(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments });
        self.stream.write_all(format!("{line}\n").as_bytes())?;
        loop {
            let message = self.message()?;
            if let Some(error) = message.get("error") {
                bail!("QEMU refuses {command}: {}", error["desc"]);
            }
            if message.get("return").is_some() {
                return Ok(message);
            }
        }
    }

    fn message(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line).context("the machine's control socket")?;
        serde_json::from_str(&line).with_context(|| format!("QEMU said what makes no sense: {line:?}"))
    }
}
