//! Regions in a store: opening, creating, inspecting and removing them.
//!
//! A key of region 0 maps a name to a number. All keys of the region contain that number, which is never assigned
//! twice. A region without a name gets a number too, so that tools can see it, and is removed with its process; if the
//! process could not remove it, the creation of the next such region does.
//!
//! Promises: if two processes create the same name at once, both get the same region. A partly created region cannot be
//! found. A region of another version is refused. It must never remove a region that a process may be using, unless
//! forced.

mod abandoned;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use trellis_base::fnv1a;
use trellis_store::{Applied, Change, Expect, Key, Kind, Operation, Outcome, Store};

use super::coherence::keys;
use super::end;
use super::error::StoredError;
use super::layout::{PAGE_BYTES, REGION_BASE, REGION_SPAN};
use super::record::{DirectoryRecord, Header, Root};
use super::settings::{self, Settings};
use super::synchronisation::member::{self, MemberRecord};

/// The region that holds only the directory.
const DIRECTORY: u32 = 0;
/// The directory's counter of regions.
const COUNTER: u64 = 0;
/// The bit in directory keys of regions without a name, together with the region's number.
const PRIVATE: u64 = 1 << 63;
/// The maximum number of names with the same number. A further one is refused.
const SAME_NUMBER_MAX: u64 = 4;
/// The number of keys that are removed at a time.
const REMOVE_AT_ONCE: usize = 512;
/// The number of the only member of a region without a name. Its record only identifies it.
const ONLY_MEMBER: u64 = 1;

/// A region that this process uses.
pub struct Opened {
    /// The region's store.
    pub store: Arc<dyn Store>,
    /// The region's name, or `#` and its number.
    pub name: String,
    /// The region's number.
    pub number: u32,
    /// The region's header.
    pub header: Header,
    /// This process's member number.
    pub member: u64,
    /// Whether this call created it.
    pub is_new: bool,
    /// The newest entry of its log when it was opened.
    pub seen: u64,
    /// The lease of this process.
    pub lease: Duration,
}

/// Opens the region that the settings name, or creates it. Without a name, it creates one for this process alone.
///
/// # Errors
///
/// The errors of the store, or what is wrong with the existing region.
pub fn open(store: Arc<dyn Store>, settings: &Settings) -> Result<Opened, StoredError> {
    let Some(name) = &settings.region else { return open_private(store, settings) };
    settings::check_name(name).map_err(|reason| StoredError::Argument(format!("region `{name}`: {reason}")))?;
    let found = find(&*store, name)?;
    let (number, is_new) = match found {
        Some(number) => (number, false),
        None => make(&*store, name, settings)?,
    };
    let reads = [
        Operation::Get { key: header_key(number), range: None },
        Operation::Entries { log: keys::log(number), after: u64::MAX, count: 1 },
    ];
    let outcomes = done(&*store, name, store.apply(&reads, None)?)?;
    let [Outcome::Value(header), Outcome::Entries { last, .. }] = &outcomes[..] else {
        return Err(wrong(&*store, name, "it answered something else than a header".to_owned()));
    };
    let header = read_header(&*store, name, header.as_deref())?;
    let member = member::join(&*store, number, settings.lease)?;
    let (seen, lease) = (*last, settings.lease);
    Ok(Opened { name: name.clone(), number, header, member, is_new, seen, lease, store })
}

fn open_private(store: Arc<dyn Store>, settings: &Settings) -> Result<Opened, StoredError> {
    let number = next_number(&*store)?;
    abandoned::remove(&*store, number)?;
    let (header, name) = (new_header(settings, true), private_name(number));
    let change = Change::Put(header.encode());
    let make = Operation::Change { key: header_key(number), change };
    store.apply(&[make, member::only(number, ONLY_MEMBER, settings.lease)], None)?;
    let record = DirectoryRecord { number, is_private: true, name: String::new() };
    put(&*store, Key::new(DIRECTORY, Kind::Directory, PRIVATE | u64::from(number)), record.encode())?;
    Ok(Opened { store, name, number, header, member: ONLY_MEMBER, is_new: true, seen: 0, lease: settings.lease })
}

impl Opened {
    /// Ends this process's use of the region. A region without a name is removed; `pages` are those that may be in the
    /// store, if that is known.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn leave(&self, pages: Option<&mut dyn Iterator<Item = u64>>) -> Result<(), StoredError> {
        if !self.header.is_private {
            return Ok(member::leave(&*self.store, self.number, self.member)?);
        }
        if let Some(pages) = pages {
            let mut keys = pages.map(|page| Key::page(self.number, page)).peekable();
            while keys.peek().is_some() {
                delete(&*self.store, keys.by_ref().take(REMOVE_AT_ONCE).collect())?;
            }
            let member = member::key(self.number, self.member);
            delete(&*self.store, vec![keys::log(self.number), header_key(self.number), member])?;
            for kind in [Kind::Heap, Kind::Synchronisation, Kind::Directory, Kind::Member] {
                remove_kind(&*self.store, self.number, kind)?;
            }
        } else {
            remove_keys(&*self.store, self.number)?;
        }
        delete(&*self.store, vec![Key::new(DIRECTORY, Kind::Directory, PRIVATE | u64::from(self.number))])
    }

    /// The address that is published under a name in this region.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn root(&self, name: &str) -> Result<Option<u64>, StoredError> {
        let value = self.store.get_many(&[self.root_key(name)])?.pop().flatten();
        let Some(value) = value else { return Ok(None) };
        let root =
            Root::decode(&value).ok_or_else(|| self.wrong("the record of a root object is damaged".to_owned()))?;
        if root.name != name {
            return Err(self.wrong(format!("the names `{name}` and `{}` exclude each other", root.name)));
        }
        Ok(Some(root.address))
    }

    /// The change that publishes an address under a name, unless another process has done so. The caller includes it in
    /// a release, so that a process that finds the address finds what is stored there. If it is refused,
    /// [`Opened::root`] returns the address that was published first.
    pub fn set_root(&self, name: &str, address: u64) -> Operation {
        let record = Root { name: name.to_owned(), address }.encode();
        Operation::CompareAndSwap { key: self.root_key(name), expect: Expect::Absent, change: Change::Put(record) }
    }

    fn root_key(&self, name: &str) -> Key {
        Key::new(self.number, Kind::Directory, name_number(name))
    }

    fn wrong(&self, reason: String) -> StoredError {
        wrong(&*self.store, &self.name, reason)
    }
}

/// A region in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Its name, or `#` and its number if it has none.
    pub name: String,
    /// Its number.
    pub number: u32,
    /// Its header.
    pub header: Header,
    /// The time since its creation, by this machine's clock and the creator's.
    pub age: Duration,
}

/// All information about a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// The summary, as in a list.
    pub summary: Summary,
    /// The number of pages in the store.
    pub pages: u64,
    /// The number of its releases.
    pub releases: u64,
    /// The number of keys of locks, semaphores, barriers and so on.
    pub synchronisation_keys: u64,
    /// The number of keys of the heap.
    pub heap_keys: u64,
    /// The number of redo records of releases that are being written, or were left behind.
    pub redo_records: u64,
    /// Whether a release is committed but not in the pages yet.
    pub is_pending: bool,
    /// The members. A process that was killed stays in this list until another process takes its place.
    pub members: Vec<MemberRecord>,
}

/// The regions of a store, by number.
///
/// # Errors
///
/// The errors of the store.
pub fn list(store: &dyn Store) -> Result<Vec<Summary>, StoredError> {
    let mut regions = Vec::new();
    each_number(store, DIRECTORY, Kind::Directory, 1, &mut |numbers| {
        let records = values(store, numbers.iter().map(|&number| Key::new(DIRECTORY, Kind::Directory, number)))?;
        let records: Vec<DirectoryRecord> =
            records.iter().flatten().filter_map(|record| DirectoryRecord::decode(record)).collect();
        let headers = values(store, records.iter().map(|record| header_key(record.number)))?;
        for (record, header) in records.iter().zip(headers) {
            // A region that is being removed has no header any more.
            let Some(header) = header.as_deref().and_then(Header::decode) else { continue };
            regions.push(summary(record, header));
        }
        Ok(())
    })?;
    regions.sort_by_key(|region| region.number);
    Ok(regions)
}

/// All information about a region; `None` if there is none of that name (or `#` and number).
///
/// # Errors
///
/// The errors of the store.
pub fn stat(store: &dyn Store, name: &str) -> Result<Option<Details>, StoredError> {
    let Some((_, record)) = directory_record(store, name)? else { return Ok(None) };
    let number = record.number;
    let header = values(store, std::iter::once(header_key(number)))?.pop().flatten();
    let header = read_header(store, name, header.as_deref())?;
    let reads = [
        Operation::Entries { log: keys::log(number), after: u64::MAX, count: 1 },
        Operation::Get { key: keys::pending(number), range: None },
    ];
    let outcomes = done(store, name, store.apply(&reads, None)?)?;
    let releases = if let Some(Outcome::Entries { last, .. }) = outcomes.first() { *last } else { 0 };
    let is_pending = matches!(outcomes.get(1), Some(Outcome::Value(Some(_))));
    let mut members = Vec::new();
    each_number(store, number, Kind::Member, 1, &mut |numbers| {
        let records = values(store, numbers.iter().map(|&member| member::key(number, member)))?;
        let records =
            numbers.iter().zip(&records).map(|(&member, record)| MemberRecord::read(member, record.as_deref()));
        members.extend(records.filter(|record| record.is_alive));
        Ok(())
    })?;
    Ok(Some(Details {
        summary: summary(&record, header),
        pages: count(store, number, Kind::Memory)?,
        releases,
        synchronisation_keys: count(store, number, Kind::Synchronisation)?,
        heap_keys: count(store, number, Kind::Heap)?,
        redo_records: count(store, number, Kind::Staged)?,
        is_pending,
        members,
    }))
}

/// The result of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// This many keys were removed.
    Keys(u64),
    /// There is no such region.
    Nothing,
    /// These members may be using it; nothing was removed.
    InUse(Vec<MemberRecord>),
}

/// Removes a region and everything in it. If a member may be alive, `force` is required; a member of this machine whose
/// process has ended does not count as alive.
///
/// # Errors
///
/// The errors of the store.
pub fn remove(store: &dyn Store, name: &str, force: bool) -> Result<Removed, StoredError> {
    let Some((key, record)) = directory_record(store, name)? else { return Ok(Removed::Nothing) };
    if !force && let Some(mut details) = stat(store, name)? {
        details.members.retain(|record| !end::has_ended(record.process, &record.identity));
        if !details.members.is_empty() {
            return Ok(Removed::InUse(details.members));
        }
    }
    // First, the region is made impossible to find.
    let gone = Operation::CompareAndSwap { key, expect: Expect::Value(record.encode()), change: Change::Delete };
    if !matches!(store.apply(&[gone], None)?, Applied::Done(_)) {
        return Ok(Removed::Nothing);
    }
    Ok(Removed::Keys(1 + remove_keys(store, record.number)?))
}

fn remove_keys(store: &dyn Store, number: u32) -> Result<u64, StoredError> {
    let mut removed = 0;
    for kind in Kind::ALL.into_iter().filter(|kind| !matches!(kind, Kind::Named | Kind::Header)) {
        removed += remove_kind(store, number, kind)?;
    }
    Ok(removed + remove_kind(store, number, Kind::Header)?)
}

fn remove_kind(store: &dyn Store, number: u32, kind: Kind) -> Result<u64, StoredError> {
    let mut removed = 0;
    each_number(store, number, kind, 0, &mut |numbers| {
        removed += numbers.len() as u64;
        delete(store, numbers.iter().map(|&key| Key::new(number, kind, key)).collect())
    })?;
    Ok(removed)
}

fn delete(store: &dyn Store, keys: Vec<Key>) -> Result<(), StoredError> {
    let steps: Vec<Operation> = keys.into_iter().map(|key| Operation::Change { key, change: Change::Delete }).collect();
    for part in steps.chunks(REMOVE_AT_ONCE.min(store.capabilities().operations_max)) {
        store.apply(part, None)?;
    }
    Ok(())
}

fn each_number(
    store: &dyn Store,
    region: u32,
    kind: Kind,
    from: u64,
    each: &mut dyn FnMut(&[u64]) -> Result<(), StoredError>,
) -> Result<(), StoredError> {
    let mut from = from;
    loop {
        let numbers = store.numbers(region, kind, from, REMOVE_AT_ONCE)?;
        if numbers.is_empty() {
            return Ok(());
        }
        each(&numbers)?;
        match numbers.last().and_then(|last| last.checked_add(1)) {
            Some(next) if numbers.len() == REMOVE_AT_ONCE => from = next,
            _ => return Ok(()),
        }
    }
}

fn count(store: &dyn Store, region: u32, kind: Kind) -> Result<u64, StoredError> {
    let mut sum = 0;
    each_number(store, region, kind, 0, &mut |numbers| {
        sum += numbers.len() as u64;
        Ok(())
    })?;
    Ok(sum)
}

fn values(store: &dyn Store, keys: impl Iterator<Item = Key>) -> Result<Vec<Option<Vec<u8>>>, StoredError> {
    let keys: Vec<Key> = keys.collect();
    if keys.is_empty() { Ok(Vec::new()) } else { Ok(store.get_many(&keys)?) }
}

fn summary(record: &DirectoryRecord, header: Header) -> Summary {
    let name = if record.is_private { private_name(record.number) } else { record.name.clone() };
    let age = Duration::from_millis(now_milliseconds().saturating_sub(header.made_milliseconds));
    Summary { name, number: record.number, header, age }
}

fn private_name(number: u32) -> String {
    format!("#{number}")
}

/// The directory record of a region, and its key.
fn directory_record(store: &dyn Store, name: &str) -> Result<Option<(Key, DirectoryRecord)>, StoredError> {
    let private = name.strip_prefix('#').and_then(|number| number.parse::<u32>().ok());
    if let Some(number) = private {
        let key = Key::new(DIRECTORY, Kind::Directory, PRIVATE | u64::from(number));
        let value = values(store, std::iter::once(key.clone()))?.pop().flatten();
        if let Some(record) = value.as_deref().and_then(DirectoryRecord::decode) {
            return Ok(Some((key, record)));
        }
    }
    let keys: Vec<Key> = name_keys(name).collect();
    let records = values(store, keys.iter().cloned())?;
    let found = keys.into_iter().zip(records).find_map(|(key, record)| {
        let record = DirectoryRecord::decode(&record?)?;
        (record.name == name).then_some((key, record))
    });
    Ok(found)
}

fn find(store: &dyn Store, name: &str) -> Result<Option<u32>, StoredError> {
    let records = values(store, name_keys(name))?;
    let mut records = records.iter().flatten().filter_map(|record| DirectoryRecord::decode(record));
    Ok(records.find(|record| record.name == name).map(|record| record.number))
}

/// Creates a region; if another process was faster, uses that one's.
fn make(store: &dyn Store, name: &str, settings: &Settings) -> Result<(u32, bool), StoredError> {
    let number = next_number(store)?;
    put(store, header_key(number), new_header(settings, false).encode())?;
    let record = DirectoryRecord { number, is_private: false, name: name.to_owned() }.encode();
    for key in name_keys(name) {
        let claim = Operation::CompareAndSwap { key, expect: Expect::Absent, change: Change::Put(record.clone()) };
        let refused = match store.apply(&[claim], None)? {
            Applied::Refused(refused, _) => refused,
            _ => return Ok((number, true)),
        };
        let other = refused.found.as_deref().and_then(DirectoryRecord::decode);
        if let Some(other) = other.filter(|other| other.name == name) {
            delete(store, vec![header_key(number)])?;
            return Ok((other.number, false));
        }
    }
    delete(store, vec![header_key(number)])?;
    Err(wrong(store, name, "its name has the same number as others, and there is no room for it".to_owned()))
}

fn next_number(store: &dyn Store) -> Result<u32, StoredError> {
    let key = Key::new(DIRECTORY, Kind::Directory, COUNTER);
    let next = Operation::Add { key, offset: 0, width: 4, delta: 1, bounds: Some((0, i64::from(i32::MAX))) };
    match &done(store, "(new)", store.apply(&[next], None)?)?[..] {
        [Outcome::Added(before)] => Ok(*before as u32 + 1),
        _ => Err(wrong(store, "(new)", "the counter of regions answered something else than a number".to_owned())),
    }
}

fn name_keys(name: &str) -> impl Iterator<Item = Key> + use<> {
    let first = name_number(name);
    (0..SAME_NUMBER_MAX).map(move |more| {
        // The number is never the counter's, and never that of a region without a name.
        let number = first.wrapping_add(more) & !PRIVATE;
        Key::new(DIRECTORY, Kind::Directory, number.max(1))
    })
}

/// The number of a name: FNV-1a without the highest bit, and never 0.
fn name_number(name: &str) -> u64 {
    (fnv1a(name) & !PRIVATE).max(1)
}

fn header_key(number: u32) -> Key {
    Key::new(number, Kind::Header, 0)
}

fn new_header(settings: &Settings, is_private: bool) -> Header {
    Header {
        page_bytes: PAGE_BYTES as u32,
        base: REGION_BASE as u64,
        bytes: settings.region_bytes as u64,
        is_private,
        made_milliseconds: now_milliseconds(),
        process: std::process::id(),
        heap: settings.heap.clone(),
    }
}

fn read_header(store: &dyn Store, name: &str, bytes: Option<&[u8]>) -> Result<Header, StoredError> {
    let bytes = bytes.ok_or_else(|| wrong(store, name, "it has no header; it is being removed".to_owned()))?;
    let header =
        Header::decode(bytes).ok_or_else(|| wrong(store, name, "another version of Trellis made it".to_owned()))?;
    let fits = header.page_bytes as usize == PAGE_BYTES
        && header.base == REGION_BASE as u64
        && header.bytes > 0
        && header.bytes <= REGION_SPAN as u64;
    if fits {
        return Ok(header);
    }
    Err(wrong(store, name, format!("its pages of {} bytes at {:#x} do not fit here", header.page_bytes, header.base)))
}

fn put(store: &dyn Store, key: Key, bytes: Vec<u8>) -> Result<(), StoredError> {
    store.apply(&[Operation::Change { key, change: Change::Put(bytes) }], None)?;
    Ok(())
}

fn done(store: &dyn Store, name: &str, applied: Applied) -> Result<Vec<Outcome>, StoredError> {
    match applied {
        Applied::Done(outcomes) => Ok(outcomes),
        Applied::Refused(..) => Err(wrong(store, name, "there is no number left for another region".to_owned())),
        Applied::Fenced { .. } => Err(wrong(store, name, "it was fenced without a guard".to_owned())),
    }
}

fn wrong(store: &dyn Store, name: &str, reason: String) -> StoredError {
    StoredError::Region {
        region: name.to_owned(),
        store: store.name().to_owned(),
        reason,
        next: "`trellis store ls` shows what is there, and `trellis store rm` removes a region",
    }
}

fn now_milliseconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> Arc<dyn Store> {
        trellis_store::open("embedded:").expect("it needs nothing")
    }

    fn named(name: &str) -> Settings {
        Settings { region: Some(name.to_owned()), region_bytes: 1 << 30, ..Settings::default() }
    }

    #[test]
    fn a_name_leads_everybody_to_one_region() {
        let store = store();
        let one = open(Arc::clone(&store), &named("jobs")).expect("made");
        let two = open(Arc::clone(&store), &Settings { region_bytes: 1 << 20, ..named("jobs") }).expect("opened");
        let other = open(Arc::clone(&store), &named("other")).expect("made");
        assert_eq!((one.number, one.is_new, two.is_new), (two.number, true, false));
        assert_ne!(one.number, other.number);
        assert_ne!(one.member, two.member);
        assert_eq!(two.header.bytes, 1 << 30, "the size is that of who made it");
        let names: Vec<String> = list(&*store).expect("listed").into_iter().map(|region| region.name).collect();
        assert_eq!(names, ["jobs", "other"]);
    }

    #[test]
    fn many_who_make_a_name_at_once_get_one_region() {
        let store = store();
        let numbers: Vec<u32> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| open(Arc::clone(&store), &named("jobs")).expect("opened").number))
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
        assert_eq!(list(&*store).expect("listed").len(), 1);
        let details = stat(&*store, "jobs").expect("found").expect("it is there");
        assert_eq!(details.members.len(), 8);
        let headers = (1..=20).filter(|&number| store.get_many(&[header_key(number)]).expect("readable") != [None]);
        assert_eq!(headers.count(), 1, "nothing is left of those that came too late");
    }

    #[test]
    fn a_region_without_a_name_goes_with_its_process() {
        let store = store();
        let one = open(Arc::clone(&store), &Settings::default()).expect("made");
        let two = open(Arc::clone(&store), &Settings::default()).expect("made");
        assert_ne!(one.number, two.number);
        put(&*store, Key::page(one.number, 3), vec![1]).expect("stored");
        put(&*store, Key::page(two.number, 5), vec![1]).expect("stored");
        assert_eq!(list(&*store).expect("listed").len(), 2);
        one.leave(None).expect("left");
        two.leave(Some(&mut [5].into_iter())).expect("left");
        assert_eq!(list(&*store).expect("listed"), []);
        for number in [one.number, two.number] {
            for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Named) {
                assert!(store.numbers(number, kind, 0, 9).expect("readable").is_empty(), "{kind:?} of {number}");
            }
        }
    }

    #[test]
    fn a_region_without_a_name_is_its_process_s_until_that_has_ended() {
        let store = store();
        let one = open(Arc::clone(&store), &Settings::default()).expect("made");
        let Removed::InUse(who) = remove(&*store, &one.name, false).expect("answered") else {
            panic!("it was removed")
        };
        assert_eq!((who.len(), who[0].process), (1, std::process::id()));
        assert!(matches!(remove(&*store, &one.name, true).expect("answered"), Removed::Keys(3)));

        let two = open(Arc::clone(&store), &Settings::default()).expect("made");
        // The record looks as if another process had this one's process number before.
        let earlier = member::key(two.number, two.member);
        let mut record =
            store.get_many(std::slice::from_ref(&earlier)).expect("readable").remove(0).expect("it is there");
        record.push(b'0');
        put(&*store, earlier, record).expect("stored");
        assert!(matches!(remove(&*store, &two.name, false).expect("answered"), Removed::Keys(3)));
        assert_eq!(list(&*store).expect("listed"), []);
    }

    #[test]
    fn removing_asks_who_uses_it() {
        let store = store();
        assert_eq!(remove(&*store, "jobs", false).expect("answered"), Removed::Nothing);
        let one = open(Arc::clone(&store), &named("jobs")).expect("made");
        put(&*store, Key::page(one.number, 0), vec![7; 4096]).expect("stored");
        let details = stat(&*store, "jobs").expect("found").expect("it is there");
        assert_eq!((details.pages, details.releases, details.members.len()), (1, 0, 1));
        assert!(matches!(remove(&*store, "jobs", false).expect("answered"), Removed::InUse(who) if who.len() == 1));
        one.leave(None).expect("left");
        assert!(matches!(remove(&*store, "jobs", false).expect("answered"), Removed::Keys(_)));
        assert_eq!(stat(&*store, "jobs").expect("answered"), None);
        assert!(store.numbers(one.number, Kind::Memory, 0, 9).expect("readable").is_empty());
        let again = open(Arc::clone(&store), &named("jobs")).expect("made");
        assert!(again.is_new && again.number != one.number, "a number is never given twice");
    }

    #[test]
    fn a_root_is_whose_name_came_first() {
        let store = store();
        let one = open(Arc::clone(&store), &named("jobs")).expect("made");
        assert_eq!(one.root("queue").expect("readable"), None);
        assert!(matches!(store.apply(&[one.set_root("queue", 77)], None), Ok(Applied::Done(_))));
        assert!(matches!(store.apply(&[one.set_root("queue", 78)], None), Ok(Applied::Refused(..))));
        assert_eq!(one.root("queue").expect("readable"), Some(77));
    }

    #[test]
    fn a_header_of_another_version_is_refused() {
        let store = store();
        let one = open(Arc::clone(&store), &named("jobs")).expect("made");
        put(&*store, header_key(one.number), vec![9; 40]).expect("stored");
        let Err(error) = open(Arc::clone(&store), &named("jobs")) else { panic!("it cannot be read") };
        let said = error.to_string();
        assert!(said.contains("`jobs`") && said.contains("another version") && said.contains("rm"), "{said}");
    }
}
