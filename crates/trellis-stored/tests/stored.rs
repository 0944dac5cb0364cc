//! Tests regions in a real Redis that several processes use: what one releases another finds, even when processes are
//! killed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use trellis_stored::coherence::Shared;
use trellis_stored::layout::{PAGE_BYTES, REGION_BASE};
use trellis_stored::memory::{Memory, Mode};
use trellis_stored::region;
use trellis_stored::settings::Settings;
use trellis_testing::{Need, redis_server::RedisServer, skip};

const ROLE: &str = "TRELLIS_TEST_ROLE";
const URL: &str = "TRELLIS_TEST_URL";
/// The number of pages to which the killed process stores.
const PAGES: usize = 300;

fn cannot(test: &str) -> bool {
    let missing = trellis_memory::choose(Some(trellis_memory::Catcher::Handler), &trellis_memory::probe()).err();
    if let Some(why) = &missing {
        skip(test, Need::Kernel, why);
    }
    missing.is_some()
}

/// Runs the function `role` below in a process of its own.
fn process(role: &str, url: &str) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--ignored", "--exact", "a_role", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(URL, url)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this test can be started again")
}

fn finish(role: &str, child: Child) {
    let output = child.wait_with_output().expect("it ends");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{role}: {}\n{said}", output.status);
}

fn open(url: &str, mode: Mode) -> Arc<Memory> {
    let settings = Settings {
        store: url.to_owned(),
        region: Some("shared".to_owned()),
        region_bytes: 64 << 20,
        cache_bytes_max: 2 << 20,
        ..Settings::default()
    };
    Memory::open(&settings, mode).unwrap_or_else(|error| panic!("{error}"))
}

fn word(index: usize) -> *mut u64 {
    std::ptr::with_exposed_provenance_mut(REGION_BASE + 8 * index)
}

fn load(index: usize) -> u64 {
    // SAFETY: a word of the region; the tests take turns.
    unsafe { word(index).read_volatile() }
}

fn store(index: usize, value: u64) {
    // SAFETY: as above.
    unsafe { word(index).write_volatile(value) };
}

/// A number without a byte that is zero: so a page is one run of changed bytes.
fn number(index: usize) -> u64 {
    (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 0x0101_0101_0101_0101
}

/// The roles of other processes of these tests; does nothing in an ordinary run.
#[test]
#[ignore = "a role that tests start"]
fn a_role() {
    let (Ok(role), Ok(url)) = (std::env::var(ROLE), std::env::var(URL)) else { return };
    match role.as_str() {
        "writer" => {
            let memory = open(&url, Mode::Pages);
            for index in 0..1 << 20 {
                store(index, number(index));
            }
            let root = memory.region().set_root("numbers", REGION_BASE as u64);
            memory.release(&[root], None).expect("released");
            memory.close().expect("closed");
        }
        "changer" => {
            let memory = open(&url, Mode::Pages);
            assert_eq!(memory.region().root("numbers").expect("readable"), Some(REGION_BASE as u64));
            memory.acquire(&[], None, None).expect("acquired");
            for index in 0..1 << 20 {
                assert_eq!(load(index), number(index), "word {index}");
                if index % 1000 == 0 {
                    store(index, 7);
                }
            }
            assert!(memory.statistics().pages.pages_evicted > 1000, "8 MiB in a cache of 2 MiB");
            memory.close().expect("closed");
        }
        "killed" => {
            let memory = open(&url, Mode::Pages);
            println!("ready");
            for round in 1.. {
                for page in 0..PAGES {
                    store(page * PAGE_BYTES / 8 + page % 500, round);
                }
                memory.release(&[], None).expect("released");
                if round == 1 {
                    println!("released");
                }
            }
        }
        other => panic!("there is no role {other}"),
    }
}

#[test]
fn what_one_process_releases_another_finds() {
    let test = "what_one_process_releases_another_finds";
    if cannot(test) {
        return;
    }
    let Some(redis) = RedisServer::start(test, &[]) else { return };
    finish("writer", process("writer", &redis.url()));
    finish("changer", process("changer", &redis.url()));
    // As words, straight from the store.
    let memory = open(&redis.url(), Mode::Words);
    let words = memory.words().expect("a mode of words");
    for index in [0, 1, 999, 1000, 1_000_000, (1 << 20) - 1] {
        let mut found = [0; 8];
        // SAFETY: a word of the region.
        unsafe { words.load(REGION_BASE + 8 * index, &mut found).expect("loaded") };
        let expected = if index % 1000 == 0 { 7 } else { number(index) };
        assert_eq!(u64::from_ne_bytes(found), expected, "word {index}");
    }
    let details = region::stat(&*memory.region().store, "shared").expect("readable").expect("it is there");
    assert_eq!((details.pages, details.members.len(), details.is_pending), (2048, 1, false));
    memory.close().expect("closed");
    let removed = region::remove(&*memory.region().store, "shared", false).expect("removed");
    assert!(matches!(removed, region::Removed::Keys(keys) if keys > 2048), "{removed:?}");
    assert!(region::list(&*memory.region().store).expect("readable").is_empty());
}

#[test]
fn a_killed_process_leaves_whole_releases() {
    let test = "a_killed_process_leaves_whole_releases";
    if cannot(test) {
        return;
    }
    let Some(redis) = RedisServer::start(test, &[]) else { return };
    let memory = open(&redis.url(), Mode::Words);
    let words = memory.words().expect("a mode of words");
    let mut least = 0;
    for (milliseconds, after) in [(3, "ready"), (17, "ready"), (40, "ready"), (90, "released")] {
        let mut child = process("killed", &redis.url());
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        while !line.contains(after) {
            line.clear();
            assert_ne!(lines.read_line(&mut line).expect("readable"), 0, "it ended early");
        }
        std::thread::sleep(Duration::from_millis(milliseconds));
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        let mut said = String::new();
        child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("readable");
        assert!(!said.contains("panicked"), "{said}");
        memory.acquire(&[], None, None).expect("acquired");
        let round = |page: usize| {
            let mut found = [0; 8];
            let index = page * PAGE_BYTES / 8 + page % 500;
            // SAFETY: a word of the region.
            unsafe { words.load(REGION_BASE + 8 * index, &mut found).expect("loaded") };
            u64::from_ne_bytes(found)
        };
        let first = round(0);
        for page in 0..PAGES {
            assert_eq!(round(page), first, "page {page} is of another release than page 0");
        }
        least = least.max(first);
    }
    assert!(least > 0, "nothing was ever released");
}
