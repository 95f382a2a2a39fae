//! Volumes served over NBD on a Unix socket, and a client for them.
//!
//! [`protocol`] knows the bytes, [`session`] one connection without any input or output, and
//! [`server`] sockets and threads. None of them knows the engine: that is behind [`server::Backend`].
//! [`client`] is the other end, for loads and tests.
#![forbid(unsafe_code)]

pub mod client;
pub mod protocol;
pub mod server;
pub mod session;
