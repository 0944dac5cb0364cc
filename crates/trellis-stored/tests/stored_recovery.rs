//! Tests processes that share a heap in a real Redis and are killed at calls of the store: the next one finds every block
//! intact, reuses what the dead ones owned, and leaves nothing of releases that were never committed.

use std::process::{Command, Output};
use std::sync::Arc;

use trellis_store::wrap::{Failing, Fault};
use trellis_stored::coherence::Shared;
use trellis_stored::heap::{Heap, Kind, Share};
use trellis_stored::memory::{HeapMemory, Memory, Mode};
use trellis_stored::region;
use trellis_stored::settings::Settings;
use trellis_testing::{Need, redis_server::RedisServer, skip};

const URL: &str = "TRELLIS_TEST_URL";
const AT: &str = "TRELLIS_TEST_AT";
/// The number of entries in the table of blocks: an address, a number of words, and their content.
const ENTRIES: usize = 24;
/// The maximum number of words of a block.
const WORDS_MAX: u64 = 40_000;

fn settings(url: &str) -> Settings {
    Settings {
        store: url.to_owned(),
        region: Some("recovery".to_owned()),
        region_bytes: 256 << 20,
        cache_bytes_max: 1 << 20,
        ..Settings::default()
    }
}

fn word(address: u64) -> *mut u64 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

fn load(address: u64) -> u64 {
    // SAFETY: a word of a block; one thread of one process runs at a time.
    unsafe { word(address).read_volatile() }
}

fn store(address: u64, value: u64) {
    // SAFETY: as above.
    unsafe { word(address).write_volatile(value) };
}

/// What a process does that the test kills; does nothing in an ordinary run.
#[test]
#[ignore = "a role that tests start"]
fn a_role() {
    let (Ok(url), Ok(at)) = (std::env::var(URL), std::env::var(AT)) else { return };
    let at: u64 = at.parse().expect("a number");
    let fault = Fault::Kill { applied: at.is_multiple_of(2) };
    let failing = Failing::new(trellis_store::open(&url).expect("it answers"), at / 2, fault);
    let memory =
        Memory::open_in(failing.clone(), &settings(&url), Mode::Pages).unwrap_or_else(|error| panic!("{error}"));
    let region = memory.region();
    let share = Share { store: Arc::clone(&region.store), region: region.number, member: region.member };
    let over = Arc::new(HeapMemory(Arc::clone(&memory)));
    let heap = Heap::shared(memory.addresses(), Kind::Scalable, over, share).expect("a heap");
    let heap: &'static Heap = Box::leak(Box::new(heap));
    memory.set_heap(heap);
    memory.recover().expect("recovered");
    work(&memory, heap);
    memory.close().expect("closed");
    println!("calls {}", failing.calls());
}

fn work(memory: &Memory, heap: &Heap) {
    let table = match memory.region().root("table").expect("readable") {
        Some(table) => {
            memory.acquire(&[], None, None).expect("acquired");
            table
        }
        None => {
            let table = heap.calloc(ENTRIES as u64, 24).expect("there is room");
            memory.release(&[memory.region().set_root("table", table)], None).expect("released");
            table
        }
    };
    let entry = |index: usize| table + index as u64 * 24;
    for index in 0..ENTRIES {
        let (address, words, tag) = (load(entry(index)), load(entry(index) + 8), load(entry(index) + 16));
        let holds = |word: u64| load(address + word * 8) == tag ^ word;
        assert!(address == 0 || (0..words).all(holds), "block {address:#x} of {words} words lost its contents");
    }
    for round in 0..2u64 {
        for index in 0..ENTRIES {
            let (address, tag) = (load(entry(index)), load(entry(index) + 16));
            if address != 0 {
                heap.free(address).expect("it is there");
            }
            let tag = tag.wrapping_add(round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index as u64);
            let words = 1 + (tag >> 20) % if index % 6 == 0 { WORDS_MAX } else { 600 };
            let address = heap.malloc(words * 8).expect("there is room");
            (0..words).for_each(|word| store(address + word * 8, tag ^ word));
            store(entry(index), address);
            store(entry(index) + 8, words);
            store(entry(index) + 16, tag);
        }
        memory.release(&[], None).expect("released");
    }
}

fn killed_at(url: &str, at: u64) -> Output {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--ignored", "--exact", "a_role", "--nocapture", "--test-threads=1"])
        .env(URL, url)
        .env(AT, at.to_string())
        .output()
        .expect("this test can be started again")
}

#[test]
fn processes_that_are_killed_leave_nothing_behind() {
    let test = "processes_that_are_killed_leave_nothing_behind";
    if let Err(why) = trellis_memory::choose(Some(trellis_memory::Catcher::Handler), &trellis_memory::probe()) {
        return skip(test, Need::Kernel, why);
    }
    let Some(server) = RedisServer::start(test, &[]) else { return };
    let url = server.url();
    let whole = killed_at(&url, 0);
    assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));
    let looking = trellis_store::open(&url).expect("it answers");
    let (mut killed, mut staged) = (0, 0);
    // An even number kills call `at / 2` after it was done, an odd one before: in steps of 15 every seventh or eighth call,
    // by turns done and not done; TRELLIS_RECOVERY_STEP=1 takes every call both ways.
    let step = std::env::var("TRELLIS_RECOVERY_STEP").map_or(15, |step| step.parse().expect("a number of calls"));
    for at in (2..).step_by(step) {
        let output = killed_at(&url, at);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("panicked"), "killed at {at}: {said}");
        let details = region::stat(&*looking, "recovery").expect("readable").expect("it is there");
        staged += details.redo_records;
        if output.status.success() {
            break;
        }
        killed += 1;
    }
    assert!(killed > 5 && staged > 0, "{killed} were killed, and left {staged} redo records");
    let last = killed_at(&url, 0);
    assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stderr));
    let details = region::stat(&*looking, "recovery").expect("readable").expect("it is there");
    assert_eq!((details.redo_records, details.is_pending), (0, false), "nothing is left of what was not committed");
    assert_eq!(details.members, [], "nor of who was killed");
    // Four blocks of up to 313 KiB and twenty of 5 KiB are 330 pages at most; what is free was used once.
    assert!(details.pages < 2600, "{} pages for 330, after {killed} were killed", details.pages);
}
