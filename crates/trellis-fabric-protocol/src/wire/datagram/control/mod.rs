//! Control messages: what servers and controllers tell each other about a range of pages: who is home, what a backup
//! keeps, who has leases.
//!
//! Each is a request without an answer: from an address of the process that says it, to the host that shall hear it, with
//! place zero. What is said in return (STORED, TAKEN, PLACED) is another one. Who gets none says it again.
//!
//! | command | behind the header |
//! |---|---|
//! | STORE | range, incarnation, 4 B: how many pages, 8 B: the first page, 8 B: epoch; nothing where they are zero, or all bytes of the page; several pages only under epoch 0 |
//! | STORED | range, incarnation, 4 B: how many pages, 8 B: the first page, 8 B: epoch |
//! | LEASES | range, incarnation, 4 B: entries in all, 8 B: batch, 4 B: the first of these, 4 B: how many; them |
//! | an entry of it | 8 B: page, 8 B: epoch, party: owner, 2 B: how many readers, 2 B: zero, 8 B: request, parties: readers |
//! | TAKEN | range, incarnation, 4 B: zero |
//! | REPORT | range, 2 B: boot id, 1 B: state, 1 B: settled, incarnation, 2 B: silent host, 2 B: part wanted back, 4 B: zero, 8 B: request, 8 B: call; 8 B each: pages of the range, requests answered so far, bytes that are left for backups, term, home lease |
//! | PLACED | range, 2 B: boot id, incarnation, 2 B: home, 2 B: to hand over to, 2 B: how many backups, 1 B: reset, 1 B: unserved, 2 B: how many parts, 8 B: request, 8 B: call, 8 B: pages of the range, 8 B: first page within, range that it is within, 2 B: since, 4 B: zero; 2 B for each backup; parts |
//! | a part in it | 2 B: number, 2 B: since, 4 B: pages, 8 B: first page |
//! | LOCATE | range, 6 B: zero |
//! | FOLLOW | range, 6 B: zero, 8 B: page, 8 B: for how long |
//! | FOLLOWED | range, 6 B: zero, 8 B: page, 8 B: how long its copy still lasts, 8 B: READs answered from it |
//!
//! A range has 2 bytes: the host number in its pointers, or of a part of a range ([`crate::lease::parts`]) the number that
//! it has beside those. PLACED of a part says where it was split from, that of a range which parts it has; an
//! incarnation 2; a party 2 of host and 2 of incarnation. Host 0 is none. States: 0 blank, 1 idle, 2 home, 3 handed
//! over. The pages of a range are those that clients can name; behind them STORE and STORED number those of its object
//! table ([`crate::memory_server::table_pages`]). Times are nanoseconds. Everything is little-endian.
//!
//! Reading is total; what it allocates is no longer than the datagram.

use super::{CONTROL_BYTES_MAX, HEADER_BYTES};
use crate::Nanoseconds;
use crate::lease::parts::{self, PARTS_MAX, Part, Within};
use crate::lease::{Entry, Epoch, Host, PageNumber, Party, Placement, RangeNumber, State};
use crate::wire::address::{PAGE_BYTES, PARTS_FROM};
use crate::wire::command::Command;
use alloc::vec::Vec;

/// The length of an entry of LEASES without its readers.
const ENTRY_BYTES: usize = 32;
/// The length of LEASES before its entries.
const LEASES_BYTES: usize = 24;
/// The length of STORE before the bytes of the page.
const STORE_BYTES: usize = 24;
/// The most readers in one entry; more readers of a page need several entries, one after the other.
const READERS_MAX: usize = 1024;

/// A message between servers and controllers, with its range.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ControlMessage {
    /// The range, which may be a part.
    pub range: RangeNumber,
    /// The message.
    pub what: What,
}

/// The messages between servers and controllers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum What {
    /// Home to a backup: keep this page. Its bytes follow ([`ControlMessage::data_at`]), unless they are all zero.
    Store {
        /// By the home of this incarnation.
        incarnation: u16,
        /// The number of pages; several only if they are zero.
        pages: u32,
        /// The first page.
        page: PageNumber,
        /// The epoch of the commit; 0 if the pages were never changed.
        epoch: Epoch,
    },
    /// The backup to home: this or a later one is kept.
    Stored {
        /// As in the message.
        incarnation: u16,
        /// As in the message.
        pages: u32,
        /// As in the message.
        page: PageNumber,
        /// As in the message.
        epoch: Epoch,
    },
    /// Home to the next home: a part of all leases and copies.
    Leases {
        /// Of the home of this incarnation.
        incarnation: u16,
        /// The number of this transfer: parts of several are not mixed.
        batch: u64,
        /// How many there are in all.
        total: u32,
        /// The number of the first of these.
        first: u32,
        /// The entries.
        entries: Vec<Entry>,
    },
    /// The next home to home: it has them all.
    Taken {
        /// As in the message.
        incarnation: u16,
    },
    /// A server to the controller.
    Report {
        /// The sender's number of the report.
        request: u64,
        /// The boot id of the server: a random number that it chose when it started.
        boot_id: u16,
        /// Its state.
        state: State,
        /// The last call that it heard.
        call: u64,
        /// What else the controller has to know.
        about: About,
    },
    /// The controller's answer, or its call.
    Placed {
        /// To this report; 0 unasked.
        request: u64,
        /// To this boot of the server.
        boot_id: u16,
        /// The placement.
        placement: Placement,
        /// The number of the call, if it is one.
        call: u64,
        /// The number of pages of the range; 0 if unknown.
        pages: PageNumber,
        /// For a part: where it was split from.
        within: Option<Within>,
    },
    /// Any host to the controller: which host is home?
    Locate,
    /// The controller to a server that need not have anything of the range: keep a copy of this page, and answer READs of
    /// it.
    Follow {
        /// This page.
        page: PageNumber,
        /// For how long, unless it is repeated; 0: no longer.
        lasts: Nanoseconds,
    },
    /// That server to the controller: the copy that it has. Sent in return, and when a copy came or must not be used any
    /// more.
    Followed {
        /// This page.
        page: PageNumber,
        /// How long it may still answer from its copy; 0 without one.
        left: Nanoseconds,
        /// How many READs it has answered since it has followed the page.
        answered: u64,
    },
}

/// What a server reports in a REPORT besides its state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct About {
    /// The number of pages of the range; 0 if unknown here.
    pub pages: PageNumber,
    /// How many requests about the range it has answered since it started.
    pub requests: u64,
    /// How many bytes it still offers to ranges of other homes.
    pub spare_bytes: u64,
    /// How long leases of its pages last. All servers and the controller must have the same.
    pub term: Nanoseconds,
    /// How long a home may answer after it asked. All servers and the controller must have the same.
    pub home_lease: Nanoseconds,
    /// The part of the range that its home needs merged, because an object with pages in it is to be deleted.
    pub wants_back: Option<RangeNumber>,
}

impl ControlMessage {
    /// Its command.
    pub fn command(&self) -> Command {
        match self.what {
            What::Store { .. } => Command::Store,
            What::Stored { .. } => Command::Stored,
            What::Leases { .. } => Command::Leases,
            What::Taken { .. } => Command::Taken,
            What::Report { .. } => Command::Report,
            What::Placed { .. } => Command::Placed,
            What::Locate => Command::Locate,
            What::Follow { .. } => Command::Follow,
            What::Followed { .. } => Command::Followed,
        }
    }

    /// Where in the UDP payload the bytes of the page of a STORE begin.
    pub const fn data_at() -> usize {
        HEADER_BYTES + STORE_BYTES
    }

    /// The bytes after the header, except for those of the page of a STORE.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.range.0, 2);
        match &self.what {
            What::Store { incarnation, pages, page, epoch } | What::Stored { incarnation, pages, page, epoch } => {
                put(&mut out, *incarnation, 2);
                put(&mut out, *pages, 4);
                put(&mut out, *page, 8);
                put(&mut out, *epoch, 8);
            }
            What::Leases { incarnation, batch, total, first, entries } => {
                put(&mut out, *incarnation, 2);
                put(&mut out, *total, 4);
                put(&mut out, *batch, 8);
                put(&mut out, *first, 4);
                put(&mut out, entries.len() as u32, 4);
                entries.iter().for_each(|entry| put_entry(&mut out, entry));
            }
            What::Taken { incarnation } => {
                put(&mut out, *incarnation, 2);
                put(&mut out, 0u8, 4);
            }
            What::Report { request, boot_id, state, call, about } => {
                let (number, is_settled, incarnation, silent) = match *state {
                    State::Blank => (0, false, 0, None),
                    State::Idle => (1, false, 0, None),
                    State::Home { incarnation, is_settled, silent } => (2, is_settled, incarnation, silent),
                    State::Handed(incarnation) => (3, false, incarnation, None),
                };
                put(&mut out, *boot_id, 2);
                put(&mut out, number as u8, 1);
                put(&mut out, is_settled, 1);
                put(&mut out, incarnation, 2);
                let About { pages, requests, spare_bytes, term, home_lease, wants_back } = *about;
                put(&mut out, silent.map_or(0, |host| host.0), 2);
                put(&mut out, wants_back.map_or(0, |part| part.0), 2);
                put(&mut out, 0u8, 4);
                for eight in [*request, *call, pages, requests, spare_bytes, term, home_lease] {
                    put(&mut out, eight, 8);
                }
            }
            What::Placed { request, boot_id, placement, call, pages, within } => {
                let Placement { incarnation, home, backups, hand_to, begins_empty, is_unserved, parts } = placement;
                let (range, first, since) =
                    within.map_or((0, 0, 0), |within| (within.range.0, within.first, within.since));
                for two in [*boot_id, *incarnation, home.0, hand_to.map_or(0, |host| host.0), backups.len() as u16] {
                    put(&mut out, two, 2);
                }
                put(&mut out, *begins_empty, 1);
                put(&mut out, *is_unserved, 1);
                put(&mut out, parts.len() as u16, 2);
                for eight in [*request, *call, *pages, first] {
                    put(&mut out, eight, 8);
                }
                put(&mut out, range, 2);
                put(&mut out, since, 2);
                put(&mut out, 0u8, 4);
                backups.iter().for_each(|backup| put(&mut out, backup.0, 2));
                parts.iter().for_each(|part| put_part(&mut out, part));
            }
            What::Locate => put(&mut out, 0u8, 6),
            What::Follow { page, lasts } => {
                put(&mut out, 0u8, 6);
                [*page, *lasts].into_iter().for_each(|eight| put(&mut out, eight, 8));
            }
            What::Followed { page, left, answered } => {
                put(&mut out, 0u8, 6);
                [*page, *left, *answered].into_iter().for_each(|eight| put(&mut out, eight, 8));
            }
        }
        out
    }

    /// Decodes the bytes after the header of a datagram with this command; `None` if they are invalid.
    pub fn decode(command: Command, body: &[u8]) -> Option<ControlMessage> {
        let mut rest = Rest(body);
        let range = RangeNumber::of(rest.host()?);
        let what = match command {
            Command::Store => store(&mut rest)?,
            Command::Stored => {
                let (incarnation, pages) = (rest.two()?, rest.four().filter(|pages| *pages > 0)?);
                What::Stored { incarnation, pages, page: rest.eight()?, epoch: rest.eight()? }
            }
            Command::Leases => leases(&mut rest)?,
            Command::Taken => {
                let incarnation = rest.two()?;
                rest.zero(4)?;
                What::Taken { incarnation }
            }
            Command::Report => report(&mut rest)?,
            Command::Placed => placed(range, &mut rest)?,
            Command::Locate => {
                rest.zero(6)?;
                What::Locate
            }
            Command::Follow => {
                rest.zero(6)?;
                What::Follow { page: rest.eight()?, lasts: rest.eight()? }
            }
            Command::Followed => {
                rest.zero(6)?;
                What::Followed { page: rest.eight()?, left: rest.eight()?, answered: rest.eight()? }
            }
            _ => return None,
        };
        rest.0.is_empty().then_some(ControlMessage { range, what })
    }
}

/// All leases and copies in as many parts as they need; at least one.
pub fn parts_of(incarnation: u16, batch: u64, entries: &[Entry]) -> Vec<What> {
    let mut whole = Vec::new();
    for entry in entries {
        let mut readers = entry.readers.chunks(READERS_MAX);
        let first = readers.next().unwrap_or_default().to_vec();
        whole.push(Entry { readers: first, ..entry.clone() });
        whole.extend(readers.map(|more| Entry { owner: None, readers: more.to_vec(), ..entry.clone() }));
    }
    let total = whole.len() as u32;
    let (mut parts, mut part, mut first, mut bytes) = (Vec::new(), Vec::new(), 0, LEASES_BYTES);
    for (number, entry) in whole.into_iter().enumerate() {
        let more = ENTRY_BYTES + 4 * entry.readers.len();
        if bytes + more > CONTROL_BYTES_MAX {
            let entries = core::mem::take(&mut part);
            parts.push(What::Leases { incarnation, batch, total, first, entries });
            (first, bytes) = (number as u32, LEASES_BYTES);
        }
        bytes += more;
        part.push(entry);
    }
    parts.push(What::Leases { incarnation, batch, total, first, entries: part });
    parts
}

/// Puts the parts of LEASES together. It keeps those of the last batch, and no more entries than came.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Whole {
    /// Incarnation, batch, and how many entries.
    of: Option<(u16, u64, u32)>,
    parts: Vec<(u32, Vec<Entry>)>,
}

impl Whole {
    /// Adds a part. Returns all entries if it was the last missing one.
    pub fn add(
        &mut self,
        incarnation: u16,
        batch: u64,
        total: u32,
        first: u32,
        entries: Vec<Entry>,
    ) -> Option<Vec<Entry>> {
        if entries.is_empty() && total > 0 {
            return None;
        }
        let of = (incarnation, batch, total);
        if self.of != Some(of) {
            if self.of.is_some_and(|(known, latest, _)| (known, latest) > (incarnation, batch)) {
                return None;
            }
            *self = Whole { of: Some(of), parts: Vec::new() };
        }
        let place = match self.parts.binary_search_by_key(&first, |part| part.0) {
            Ok(_) => return None,
            Err(place) => place,
        };
        self.parts.insert(place, (first, entries));
        let mut next = 0;
        for (first, entries) in &self.parts {
            if *first != next {
                return None;
            }
            next += entries.len() as u32;
        }
        if next != total {
            return None;
        }
        let mut all: Vec<Entry> = Vec::new();
        for entry in core::mem::take(&mut self.parts).into_iter().flat_map(|(_, entries)| entries) {
            match all.last_mut() {
                Some(last) if last.page == entry.page && last.epoch == entry.epoch => {
                    last.readers.extend(entry.readers)
                }
                _ => all.push(entry),
            }
        }
        Some(all)
    }
}

fn store(rest: &mut Rest<'_>) -> Option<What> {
    let (incarnation, pages) = (rest.two()?, rest.four()?);
    let (page, epoch) = (rest.eight()?, rest.eight()?);
    // The receiver takes the bytes of memory.
    let is_zero = rest.0.is_empty() && (pages == 1 || pages > 1 && epoch == 0);
    let is_whole = is_zero || pages == 1 && rest.0.len() as u64 == PAGE_BYTES;
    rest.0 = &[];
    is_whole.then_some(What::Store { incarnation, pages, page, epoch })
}

fn leases(rest: &mut Rest<'_>) -> Option<What> {
    let incarnation = rest.two()?;
    let (total, batch, first, count) = (rest.four()?, rest.eight()?, rest.four()?, rest.four()?);
    if first.checked_add(count)? > total || count as usize > rest.0.len() / ENTRY_BYTES {
        return None;
    }
    let mut entries = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (page, epoch) = (rest.eight()?, rest.eight()?);
        let (host, of, readers) = (rest.two()?, rest.two()?, rest.two()?);
        rest.zero(2)?;
        let request = rest.eight()?;
        let owner = (host != 0).then_some((Party { host: Host(host), incarnation: of }, request));
        let is_none = host != 0 || of == 0 && request == 0;
        if !is_none || usize::from(readers) > rest.0.len() / 4 {
            return None;
        }
        let readers = (0..readers).map(|_| Some(Party { host: rest.host()?, incarnation: rest.two()? }));
        let readers = readers.collect::<Option<Vec<Party>>>()?;
        entries.push(Entry { page, epoch, owner, readers });
    }
    Some(What::Leases { incarnation, batch, total, first, entries })
}

fn report(rest: &mut Rest<'_>) -> Option<What> {
    let boot_id = rest.two()?;
    let [state, settled] = rest.two()?.to_le_bytes();
    let (incarnation, silent, wants_back) = (rest.two()?, rest.two()?, rest.two()?);
    rest.zero(4)?;
    let wants_back = (wants_back != 0).then_some(RangeNumber(wants_back));
    if wants_back.is_some_and(|part| !part.is_part()) {
        return None;
    }
    let (request, call) = (rest.eight()?, rest.eight()?);
    let (pages, requests, spare_bytes) = (rest.eight()?, rest.eight()?, rest.eight()?);
    let (term, home_lease) = (rest.eight()?, rest.eight()?);
    let about = About { pages, requests, spare_bytes, term, home_lease, wants_back };
    let state = match (state, settled, incarnation, silent) {
        (0, 0, 0, 0) => State::Blank,
        (1, 0, 0, 0) => State::Idle,
        (2, 0 | 1, ..) => {
            State::Home { incarnation, is_settled: settled == 1, silent: (silent != 0).then_some(Host(silent)) }
        }
        (3, 0, _, 0) => State::Handed(incarnation),
        _ => return None,
    };
    Some(What::Report { request, boot_id, state, call, about })
}

fn placed(range: RangeNumber, rest: &mut Rest<'_>) -> Option<What> {
    let (boot_id, incarnation, home) = (rest.two()?, rest.two()?, rest.host()?);
    let (hand_to, count) = (rest.two()?, rest.two()?);
    let [begins_empty, is_unserved] = rest.two()?.to_le_bytes();
    let count_of_parts = usize::from(rest.two()?);
    if begins_empty > 1 || is_unserved > 1 {
        return None;
    }
    let (request, call, pages, first) = (rest.eight()?, rest.eight()?, rest.eight()?, rest.eight()?);
    let (of, since) = (rest.two()?, rest.two()?);
    rest.zero(4)?;
    // A part is within a range, and has none itself.
    let within = (of != 0).then_some(Within { range: RangeNumber(of), first, since });
    let is_in_place = match within {
        Some(within) => (1..PARTS_FROM).contains(&within.range.0) && since > 0 && count_of_parts == 0,
        None => first == 0 && since == 0,
    };
    if range.is_part() != within.is_some() || !is_in_place {
        return None;
    }
    if count_of_parts > PARTS_MAX || usize::from(count) > rest.0.len() / 2 {
        return None;
    }
    let backups = (0..count).map(|_| rest.host()).collect::<Option<Vec<Host>>>()?;
    let parts = (0..count_of_parts).map(|_| part(rest)).collect::<Option<Vec<Part>>>()?;
    let is_inside = pages == 0 || parts.last().is_none_or(|last| last.end() <= pages);
    if !parts::are_parts(&parts) || !is_inside {
        return None;
    }
    let hand_to = (hand_to != 0).then_some(Host(hand_to));
    let (begins_empty, is_unserved) = (begins_empty == 1, is_unserved == 1);
    let placement = Placement { incarnation, home, backups, hand_to, begins_empty, is_unserved, parts };
    Some(What::Placed { request, boot_id, placement, call, pages, within })
}

fn part(rest: &mut Rest<'_>) -> Option<Part> {
    let (number, since) = (rest.two()?, rest.two()?);
    Some(Part { number: RangeNumber(number), pages: rest.four()?.into(), first: rest.eight()?, since })
}

fn put_part(out: &mut Vec<u8>, part: &Part) {
    put(out, part.number.0, 2);
    put(out, part.since, 2);
    put(out, part.pages, 4);
    put(out, part.first, 8);
}

/// The lowest `bytes` bytes of a number.
fn put(out: &mut Vec<u8>, number: impl Into<u64>, bytes: usize) {
    out.extend_from_slice(&number.into().to_le_bytes()[..bytes]);
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    let (owner, request) = entry.owner.unwrap_or((Party::of(Host(0)), 0));
    put(out, entry.page, 8);
    put(out, entry.epoch, 8);
    for two in [owner.host.0, owner.incarnation, entry.readers.len() as u16, 0] {
        put(out, two, 2);
    }
    put(out, request, 8);
    for reader in &entry.readers {
        put(out, reader.host.0, 2);
        put(out, reader.incarnation, 2);
    }
}

/// The bytes that were not read yet.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const BYTES: usize>(&mut self) -> Option<[u8; BYTES]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn two(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    /// One machine.
    fn host(&mut self) -> Option<Host> {
        self.two().map(Host).filter(|host| host.is_one())
    }

    fn four(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn eight(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn zero(&mut self, bytes: usize) -> Option<()> {
        let (zeros, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        zeros.iter().all(|byte| *byte == 0).then_some(())
    }
}

#[cfg(test)]
mod tests;
