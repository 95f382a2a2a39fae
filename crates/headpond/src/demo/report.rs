//! The result for people: a table for the terminal and a page to keep.

mod page;
mod plot;
mod table;

pub use page::page;
pub use table::terminal;

#[cfg(test)]
mod tests;
