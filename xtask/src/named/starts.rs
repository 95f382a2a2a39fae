//! Cache devices that cannot be read at a start.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/starts.rs`.
pub const TOLD: &[Told] = &[
    ("starts::headers_that_cannot_be_read_for_a_moment", "headers that cannot be read taken for none"),
    ("starts::a_log_that_cannot_be_read_for_a_moment", "a log that cannot be read taken for its end"),
    ("starts::a_log_that_cannot_be_read_refuses_the_start", "a log that cannot be read taken for its end"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "headers that cannot be read taken for none",
        story: "A controller is reset while a start reads headers: the segments that were opened last are not found, and what was acknowledged in them is gone.",
        edits: &[Edit { file: "recovery.rs", old: "if on_several { failed }", new: "if on_several && false { failed }" }],
    },
    Mistake {
        name: "a log that cannot be read taken for its end",
        story: "The same while it reads the log: what is behind is not looked at, and the next start finds it again, over what was written since.",
        edits: &[Edit { file: "recovery.rs", old: "let may_be_lost = copies", new: "let may_be_lost = false && copies" }],
    },
];
