//! When sweeps begin and end: mistakes that only a scene or a seed tells.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/sweeps.rs`.
pub const TOLD: &[Told] = &[
    (
        "sweeps::what_is_dirty_for_long_is_written_though_clients_never_leave_the_disk",
        "dirty data that waits for an idle disk, however old it gets",
    ),
    (
        "sweeps::what_is_dirty_for_long_is_written_though_clients_never_leave_the_disk",
        "an age reckoned from before anything was dirty",
    ),
    ("sweeps::large_writes_that_are_absorbed_do_not_have_a_sweep_go_on", "large writes that want space"),
    ("sweeps::large_writes_are_not_held_back", "large writes that wait for their turn"),
    ("sweeps::who_is_held_back_has_a_sweep_begin", "writes that are held back and want nothing"),
    ("sweeps::a_sweep_does_not_follow_a_log_record_by_record", "a sweep that follows whoever writes on before it"),
    ("sweeps::who_comes_back_to_the_disk_each_half_second_meets_no_sweep", "a sweep in each pause of clients"),
    ("sweeps::a_stream_over_a_cache_that_was_just_filled_has_the_disk_for_itself", "space won for nobody beside clients"),
    (
        "sweeps::a_sweep_goes_past_the_disks_cache_while_there_are_random_readers_and_only_then",
        "a sweep into the disk's own cache beside random readers",
    ),
    (
        "sweeps::a_sweep_beside_clients_has_its_chunks_flushed_by_their_commits",
        "a flush of the disk for each chunk beside commits",
    ),
    (
        "sweeps::a_sweep_beside_clients_has_its_chunks_flushed_by_their_commits",
        "a sweep that stands still behind chunks that wait for a commit",
    ),
    ("sweeps::a_burst_that_fits_costs_a_stream_beside_it_nothing", "a stream that pays for a burst that fits"),
    ("sweeps::chunks_wait_for_a_commit_no_longer_than_clients_use_the_disk", "chunks that wait for a commit of who has ended"),
    ("sweeps::a_disk_that_clients_have_flushed_is_not_idle_until_it_has", "a disk that stands still for a flush taken for idle"),
    ("sweeps::a_chunk_ends_when_it_has_taken_long_however_much_of_it_is_written", "a chunk that ends when all of it is written"),
    ("sweeps::what_is_written_again_and_again_is_gathered_and_needs_no_sweep", "hot places that only a sweep wins back"),
    ("hazards::h2_written_under_the_sweep", "destage that is not told of the first write after a rest"),
    ("sweeps::what_lies_behind_a_bad_stretch_of_the_disk_gets_to_it", "what was not tried passed over"),
    ("sweeps::a_stop_leaves_dirty_what_somebody_wants_clean", "a stop that waits for what somebody wants clean"),
    ("sweeps::what_a_sweep_has_written_is_called_clean_in_turns", "all of a chunk called clean at once"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "dirty data that waits for an idle disk, however old it gets",
        story: "Clients never leave it for long: what was written once is on the disk in a year, and a detach then waits for it.",
        edits: &[Edit { file: "policy/destage.rs", old: "return usize::from(load.overdue);", new: "return 0;" }],
    },
    Mistake {
        name: "an age reckoned from before anything was dirty",
        story: "Nothing was dirty for a day, and what is written then goes down at once, beside clients.",
        edits: &[Edit {
            file: "destage.rs",
            old: "            if is_clean {\n                volume.dirty_since.set(core.now());\n            }\n",
            new: "",
        }],
    },
    Mistake {
        name: "a sweep in each pause of clients",
        story: "Who uses the disk each half second finds its cache and its queue full of what a sweep has put there meanwhile.",
        edits: &[Edit {
            file: "destage.rs",
            old: "disk_idle: volume.disk_use.is_at_leisure(",
            new: "disk_idle: volume.disk_use.is_idle(",
        }],
    },
    Mistake {
        name: "a stream that pays for a burst that fits",
        story: "Destage begins beside it at half of the space, and the heads go back and forth for what would have had room.",
        edits: &[Edit { file: "policy/destage.rs", old: "        if !beside_streams {\n", new: "        if true {\n" }],
    },
    Mistake {
        name: "large writes that want space",
        story: "What of streams is absorbed has a sweep go on beside them, though the disk would take it as soon.",
        edits: &[Edit { file: "write.rs", old: "    if bytes >= pace::LARGE {\n", new: "    if bytes >= pace::LARGE << 20 {\n" }],
    },
    Mistake {
        name: "large writes that wait for their turn",
        story: "They are held back for a sweep that would not have them down any sooner, and the disk has nothing to do.",
        edits: &[Edit {
            file: "policy/pace.rs",
            old: "        if bytes >= LARGE {\n",
            new: "        if bytes >= LARGE << 20 {\n",
        }],
    },
    Mistake {
        name: "writes that are held back and want nothing",
        story: "So little is written by whoever waits at every write that no sweep begins, and so he goes on waiting.",
        edits: &[Edit {
            file: "write.rs",
            old: "    demand.held_back(core.now());\n",
            new: "    let _ = (&mut demand, core.now());\n",
        }],
    },
    Mistake {
        name: "a sweep that follows whoever writes on before it",
        story: "It is never round while a log grows, and each record has a flush of the disk and of each cache device of its own.",
        edits: &[Edit {
            file: "destage.rs",
            old: "        if is_rest && (due > core.now() || load.overdue) {",
            new: "        if false && is_rest && due > core.now() {",
        }],
    },
    Mistake {
        name: "space won for nobody beside clients",
        story: "Those who filled the cache have ended; the sweep takes the disk from a stream until space is half empty again.",
        edits: &[Edit {
            file: "policy/destage.rs",
            old: "if is_wanted { setting } else { setting.max(UNWANTED_PERCENT) }",
            new: "if is_wanted || setting < UNWANTED_PERCENT { setting } else { UNWANTED_PERCENT }",
        }],
    },
    Mistake {
        name: "a sweep into the disk's own cache beside random readers",
        story: "The flush at a chunk's end finds hundreds of writes there, and readers wait for all of them.",
        edits: &[Edit {
            file: "destage.rs",
            old: "    let beside_readers = volume.disk_use.has_lone_readers(core.now(), core.settings.idle_ns);\n",
            new: "    let beside_readers = false;\n",
        }],
    },
    Mistake {
        name: "a disk that stands still for a flush taken for idle",
        story: "Whoever waits for it asks nothing else meanwhile, and a sweep has its writes before what he asks next.",
        edits: &[Edit { file: "disk_use.rs", old: "&& self.flushes.get() == 0 && now", new: "&& now" }],
    },
    Mistake {
        name: "a flush of the disk for each chunk beside commits",
        story: "A disk that stands still while it flushes does so again and again, and streams beside the sweep are slower than without a cache.",
        edits: &[Edit { file: "destage.rs", old: "if ends_now { 0 }", new: "if ends_now || true { 0 }" }],
    },
    Mistake {
        name: "a sweep that stands still behind chunks that wait for a commit",
        story: "Small chunks are soon written, and then the disk has time, nothing becomes clean, and writes wait for space.",
        edits: &[Edit { file: "destage.rs", old: "const OUTSTANDING: usize = 6;", new: "const OUTSTANDING: usize = 3;" }],
    },
    Mistake {
        name: "chunks that wait for a commit of who has ended",
        story: "The disk is idle, nothing becomes clean, and writes wait for space, for up to six seconds.",
        edits: &[Edit {
            file: "destage.rs",
            old: "    while core.now() < until && !volume.disk_use.is_idle(core.now(), core.settings.idle_ns) {",
            new: "    while core.now() < until {",
        }],
    },
    Mistake {
        name: "a chunk that ends when all of it is written",
        story: "The disk has come to be busy; nothing is clean for twenty seconds, and no segment free.",
        edits: &[Edit { file: "destage.rs", old: " || core.now() >= chunk.until {", new: " {" }],
    },
    Mistake {
        name: "a flush that is not awaited though another one is",
        story: "The flush that a chunk waits for was issued before its writes: a power cut loses what is called clean.",
        edits: &[Edit {
            file: "flusher.rs",
            old: "        self.next.borrow_mut().get_or_insert_with(|| Slot::new(&self.exec)).clone()",
            new: "        if let Some(slot) = self.in_flight.borrow().as_ref() {\n            return slot.clone();\n        }\n        self.next.borrow_mut().get_or_insert_with(|| Slot::new(&self.exec)).clone()",
        }],
    },
    Mistake {
        name: "hot places that only a sweep wins back",
        story: "What is written again and again fills the log, though little of it counts: the disk is kept busy with the same places.",
        edits: &[Edit {
            file: "policy/gather.rs",
            old: "    left.saturating_mul(LITTLE) <= capacity",
            new: "    left > capacity * 100",
        }],
    },
    Mistake {
        name: "destage that is not told of the first write after a rest",
        story: "All is clean, and destage waits to be told. A write comes at once, and is dirty until somebody asks for it to be clean.",
        edits: &[Edit {
            file: "destage.rs",
            old: "volume.tell_from.set(if nothing { 0 } else { now + TOLD_NS });",
            new: "volume.tell_from.set(now + TOLD_NS);",
        }],
    },
    Mistake {
        name: "what was not tried passed over",
        story: "As much as a sweep has in flight fails, and the rest of its chunk, which the disk would take, has no turn.",
        edits: &[Edit {
            file: "destage.rs",
            old: "volume.swept_to.set(untried.unwrap_or(volume.swept_to.get()));",
            new: "let _ = untried;",
        }],
    },
    Mistake {
        name: "a stop that waits for what somebody wants clean",
        story: "A machine is shut down under a flush of all that is dirty: the daemon is killed when its time is over, and the next start is a cold one.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "        if cancel.wanted() || core.stopping.get() {",
            new: "        if cancel.wanted() {",
        }],
    },
    Mistake {
        name: "all of a chunk called clean at once",
        story: "A disk takes much at once, and a chunk of a sweep has a quarter of a million blocks: while they are called clean nobody has an answer.",
        edits: &[Edit {
            file: "destage.rs",
            old: "blocks.chunks(core.settings.let_go_blocks.max(1))",
            new: "blocks.chunks(usize::MAX)",
        }],
    },
];
