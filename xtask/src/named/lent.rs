//! Memory that clients lend.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/lent.rs`.
pub const TOLD: &[Told] = &[
    ("lent::what_goes_past_the_cache_is_not_copied", "what is admitted read into a client's memory"),
    ("lent::what_goes_past_the_cache_is_not_copied", "what goes past the cache copied"),
    ("lent::what_is_dirty_is_absorbed_from_lent_memory_and_laid_over_it", "a client's memory taken into the log as it is"),
    ("lent::what_a_failed_read_left_in_lent_memory_is_not_the_answer", "a failed read answered with what it left"),
    (
        "lent::what_write_through_admits_is_what_the_disk_got_though_the_client_changes_its_memory",
        "what a client lends copied for the cache after the disk had it",
    ),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "what is admitted read into a client's memory",
        story: "A miss is answered, and then put into the cache from memory that its client has back and writes to.",
        edits: &[Edit { file: "read.rs", old: "into.filter(|_| fills.iter().all(Option::is_none))", new: "into" }],
    },
    Mistake {
        name: "what goes past the cache copied",
        story: "A stream costs a copy that nobody needs.",
        edits: &[Edit {
            file: "engine.rs",
            old: "        Request::Write { sector, data, fua } => {\n",
            new: "        Request::Write { sector, data, fua } => {\n            let data = data.owned().ok_or(RequestError::Io)?;\n",
        }],
    },
    Mistake {
        name: "a client's memory taken into the log as it is",
        story: "The client writes to it between the checksum and the two devices: no copy is what the record says.",
        edits: &[Edit {
            file: "write.rs",
            old: "let data = data.slice(from..from + (range.end - range.start) as usize * 512).owned()?;",
            new: "let data = data.slice(from..from + (range.end - range.start) as usize * 512);",
        }],
    },
    Mistake {
        name: "a failed read answered with what it left",
        story: "A part of it was read; the rest is what the client's memory held before.",
        edits: &[Edit {
            file: "read.rs",
            old: "                _ => failed = true,\n            }\n        }\n        drop(using);",
            new: "                _ => match into {\n                    Some(lent) => from_disk.push(lent.slice((r.start - range.start) as usize * 512..(r.end - range.start) as usize * 512)),\n                    None => failed = true,\n                },\n            }\n        }\n        drop(using);",
        }],
    },
    Mistake {
        name: "what a client lends copied for the cache after the disk had it",
        story: "In between the client wrote to it: the cache calls clean what the disk does not have.",
        edits: &[
            Edit {
                file: "write.rs",
                old: "        (Some(_), Content::Data(data)) => match data.owned() {",
                new: "        (Some(_), Content::Data(data)) => match Some(data.clone()) {",
            },
            Edit {
                file: "write.rs",
                old: "            insert_clean(core, volume, range.start, data.clone(), version, fill)",
                new: "            insert_clean(core, volume, range.start, data.owned().unwrap_or_else(|| data.clone()), version, fill)",
            },
        ],
    },
];
