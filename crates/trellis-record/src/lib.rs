//! The record of a node's run: its counters, the phases that the program named, and its faults, as one JSON file for
//! each node.
//!
//! Promises: a record is written completely or not at all (a temporary file is renamed into place). Reading a record
//! returns what was written. It must never interpret a record of a later version: it is refused by its version.

pub mod advice;
mod breakdown;
mod clocks;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use trellis_output::files::{MODE, Unfinished};

pub use breakdown::Breakdown;
pub use clocks::{thread_time_ns, ticks};

/// The version of the record's format.
pub const VERSION: u32 = 3;

/// Declares the counters once: as plain numbers, and as cells that threads count in.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// How often things happened, and how long they took, since a node started.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)+ }

        /// [`Counters`] that any thread may count in at any time.
        ///
        /// The form is fixed, because a launcher and its nodes share it through memory.
        #[derive(Debug, Default)]
        #[repr(C)]
        pub struct LiveCounters { $($(#[$doc])* pub $name: AtomicU64,)+ }

        impl LiveCounters {
            /// The numbers now. Each is exact; together they are no snapshot of one moment.
            pub fn load(&self) -> Counters {
                Counters { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }
        }

        impl Counters {
            /// The names of the counters, in their order.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];

            /// Every counter with its name.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }

            /// The sum of two nodes' counters.
            #[must_use]
            pub fn plus(&self, other: &Counters) -> Counters {
                Counters { $($name: self.$name.wrapping_add(other.$name),)+ }
            }

            /// What was counted since an earlier moment.
            #[must_use]
            pub fn since(&self, earlier: &Counters) -> Counters {
                Counters { $($name: self.$name.wrapping_sub(earlier.$name),)+ }
            }
        }
    };
}

counters! {
    /// Reads of a page that was not held.
    read_faults,
    /// Writes to a page that was not held.
    write_faults,
    /// Writes to a page that was held for reading and that another node owned.
    upgrade_faults,
    /// Faults that were resolved without a message.
    local_faults,
    /// Pages that were requested before they were touched.
    prefetched_pages,
    /// Pages received.
    pages_in,
    /// Pages sent.
    pages_out,
    /// Bytes received, headers included.
    bytes_in,
    /// Bytes sent, headers included.
    bytes_out,
    /// Messages received.
    messages_in,
    /// Messages sent.
    messages_out,
    /// Copies dropped because another node writes.
    invalidations,
    /// Locks taken.
    lock_acquires,
    /// Locks taken again by their last holder, at once and without a message.
    lock_acquires_local,
    /// Barriers passed.
    barriers,
    /// Atomic operations on words.
    atomics,
    /// Time threads waited for pages of other nodes.
    fault_wait_ns,
    /// Time threads waited for locks, words and all other synchronisation objects except barriers.
    lock_wait_ns,
    /// Time threads waited in barriers.
    barrier_wait_ns,
    /// Connections refused because the peer did not know the secret.
    unauthenticated_refused,
    /// Nodes refused that know the secret: another version, another configuration, or no free place.
    nodes_refused,
    /// Datagrams refused that were damaged, forged or sent twice.
    packets_refused,
    /// Frames refused because a number in them was out of range.
    frames_refused,
    /// Writes to a page that was held for reading and that this node owned.
    upgrade_owner_faults,
    /// Answers that a page is locked.
    retries,
    /// Answers that another node may own a page.
    redirects,
    /// Datagrams received; frames, if the kernel divides them into packets.
    packets_in,
    /// Datagrams sent, including retransmissions; frames, if the kernel divides them into packets.
    packets_out,
    /// Time threads spent on the protocol itself: publishing what they stored, dropping what others changed, serving
    /// faults without another node, and in the shared heap.
    overhead_ns,
    /// Diffs sent.
    diffs_out,
    /// Diffs applied to pages.
    diffs_in,
    /// Time the service thread ran while no thread of the program waited for Trellis.
    handler_ns,
    /// Time from joining to leaving, or until now.
    program_ns,
    /// Threads of the program that synchronised, at least one: each has been running for that time.
    program_threads,
    /// Pages sent along with the token of a lock.
    pages_piggybacked_out,
    /// Pages that arrived in this way and were written into copies.
    pages_piggybacked_in,
    /// Pages evicted because memory was short (home `memory-server`).
    pages_evicted,
    /// Changed pages that were written back to their memory servers.
    pages_written_back,
    /// Pages returned because their memory server recalled the lease.
    recalls,
    /// Pages whose load asked for the right to store, because they were stored to after earlier loads.
    pages_moved_with_loads,
    /// Requests of other nodes that waited because the page had come only a moment before.
    requests_delayed,
}

impl LiveCounters {
    /// Adds to a counter. Its order relative to other memory accesses does not matter.
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}

/// Why a fault happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FaultKind {
    /// A read of a page that was not held.
    Read = 0,
    /// A write to a page that was not held.
    Write = 1,
    /// A write to a page that was held for reading and that another node owned.
    Upgrade = 2,
    /// The first touch of a page that was never written, resolved here.
    Local = 3,
    /// A write to a page that was held for reading and that this node owned.
    UpgradeOwner = 4,
}

/// One fault. In the file it is `[time_us, page, kind, wait_us_x10, thread, offset]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Numbers", try_from = "Numbers")]
pub struct FaultRecord {
    /// The time of the access since the node started.
    pub time_us: u64,
    /// The page.
    pub page: u64,
    /// The byte of the page that was touched, if it is known.
    pub offset: Option<u32>,
    /// The kind of the fault.
    pub kind: FaultKind,
    /// How long the thread waited, in tenths of a microsecond.
    pub wait_us_x10: u64,
    /// The thread of the node, numbered from 0 in the order of their first faults.
    pub thread: u64,
}

/// A fault in the file.
type Numbers = (u64, u64, u8, u64, u64, Option<u32>);

impl From<FaultRecord> for Numbers {
    fn from(fault: FaultRecord) -> Self {
        (fault.time_us, fault.page, fault.kind as u8, fault.wait_us_x10, fault.thread, fault.offset)
    }
}

impl TryFrom<Numbers> for FaultRecord {
    type Error = String;

    fn try_from((time_us, page, kind, wait_us_x10, thread, offset): Numbers) -> Result<Self, String> {
        let kind = match kind {
            0 => FaultKind::Read,
            1 => FaultKind::Write,
            2 => FaultKind::Upgrade,
            3 => FaultKind::Local,
            4 => FaultKind::UpgradeOwner,
            other => return Err(format!("{other} is not a kind of fault; accepted: 0 to 4")),
        };
        Ok(FaultRecord { time_us, page, offset, kind, wait_us_x10, thread })
    }
}

/// A part of the run that the program named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// The name that the program gave.
    pub name: String,
    /// Its start, since the node started.
    pub start_us: u64,
    /// The start of the next phase, or the end of the node.
    pub end_us: u64,
    /// The counts of this phase; the number of threads is that of the whole run.
    #[serde(default)]
    pub counters: Counters,
}

/// A part of the region that has a name: a variable, an array.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Area {
    /// The offset of its first byte in the region.
    pub first: u64,
    /// Its size in bytes; not zero.
    pub bytes: u64,
    /// The name.
    pub name: String,
}

/// Pages that a protocol treated in a way that it chose for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// The choice.
    pub choice: Choice,
    /// The first page.
    pub first: u64,
    /// The number of pages.
    pub pages: u64,
    /// How often it was done, for all these pages.
    pub times: u64,
}

/// A way to treat pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// A load brings the right to store.
    MovesWithLoad,
    /// A page stays for a while before another node gets it.
    Stays,
}

/// The record of one node, from start to end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The version of the format: [`VERSION`].
    pub version: u32,
    /// The node.
    pub node: usize,
    /// The number of nodes.
    pub nodes: usize,
    /// The program's name, without its folder.
    pub program: String,
    /// The unit of coherence.
    pub page_bytes: usize,
    /// The size of the region.
    pub region_bytes: usize,
    /// The catcher in use.
    pub catch: String,
    /// The requested link.
    pub link: String,
    /// How frames travelled to each node, by number: the name of a link, followed after a colon by the reason why no
    /// better one was used. Empty for this node and for nodes that never joined.
    #[serde(default)]
    pub ways: Vec<String>,
    /// The protocol in use.
    pub coherence: String,
    /// The home in use.
    pub home: String,
    /// When memory for the region is taken: lazy, full or overcommit.
    pub reserve: String,
    /// The protection of frames in use.
    pub security: String,
    /// The time from joining to leaving.
    pub seconds: f64,
    /// The counters.
    pub counters: Counters,
    /// The phases, in order.
    pub phases: Vec<Phase>,
    /// The parts of the region that have names, by their first bytes.
    #[serde(default)]
    pub areas: Vec<Area>,
    /// The protocol's choices for pages, by choice and page.
    #[serde(default)]
    pub choices: Vec<Chosen>,
    /// The number of faults for which there was no room in `faults`.
    pub faults_dropped: u64,
    /// The faults, in the order in which they ended.
    pub faults: Vec<FaultRecord>,
}

/// The fields that every version of the format has.
#[derive(Deserialize)]
struct Head {
    version: u32,
}

/// A record that could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The folder or the file could not be read or written.
    #[error("{}: the record cannot be {verb} ({source}); check that the folder exists and belongs to you", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// `written` or `read`.
        verb: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The text is not a record.
    #[error("{}: this is not a record of a node ({source}); give the folder that the key `record` named", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The text is a record of another version.
    #[error("{}: the record has version {found}, this program reads version {VERSION}; use the version that wrote it", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The folder contains no record.
    #[error("{}: no node-<number>.json is in this folder; run the program with TRELLIS_RECORD set to it", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
}

impl Record {
    /// The path of a node's record in a folder.
    pub fn path(folder: &Path, node: usize) -> PathBuf {
        folder.join(format!("node-{node}.json"))
    }

    /// Writes the record into a folder, which is created if need be.
    pub fn write(&self, folder: &Path) -> Result<(), RecordError> {
        let path = Record::path(folder, self.node);
        let failed = |source| RecordError::File { path: path.clone(), verb: "written", source };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let written = Unfinished::begin(&path, MODE).and_then(|unfinished| {
            self.write_to(unfinished.file())?;
            unfinished.finish()
        });
        written.map_err(failed)
    }

    fn write_to(&self, file: &File) -> std::io::Result<()> {
        let mut file = BufWriter::with_capacity(1 << 16, file);
        serde_json::to_writer(&mut file, self)?;
        file.write_all(b"\n")?;
        file.flush()
    }

    /// Reads one file.
    pub fn read(path: &Path) -> Result<Record, RecordError> {
        let failed = |source| RecordError::File { path: path.to_owned(), verb: "read", source };
        let formless = |source| RecordError::Form { path: path.to_owned(), source };
        let text = std::fs::read(path).map_err(failed)?;
        // The version is read first: the format of another version may differ in everything else.
        let head: Head = serde_json::from_slice(&text).map_err(formless)?;
        if head.version != VERSION {
            return Err(RecordError::Version { path: path.to_owned(), found: head.version });
        }
        serde_json::from_slice(&text).map_err(formless)
    }

    /// Reads the records of all nodes in a folder, in the order of the nodes.
    pub fn read_folder(folder: &Path) -> Result<Vec<Record>, RecordError> {
        let failed = |source| RecordError::File { path: folder.to_owned(), verb: "read", source };
        let mut records = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if is_record_name(&entry.file_name().to_string_lossy()) {
                records.push(Record::read(&entry.path())?);
            }
        }
        if records.is_empty() {
            return Err(RecordError::Empty { path: folder.to_owned() });
        }
        records.sort_by_key(|record| record.node);
        Ok(records)
    }
}

fn is_record_name(name: &str) -> bool {
    name.strip_prefix("node-")
        .and_then(|rest| rest.strip_suffix(".json"))
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(node: usize) -> Record {
        Record {
            version: VERSION,
            node,
            nodes: 2,
            program: "psort".to_owned(),
            page_bytes: 4096,
            region_bytes: 1 << 20,
            catch: "signal".to_owned(),
            link: "auto".to_owned(),
            ways: vec!["tcp: the two run on different hosts".to_owned(), String::new()],
            coherence: "ivy".to_owned(),
            home: "manager".to_owned(),
            reserve: "lazy".to_owned(),
            security: "plain".to_owned(),
            seconds: 1.25,
            counters: Counters { read_faults: 3, frames_refused: 1, ..Counters::default() },
            phases: vec![Phase { name: "sort".to_owned(), start_us: 1, end_us: 9, counters: Counters::default() }],
            areas: vec![Area { first: 4096, bytes: 80, name: "u".to_owned() }],
            choices: vec![Chosen { choice: Choice::Stays, first: 3, pages: 2, times: 9 }],
            faults_dropped: 0,
            faults: vec![FaultRecord {
                time_us: 5,
                page: 7,
                offset: Some(64),
                kind: FaultKind::Upgrade,
                wait_us_x10: 123,
                thread: 1,
            }],
        }
    }

    #[test]
    fn what_is_written_is_read_back_in_the_order_of_nodes() {
        let scratch = trellis_testing::Folder::new();
        let folder = scratch.path();
        example(1).write(folder).unwrap();
        example(0).write(folder).unwrap();
        std::fs::write(folder.join("node-x.json"), "not ours").unwrap();
        assert_eq!(Record::read_folder(folder).unwrap(), [example(0), example(1)]);
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 3, "no unfinished file is left");
    }

    #[test]
    fn a_fault_is_six_numbers() {
        let text = serde_json::to_string(&example(0)).unwrap();
        assert!(text.contains("\"faults\":[[5,7,2,123,1,64]]"), "{text}");
        assert!(text.contains("\"counters\":{\"read_faults\":3,"), "{text}");
        assert!(
            serde_json::from_str::<FaultRecord>("[5,7,5,123,1,null]")
                .unwrap_err()
                .to_string()
                .contains("not a kind of fault")
        );
    }

    #[test]
    fn other_versions_and_other_files_are_refused_by_name() {
        let scratch = trellis_testing::Folder::new();
        let folder = scratch.file("records");
        assert!(Record::read_folder(&folder).unwrap_err().to_string().contains("the record cannot be read"));
        std::fs::create_dir_all(&folder).unwrap();
        assert!(Record::read_folder(&folder).unwrap_err().to_string().contains("no node-<number>.json"));
        std::fs::write(Record::path(&folder, 0), "{}").unwrap();
        assert!(Record::read_folder(&folder).unwrap_err().to_string().contains("this is not a record of a node"));
        let mut later = example(0);
        later.version = VERSION + 1;
        later.write(&folder).unwrap();
        let sentence = Record::read_folder(&folder).unwrap_err().to_string();
        assert!(sentence.contains("node-0.json: the record has version 4"), "{sentence}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let scratch = trellis_testing::Folder::new();
        let folder = scratch.file("records");
        std::fs::write(&folder, "a file is in the way").unwrap();
        let sentence = example(0).write(&folder).unwrap_err().to_string();
        assert!(sentence.contains("node-0.json: the record cannot be written"), "{sentence}");
    }

    #[test]
    fn live_counters_have_the_form_of_the_plain_ones() {
        assert_eq!(size_of::<LiveCounters>(), size_of::<Counters>());
        assert_eq!(size_of::<LiveCounters>(), Counters::NAMES.len() * 8);
        let live = LiveCounters::default();
        LiveCounters::add(&live.pages_in, 2);
        LiveCounters::add(&live.pages_in, 3);
        let now = live.load();
        assert_eq!(now.entries().find(|(name, _)| *name == "pages_in"), Some(("pages_in", 5)));
        assert_eq!(now.plus(&now).pages_in, 10);
        assert_eq!(now.since(&Counters { pages_in: 1, ..Counters::default() }).pages_in, 4);
    }
}
