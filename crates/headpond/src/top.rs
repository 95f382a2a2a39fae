//! `headpond top`: what is seen of a daemon, drawn on a terminal.

pub mod seen;
pub mod tables;
pub mod terminal;
pub mod view;
