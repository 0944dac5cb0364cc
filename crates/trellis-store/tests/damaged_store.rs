//! Tests the file of `embedded-durable`: its access rights, what is refused, and what is recovered from a damaged one.

mod conformance;

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use conformance::{add, append, entries, get, put};
use trellis_base::Random;
use trellis_store::stores::embedded_durable::EmbeddedDurable;
use trellis_store::stores::embedded_durable::rescue::{Progress, Report, backup, check, salvage};
use trellis_store::{Applied, Key, Kind, Outcome, Store, StoreError};
use trellis_testing::Folder;

const PAGE: usize = 4096;
const PAGES: u64 = 90;
const ENTRIES: u64 = 40;

/// The names in a folder, in order.
fn names(folder: &Folder) -> Vec<String> {
    let names = std::fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<String> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn refused(path: &Path) -> String {
    match EmbeddedDurable::open(path) {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => error.to_string(),
    }
}

fn quiet() -> impl FnMut(Progress) {
    |_| {}
}

#[test]
fn the_file_is_its_owners_alone() {
    let folder = Folder::in_memory();
    let file = folder.file("store");
    drop(EmbeddedDurable::open(&file).unwrap());
    assert_eq!(mode(&file), 0o600);
    assert_eq!(names(&folder), ["store"], "what it was made of is gone");
    // The rights of an older file are restricted, and nothing else about it changes.
    for wide in [0o644, 0o666, 0o640] {
        std::fs::set_permissions(&file, Permissions::from_mode(wide)).unwrap();
        drop(EmbeddedDurable::open(&file).unwrap());
        assert_eq!(mode(&file), 0o600);
    }
    std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    check(&file, &mut quiet()).unwrap();
    assert_eq!(mode(&file), 0o600, "whoever looks at it tightens it, too");
}

#[test]
fn a_file_that_is_no_store_is_refused_and_stays_as_it_is() {
    let folder = Folder::in_memory();
    for (name, content) in [("empty", &b""[..]), ("short", b"redb"), ("text", &[b'x'; 5000])] {
        let file = folder.file(name);
        std::fs::write(&file, content).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        // Whether it is whole is asked of anything.
        let _ = check(&file, &mut quiet());
        let sentence = refused(&file);
        assert_eq!(
            std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777,
            0o644,
            "{name}: nobody's rights changed"
        );
        assert!(sentence.contains("its file is not a store: it "), "{sentence}");
        assert!(sentence.contains("name a file that a store made"), "{sentence}");
        assert_eq!(std::fs::read(&file).unwrap(), content);
    }
    assert!(refused(&folder.file("empty")).contains("it is empty"));
    assert!(refused(folder.path()).contains("it is a folder"));
    assert!(refused(&folder.file("no/where")).contains("/no does not exist; make it"));
}

/// The whole content of a store, in the order of its keys: values, and logs with their entries.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct Content {
    values: BTreeMap<Key, Vec<u8>>,
    logs: BTreeMap<u64, Log>,
}

/// The first and the last number of a log, and its entries.
type Log = (u64, u64, Vec<(u64, Vec<u8>)>);

fn page(number: u64, round: u64) -> Vec<u8> {
    (0..PAGE as u64).map(|at| (number * 7 + at * 3 + at / 256 + round) as u8).collect()
}

fn keys() -> Vec<Key> {
    let pages = (0..PAGES).map(|number| Key::page(3, number));
    let control = (0..20).map(|number| Key::new(3, Kind::Heap, number));
    pages.chain(control).chain([Key::new(3, Kind::Memory, 5000)]).collect()
}

fn fill(store: &EmbeddedDurable) {
    let apply = |operations: &[trellis_store::Operation]| {
        assert!(matches!(store.apply(operations, None).unwrap(), Applied::Done(_)));
    };
    for number in 0..PAGES {
        apply(&[put(&Key::page(3, number), &page(number, 1))]);
    }
    for number in 0..20 {
        apply(&[put(&Key::new(3, Kind::Heap, number), &[number as u8; 100])]);
    }
    // Several pages of the file.
    apply(&[put(&Key::new(3, Kind::Memory, 5000), &page(9, 9).repeat(2))]);
    for entry in 0..ENTRIES {
        let log = Key::new(3, Kind::Log, entry % 2);
        apply(&[append(&log, &page(entry, 2)[..700]), add(&Key::new(3, Kind::Synchronisation, 1), 0, 8, 1)]);
    }
}

/// The last commit.
fn change(store: &EmbeddedDurable) {
    let operations = [put(&Key::page(3, 4), &page(4, 77)), put(&Key::new(3, Kind::Heap, 3), &[99; 100])];
    assert!(matches!(store.apply(&operations, None).unwrap(), Applied::Done(_)));
}

fn content(store: &EmbeddedDurable) -> Content {
    let mut content = Content::default();
    for key in keys() {
        if let Some(value) = store.get_many(std::slice::from_ref(&key)).unwrap().remove(0) {
            content.values.insert(key, value);
        }
    }
    for number in 0..2 {
        let Applied::Done(found) = store.apply(&[entries(&Key::new(3, Kind::Log, number), 0, u32::MAX)], None).unwrap()
        else {
            panic!("nothing refuses a read")
        };
        let Outcome::Entries { first, last, entries } = &found[0] else { panic!("{found:?}") };
        let entries = entries.iter().map(|entry| (entry.sequence, entry.bytes.clone())).collect();
        content.logs.insert(number, (*first, *last, entries));
    }
    assert!(matches!(store.apply(&[get(&Key::page(3, 0))], None).unwrap(), Applied::Done(_)));
    content
}

/// A file, its content, and its content before the last commit.
struct World {
    folder: Folder,
    bytes: Vec<u8>,
    now: Content,
    before: Content,
}

impl World {
    /// Closed properly, or as after the end of its process.
    fn new(is_closed: bool) -> World {
        let folder = Folder::in_memory();
        let file = folder.file("store");
        let store = EmbeddedDurable::open(&file).unwrap();
        fill(&store);
        let before = content(&store);
        change(&store);
        let now = content(&store);
        let killed = std::fs::read(&file).unwrap();
        drop(store);
        let bytes = if is_closed { std::fs::read(&file).unwrap() } else { killed };
        World { folder, bytes, now, before }
    }

    /// A copy of the file with a change.
    fn damaged(&self, change: impl Fn(&mut Vec<u8>)) -> PathBuf {
        let mut bytes = self.bytes.clone();
        change(&mut bytes);
        let file = self.folder.file("damaged");
        std::fs::write(&file, bytes).unwrap();
        file
    }

    /// What is recovered, and the report.
    fn salvaged(&self, file: &Path) -> (Report, Content) {
        let new = self.folder.file("new");
        std::fs::remove_file(&new).ok();
        let report = salvage(file, &new, &mut quiet()).unwrap();
        assert_eq!(mode(&new), 0o600);
        let content = content(&EmbeddedDurable::open(&new).unwrap());
        (report, content)
    }

    /// Checks that nothing is there that was not written, and that everything missing was reported.
    fn compare(&self, what: &str, report: &Report, left: &Content) {
        // A store that is closed makes a commit without changes.
        let changed = Key::page(3, 4);
        let is_older = report.commits_back > 0 && left.values.get(&changed) != self.now.values.get(&changed);
        let was = if is_older { &self.before } else { &self.now };
        let mut missing = 0;
        for (key, value) in &was.values {
            match left.values.get(key) {
                None => missing += 1,
                Some(found) => assert!(found == value, "{what}: {key:?} is not what was written; {report:?}"),
            }
        }
        for (log, (_, last, written)) in &was.logs {
            let (first, last_left, found) = &left.logs[log];
            assert!(found.iter().all(|entry| written.contains(entry)), "{what}: log {log}; {report:?}");
            let begins = last + 1 - found.len() as u64;
            if found.is_empty() && *last_left == 0 {
                missing += 1;
            } else {
                assert_eq!((*first, *last_left), (begins, *last), "{what}: log {log} has no gaps; {report:?}");
                missing += written.len() - found.len();
            }
        }
        assert!(report.lost_pairs >= missing as u64, "{what}: {missing} are missing; {report:?}");
        assert!(missing == 0 || report.has_losses(), "{what}: {report:?}");
    }
}

/// Every flipped bit in one page or the header is detected if the page is in use, and causes no loss.
fn one_flipped_bit(is_closed: bool) {
    let world = World::new(is_closed);
    let whole = check(&world.damaged(|_| {}), &mut quiet()).unwrap();
    assert!(whole.is_whole() && whole.commits_back == 0, "{whole:?}");
    let mut noticed = BTreeMap::new();
    for first in (PAGE..world.bytes.len()).step_by(PAGE) {
        // The first byte of a page gives its type and is always in use. The other bytes are anywhere in the page.
        for (at, bit) in [(0, 1), (2, 0), (4 + first / PAGE % 37, 5), (1000 + first / PAGE % 1000, 7)] {
            let file = world.damaged(|bytes| bytes[first + at] ^= 1 << bit);
            let report = check(&file, &mut quiet()).unwrap();
            if report.is_whole() {
                assert_eq!(report, whole, "byte {at} of the page at {first} is not in use");
                continue;
            }
            let [damage] = &report.damage[..] else { panic!("{report:?}") };
            assert_eq!(damage.mended_bit, Some(((first + at) * 8 + bit) as u64), "{report:?}");
            if at == 0 {
                noticed.insert(damage.from_byte, damage.to_byte - damage.from_byte);
                let (report, left) = world.salvaged(&file);
                assert!(!report.has_losses(), "{report:?}");
                assert_eq!(left, world.now, "the page at {first}");
            }
        }
    }
    assert_eq!(
        noticed.values().sum::<u64>(),
        whole.read_bytes,
        "every page in use was damaged once, and that was noticed"
    );
}

#[test]
fn one_flipped_bit_of_a_closed_store_takes_nothing_along() {
    one_flipped_bit(true);
}

#[test]
fn one_flipped_bit_of_a_store_whose_process_ended_takes_nothing_along() {
    one_flipped_bit(false);
}

#[test]
fn a_header_that_is_damaged_takes_at_most_the_last_commit_along() {
    let world = World::new(true);
    for at in 0..320 {
        for change in [0x01, 0x80, 0xff] {
            let file = world.damaged(|bytes| bytes[at] ^= change);
            let report = check(&file, &mut quiet()).unwrap();
            let is_used = at < 10 || (12..32).contains(&at) || (64..320).contains(&at);
            // Flags that are never set are not reported.
            assert!(report.is_whole() != is_used || at == 9, "byte {at} ^ {change:#x}: {report:?}");
            let (report, left) = world.salvaged(&file);
            world.compare(&format!("byte {at} ^ {change:#x}"), &report, &left);
            if change != 0xff {
                assert_eq!(left, world.now, "byte {at} ^ {change:#x}: {report:?}");
            }
        }
    }
}

#[test]
fn a_page_that_is_gone_takes_along_what_is_in_it_and_says_so() {
    let world = World::new(true);
    let mut with_losses = 0;
    for first in (PAGE..world.bytes.len()).step_by(PAGE) {
        let what = format!("the page at {first}");
        let file = world.damaged(|bytes| bytes[first..first + PAGE].fill(0));
        let report = check(&file, &mut quiet()).unwrap();
        if report.is_whole() {
            continue;
        }
        assert!(report.damage.iter().any(|damage| damage.from_byte <= first as u64 && first as u64 <= damage.to_byte));
        let (report, left) = world.salvaged(&file);
        world.compare(&what, &report, &left);
        with_losses += usize::from(report.has_losses());
        // A leaf was hit: the rest is there.
        let missing = world.now.values.len() - left.values.len();
        assert!(report.commits_back > 0 || missing < 60 || report.lost_pairs > 60, "{what}: {missing} of {report:?}");
    }
    assert!(with_losses as u64 > PAGES / 2, "{with_losses} pages had something");
}

#[test]
fn a_file_that_is_cut_short_or_damaged_at_random_gives_nothing_wrong() {
    let world = World::new(false);
    let mut random = Random::new(1);
    for round in 0..60 {
        let seeds: Vec<usize> = (0..64).map(|_| random.draw() as usize).collect();
        let file = world.damaged(|bytes| {
            if round % 3 == 0 {
                bytes.truncate(seeds[0] % bytes.len());
                return;
            }
            let first = seeds[1] % (bytes.len() - 300);
            let length = seeds[2] % if round % 3 == 1 { 300 } else { bytes.len() - first };
            for (at, byte) in bytes[first..first + length].iter_mut().enumerate() {
                *byte = (seeds[at % 60 + 3] >> (at % 50)) as u8;
            }
        });
        let new = world.folder.file("new");
        std::fs::remove_file(&new).ok();
        match salvage(&file, &new, &mut quiet()) {
            Ok(report) => {
                let left = content(&EmbeddedDurable::open(&new).unwrap());
                world.compare(&format!("round {round}"), &report, &left);
            }
            Err(error) => {
                assert!(matches!(error, StoreError::Protocol { .. }), "{error}");
                assert!(!new.exists(), "what could not be made is not there");
            }
        }
        // redb may refuse the file or not; the result is a message or a store.
        if let Err(error) = EmbeddedDurable::open(&file) {
            assert!(error.to_string().starts_with("store embedded-durable:"), "{error}");
        }
    }
    assert_eq!(names(&world.folder).iter().filter(|name| name.starts_with('.')).count(), 0, "nothing is left behind");
}

#[test]
fn a_damaged_store_says_which_command_helps() {
    let world = World::new(false);
    let whole = check(&world.damaged(|_| {}), &mut quiet()).unwrap();
    let refusals = (PAGE..world.bytes.len()).step_by(PAGE).filter(|first| {
        let file = world.damaged(|bytes| bytes[first + 1000] ^= 4);
        if check(&file, &mut quiet()).unwrap() == whole {
            return false;
        }
        let Err(error) = EmbeddedDurable::open(&file) else { return false };
        let sentence = error.to_string();
        assert!(matches!(error, StoreError::Damaged { .. }), "{sentence}");
        for command in ["check", "salvage", "backup"] {
            assert!(sentence.contains(&format!("`trellis store {command}")), "{sentence}");
        }
        true
    });
    assert!(refusals.count() > 0);
}

#[test]
fn a_copy_is_the_same_and_nothing_is_written_over() {
    let world = World::new(true);
    let (file, copy) = (world.folder.file("store"), world.folder.file("copy"));
    let mut steps = Vec::new();
    let report = backup(&file, &copy, &mut |progress| {
        assert!(progress.done_bytes <= progress.of_bytes, "{progress:?}");
        steps.push(progress.step);
    })
    .unwrap();
    steps.dedup();
    assert_eq!(steps, ["looking through it", "copying", "looking through the copy"]);
    assert!(report.is_whole());
    assert_eq!(mode(&copy), 0o600);
    assert_eq!(std::fs::read(&copy).unwrap(), world.bytes);
    assert_eq!(content(&EmbeddedDurable::open(&copy).unwrap()), world.now);
    for refused in [backup(&file, &copy, &mut quiet()), salvage(&file, &copy, &mut quiet())] {
        let Err(error) = refused else { panic!("a file was written over") };
        assert!(error.to_string().contains("there is a file"), "{error}");
    }
    let damaged = world.damaged(|bytes| bytes[PAGE * 20..PAGE * 60].fill(1));
    let Err(error) = backup(&damaged, &world.folder.file("other"), &mut quiet()) else { panic!("it is damaged") };
    assert!(error.to_string().contains("`trellis store salvage"), "{error}");
    assert!(!world.folder.file("other").exists());
}

#[test]
fn a_file_that_is_open_or_not_there_is_not_looked_through() {
    let folder = Folder::in_memory();
    let file = folder.file("store");
    assert!(matches!(check(&file, &mut quiet()), Err(StoreError::Missing { .. })));
    let store = EmbeddedDurable::open(&file).unwrap();
    assert!(matches!(check(&file, &mut quiet()), Err(StoreError::Denied { .. })));
    drop(store);
    assert!(check(&file, &mut quiet()).unwrap().is_whole());
    // Reading leaves the file unchanged.
    let bytes = std::fs::read(&file).unwrap();
    check(&file, &mut quiet()).unwrap();
    let mut again = vec![0; bytes.len()];
    std::fs::File::open(&file).unwrap().read_exact_at(&mut again, 0).unwrap();
    assert!(again == bytes);
}
