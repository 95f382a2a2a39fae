//! Marks: rare and important places of the engine, each with its story, and which of them a life has reached.
//!
//! They cost a bit that is set, and decide nothing. The simulator gathers them: what no run reaches, no run tests.

use core::cell::Cell;

macro_rules! marks {
    ($(#[doc = $story:literal] $name:ident,)+) => {
        /// A place.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Mark {
            $(#[doc = $story] $name,)+
        }

        impl Mark {
            /// All of them, in the order of the enum.
            pub const ALL: &[Mark] = &[$(Mark::$name),+];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Mark::$name => stringify!($name),)+ }
            }

            /// What it means that it was reached.
            #[must_use]
            pub fn story(self) -> &'static str {
                match self { $(Mark::$name => $story.trim_ascii_start(),)+ }
            }
        }
    };
}

marks! {
    /// A write would have waited too long for space to be won back: it goes to the disk.
    NoTurnInTime,
    /// While a write waited for its turn the mode changed, a member left or the space was taken.
    FateChangedInTheWait,
    /// A write that was to be absorbed found no segment, and goes to the disk.
    AbsorbedInVain,
    /// A write that was to be absorbed found no member, or no majority.
    AbsorbedByNobody,
    /// A bypassed write asks for forced unit access: disk and members are flushed.
    FuaPastTheCache,
    /// A member could not flush what was acknowledged, and leaves before anybody is told.
    MemberFailsAFlush,
    /// A disk flush that nobody had asked for failed over clients' writes: the next FLUSH says so, once.
    FailedFlushTold,
    /// Members left with all copies of dirty data: the next FLUSH says so, once.
    CopiesLost,
    /// A start finds as many members missing as there are copies, and does not go on by itself.
    CopiesMissing,
    /// The disk takes nothing of a chunk as far as it was tried: the sweep goes on with the rest.
    DestageGoesOnBehind,
    /// A volume has gone, and no cache device is left that could take the checkpoint behind it.
    GoneWithoutCheckpoint,
    /// A flush of the disk failed under several FLUSHes, another of which was told.
    FailedFlushToldToAll,
    /// Fragments were let go, as a volume has nearly as many as it may.
    FragmentsThinned,
    /// Closed segments wait for a flush that no client asks for: the cache devices are flushed for the next start.
    FlushedForAStart,
    /// A start reads the records' headers alone of a segment that is known to be durable.
    HeadersAlone,
    /// They end before the segment does: the rest is read whole.
    HeadersEnd,
    /// A FLUSH failed that began before a write was acknowledged which may be lost: the next one will fail as well.
    FailedFlushToldAgain,
    /// A stop ends without the flush of a disk that answers nothing.
    DiskSilentAtStop,
    /// What a cache device failed is told of when another has its number.
    PredecessorFails,
    /// A start cannot read a part of the log on the one device of those that may have it that is there.
    MissingMayHaveIt,
    /// The disk fails a write that the log could take, and takes.
    SoonerFails,
    /// A read finds no copy of dirty data where it was, and finds it where it has been moved since.
    MovedUnderARead,
    /// A new cache device is in the pool.
    MemberJoined,
    /// A new cache device fails before it is in the pool.
    NewMemberFails,
    /// A device joins under the number of one that still owed answers.
    PredecessorOwes,
    /// The epoch of a new cache device comes to nothing, and the next one is without it.
    JoinFails,
    /// Copies that a new cache device should have brought cannot be made.
    CopiesStayLacking,
    /// A cache device is removed, empty of what is dirty.
    MemberRemoved,
    /// A cache device that was to be removed stays.
    RemovalGivenUp,
    /// Another cache device fails under the epoch in which one is removed: that one stays.
    RemovalGivesWay,
    /// There is no room for what a cache device holds that is to be removed: it is destaged.
    RemovalDestages,
    /// A scrub writes damaged superblocks anew.
    ScrubRewritesSuperblocks,
    /// A scrub writes damaged intent pages anew.
    ScrubRewritesIntent,
    /// A scrub has a damaged image replaced.
    ScrubReplacesImage,
    /// The image is replaced while a scrub reads it.
    ScrubbedImageReplaced,
    /// A scrub repairs a copy from the other one.
    ScrubRepairs,
    /// A scrub lets go of damaged clean data.
    ScrubLetsGo,
    /// A scrub moves dirty data that is damaged where a part of a unit cannot be written alone.
    ScrubMoves,
    /// A scrub finds no room to move what is damaged.
    ScrubHasNoRoom,
    /// A scrub finds dirty data of which no copy is whole.
    ScrubFindsLost,
    /// What was to be preloaded was being written, or there was no room for it: it is tried again.
    PreloadWaits,
    /// Pinned data in a segment that is evicted was written to another first.
    PinnedCarriedOver,
    /// All segments that a step looked at for one to let go are pinned for the most part: the next one looks at others.
    LooksOnPastPins,
    /// There was no room to carry pinned data over: it is brought from the disk again, later.
    PinnedLetGo,
    /// Pinned data that was missing was brought from the disk.
    PinnedBroughtBack,
    /// The disk could not read a run that was to be brought: the rest of it is.
    UnreadableAround,
    /// A write waits for destage to win space.
    WriteWaitsForRoom,
    /// There is no room, and not for dirty data: destage would win none.
    WaitWouldBeHopeless,
    /// A copy is missing, and a write goes to the disk first.
    WriteThroughDegraded,
    /// A copy is missing, and a write is absorbed on the one that is left, as the settings ask for.
    AbsorbedOnOneCopy,
    /// A write past the cache waits for a record that is being appended under it.
    BypassWaitsForAppend,
    /// What is to be appended waits for a write past the cache that waits for what is being appended there.
    LetsPass,
    /// A record's data can be read nowhere, and the log says that the disk has it: what is older in the log does not count.
    UnreadableTurnsOutClean,
    /// A cache device that was being removed failed, and left before it was empty.
    LeavesBeforeItIsEmpty,
    /// The daemon ends though a disk has not kept what it was given: that is written down.
    StopsUnkept,
    /// A cache device was about to join when all others failed, and does not.
    JoinsTooLate,
    /// Without a majority a write past the cache is refused where there may be dirty data.
    BypassWithoutMajority,
    /// Of a write past the cache, what overlaps dirty data is absorbed, and the rest goes to the disk beside it.
    BypassPartlyAbsorbed,
    /// The disk fails a write past the cache that has no holes where something is dirty: it is tried with them.
    FailsUnderDirtyData,
    /// The part of a bypass that was to be absorbed could not be: an ordered overwrite instead.
    OrderedAfterAbsorbFailed,
    /// Dirty data is overwritten on the disk: the disk, its flush, the mark, the members' flush.
    OrderedOverwrite,
    /// An ordered overwrite while a sweep is under way on the volume.
    OrderedBesideDestage,
    /// An ordered overwrite of what is being called clean waits for the marks.
    OrderedWaitsForMarks,
    /// The disk failed the write of an ordered overwrite: the old data stays, dirty.
    OrderedWriteFails,
    /// The mark of an ordered overwrite could not be appended.
    OrderedWithoutMark,
    /// What is written through is not admitted, since another write there is under way.
    ThroughFillKeptOut,
    /// A stream that is written through passes the cache, which has nothing of it.
    ThroughStreamPasses,
    /// A read was answered from clean data that waits for its record.
    ServedWhileItWaits,
    /// A piece of a merged read that failed was read alone, from the same copy.
    ReadAgainAlone,
    /// A dirty piece that one copy does not have is read from the other.
    DirtyFromTwin,
    /// The copy that did not have it was written again from its twin.
    CopyRepaired,
    /// The repair of a copy failed: its member leaves.
    RepairFails,
    /// The copy that was to be repaired is no more: its device has left, or its place is another's.
    RepairTooLate,
    /// A dirty piece cannot be read from any copy.
    DirtyDamaged,
    /// A clean piece cannot be read from any copy.
    CleanDamaged,
    /// Dirty data is missing: its range fails rather than show the disk's older data.
    LostRangeFails,
    /// A damaged clean piece is let go, and the read begins again, from the disk.
    DamagedLetGo,
    /// What was read is left for others to find, who will read it without the engine.
    OthersMayFind,
    /// What is read from the disk is not admitted, since a write there is under way.
    FillKeptOut,
    /// Nobody is left to append to, or no majority: all that waits fails.
    AppendsFail,
    /// A fill that was spoiled, or a move of what is no longer there, is left out before it is appended.
    StaleNotAppended,
    /// No segment is free for what is to be appended.
    NoSegmentToOpen,
    /// The rest of a segment is too short for the next item: it is closed.
    RestTooShort,
    /// A member failed the write of a record, and leaves before it is acknowledged.
    AppendFailsOnMember,
    /// A record came to be on too few copies: all in it is appended again.
    AppendedAgain,
    /// A write overlapped a fill while that was being appended: it is not named.
    FillSpoiledInFlight,
    /// While dirty data was moved a newer write replaced it, or destage cleaned it.
    MoveOvertaken,
    /// The last segments are kept from writes and clean data.
    ReserveKept,
    /// Marks or moves take of the last segments.
    ReserveDrawnOn,
    /// Marks find no segment, and wait for a checkpoint to free one.
    MarksWaitForSpace,
    /// Marks wait while a checkpoint is about to begin.
    MarksWaitForCheckpoint,
    /// The map may not grow: nothing more is absorbed until pieces are gone.
    MapIsFull,
    /// The map is nearly full: clean pieces beside dirty ones are let go. Torture never reaches it: its maps are too large for its devices.
    MapThinned,
    /// A checkpoint is taken for the segments that it frees.
    CheckpointForSpace,
    /// What clients asked for in a segment that is evicted was written to the main queue first.
    HotCarriedOver,
    /// An open segment to which nothing was added for long is closed for want of room.
    ClosedAtRest,
    /// What little is dirty in a segment is moved, to free it.
    Compacted,
    /// Dirty data that lost a copy with a member is copied again.
    CopiesMended,
    /// All has its copies again after members have left: a checkpoint is to say so.
    MendingTold,
    /// A piece that is to be moved cannot be read, and stays where it is.
    MoveUnreadable,
    /// What is to be moved finds no segment, or nobody to append to.
    MoveWithoutSpace,
    /// A checkpoint failed, since a member left under it or a page did not fit, and is taken again.
    CheckpointRetried,
    /// A checkpoint waits for marks that are between the log and the map.
    CheckpointWaitsForMarks,
    /// A checkpoint waits for what was being appended when it began.
    CheckpointWaitsForAppends,
    /// A flush of the disk failed in this life: its regions stay marked.
    IntentKept,
    /// A member failed the write of a checkpoint's page.
    CheckpointPageFails,
    /// The image does not fit its area. No run reaches it: areas are planned for twice the blocks that there is room for.
    CheckpointTooLarge,
    /// A checkpoint makes single segments of mirrored ones in which all is clean.
    TwinReleased,
    /// A segment was emptied since the checkpoint began: its marks may not be in the image, so it stays in the table.
    EmptiedUnderCheckpoint,
    /// The disk or the log did not take a chunk of a sweep: it is left alone for a while.
    DestageStuck,
    /// A sweep passes over blocks for which a record is being appended.
    DestagePassesOver,
    /// What was being moved while the rest was found to be lost is not given up with it.
    MovedBeforeGivenUp,
    /// The disk's flush at the end of a chunk failed: all of it stays dirty.
    DestageFlushFails,
    /// A dirty piece cannot be read for destage: it stays, and is reported.
    DestageUnreadable,
    /// The segment of an image's dirty piece is gone: the piece is kept, as lost.
    LostDirtyKept,
    /// A member failed a flush of the start. Torture never reaches it: members are lost before a start or after it, and not under it.
    MemberFailsAtStart,
    /// A page of the checkpoint is not whole where it was read first.
    PageFromSecondPlace,
    /// A slot of a segment of the table is another segment's by now, or its member has left.
    TableSlotGone,
    /// One copy of a segment lacks its header: the whole copy is made again.
    HeaderMissing,
    /// A record is found behind a hole.
    HoleSteppedOver,
    /// A record that one copy holds is completed on the others.
    RecordCompleted,
    /// A record's header is whole, and data of it is on no copy: it is not taken.
    DataOnNoCopy,
    /// A copy of a segment cannot be read in one piece: what can be is.
    ReadAroundErrors,
    /// A member leaves or joins: what is to be appended waits for that.
    AppendsWaitForMembership,
    /// What a client writes to the disk has been left in a record that nobody knows of: it is overwritten in order.
    LeftBehindOverwritten,
    /// A start asks again for what it could read on no cache device.
    AsksAgainAtStart,
    /// The same of a page of the image.
    AsksAgainForPages,
    /// Headers that could not be read at a start are written anew.
    HeadersWrittenAnew,
    /// A unit of the log that could not be read at a start, and that no record takes, is written anew.
    UnitWrittenAnew,
    /// A lost piece turns out to be clean, by a mark in the log.
    LostTurnsOutClean,
    /// Clean data where the disk may be newer is dropped at a start.
    UnprovedDropped,
    /// A volume that is not served goes, with all that the cache has of it.
    Abandoned,
    /// What is let go of is more than is let go of at once.
    LetGoInTurns,
    /// A chunk of a sweep is called clean in several turns, as it has many blocks.
    CleanInTurns,
    /// A start has gone on without a disk that answers nothing.
    DiskSilentAtStart,
    /// A checkpoint has gone on without the flush of a disk that answers nothing.
    DiskSilentAtCheckpoint,
    /// As many members are gone as there are copies, and there may be dirty data: the volume is refused.
    UncertainVolume,
    /// There is no space for marks, and none to be won: what of the image is not known cannot be read.
    MarksHaveNoSpace,
    /// A command was cancelled while it waited for something that may take for ever.
    CancelledInAWait,
    /// A superblock says that a flush of a disk failed, or that a client was told.
    DoubtsWritten,
    /// A flush of the disk failed in a life before this one, and intent bits stay for it.
    DoubtedFromBefore,
    /// The disk is not what clean data says. Torture never reaches it: nothing there changes the disk behind the pool.
    DiskIsAnother,
    /// The newest page of the intent map is on some members alone.
    IntentOnSomeMembers,
    /// Two members have different pages of the intent map with one number, of two lives: what either says counts.
    IntentPagesDiffer,
    /// No whole copy of an intent page is to be had: all its bits count as set.
    IntentNowhere,
    /// On every member a slot of an intent page is damaged, in which a newer page may have been: all its bits count as set.
    IntentMayBeNewer,
    /// A member fails while membership is changing already.
    FailsDuringChange,
    /// A superblock waits for another one to be written.
    SuperblockWaits,
    /// A member failed the write or the flush of a superblock.
    SuperblockFails,
    /// No majority can come of an epoch: no member writes it down.
    HopelessEpoch,
    /// Membership changes, by a new epoch.
    EpochRaised,
    /// A member fails the superblock of a new epoch: another epoch follows.
    FailsUnderEpoch,
    /// An epoch was raised without a majority: nothing that needs the cache is acknowledged any more.
    NoMajority,
    /// All members that were left fail, and something may be dirty on them: none is voted out, and the pool stalls.
    AllFail,
    /// A witness that could not be written was told later of what had been agreed on.
    WitnessToldLater,
    /// The last member left: volumes are served by their disks alone. Torture never reaches it, as it leaves every pool a member.
    LastMemberLeft,
    /// Members that are missing at a start leave before anything is answered.
    LeftAtStart,
    /// Clean pieces went with the member that had them.
    LostCleanPurged,
    /// A region is to be marked, and no member is left to hold the mark. Torture never reaches it, as it leaves every pool a member.
    IntentWithoutMembers,
    /// A member failed the write of an intent page.
    IntentFailsOnMember,
    /// A volume that grows needs more intent pages than there is room for behind its own: all of them move.
    IntentPagesMove,
    /// A volume does not grow, since no member is left, or no majority.
    GrowFails,
    /// A disk flush failed while a client's write was under way.
    FlushFailedMeanwhile,
    /// A flush failed that covered acknowledged writes which are nowhere else.
    OwedFlushFails,
    /// A flush failed that covered nothing of clients'.
    FlushFails,
    /// What is written to a volume without a disk waits for room.
    DisklessWaits,
    /// It has waited for so long that it fails.
    DisklessHasNoRoom,
    /// There was too little room for all of a write to a volume without a disk: it is appended a piece at a time.
    DisklessInPieces,
    /// A mark in the log takes data of a volume without a disk back.
    DisklessZeroed,
    /// A segment of a volume without a disk was moved for the room that was out of date in it.
    DisklessCompacted,
    /// Data on one copy is not copied again while there is no more room than marks need.
    MendingWaits,
    /// A device did not answer for so long that it is given up.
    DeviceGivenUp,
    /// A silent device that alone has something dirty, of those that answer, is waited for.
    NeededIsWaitedFor,
    /// What was written went to one of several open segments, by its address.
    AppendedInBands,
    /// A request waits for a page of the image, since what it touches is not known yet.
    WaitsForTheMap,
    /// What a page of the image says is to be had from no member, and requests that need it fail.
    PageNowhere,
    /// A stop comes before all of the image is read: there is no checkpoint at its end.
    StoppedWhileLoading,
}

/// A set of marks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MarkSet([u128; 2]);

const _: () = assert!(Mark::ALL.len() <= 256);

impl MarkSet {
    /// Whether a mark is in it.
    #[must_use]
    pub fn has(self, mark: Mark) -> bool {
        self.0[mark as usize / 128] >> (mark as u32 % 128) & 1 == 1
    }

    /// Puts in what another one has.
    pub fn add(&mut self, other: MarkSet) {
        self.0.iter_mut().zip(other.0).for_each(|(bits, others)| *bits |= others);
    }

    fn put(&mut self, mark: Mark) {
        self.0[mark as usize / 128] |= 1 << (mark as u32 % 128);
    }

    /// The marks in it.
    pub fn iter(self) -> impl Iterator<Item = Mark> {
        Mark::ALL.iter().copied().filter(move |m| self.has(*m))
    }
}

/// The marks of a life.
#[derive(Default)]
pub(crate) struct Marks(Cell<MarkSet>);

impl Marks {
    pub fn set(&self, mark: Mark) {
        let mut all = self.0.get();
        all.put(mark);
        self.0.set(all);
    }

    pub fn get(&self) -> MarkSet {
        self.0.get()
    }
}
