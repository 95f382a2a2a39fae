//! What `headpond bench` shows of its figures: as a table, a page, and JSON.

pub mod hours;
mod json;
mod page;
pub mod real;
mod table;

pub use json::json;
pub use page::page;
pub use table::terminal;

use headpond_sim::bench::{Options, Row};

/// All that a run brought.
pub struct Figures {
    /// A row for each load and group, in the order of the catalogue.
    pub rows: Vec<Row>,
    /// Loads that could not be measured, with why.
    pub failures: Vec<(String, String)>,
    /// How it was done.
    pub options: Options,
}

impl Figures {
    /// The rows, the one furthest under its promise first.
    pub fn worst_first(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by(|a, b| a.by_promise().total_cmp(&b.by_promise()));
        rows
    }

    /// The row with the least ratio.
    pub fn least(&self) -> Option<&Row> {
        self.rows.iter().min_by(|a, b| a.ratio.total_cmp(&b.ratio))
    }
}
