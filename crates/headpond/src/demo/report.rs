//! The result for people: a table for the terminal and a page to keep.

mod page;
pub mod plot;
mod table;

pub use page::{escape, open, page};
pub use plot::ratios;
pub use table::terminal;

#[cfg(test)]
mod tests;
