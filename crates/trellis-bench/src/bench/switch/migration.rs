//! Migration: a range moves to another server, and then, in a second lab, the same number of pages of a range; two
//! clients read and write them continuously.
//!
//! Lost requests and wrong answers are counted, and there must be none. The time of the slowest request is a figure.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use trellis::remote::Client;
use trellis_base::Random;
use trellis_switch::switches;

use super::latency::{client_in, up};
use super::placed::Placed;
use super::served::{self, PAGE_BYTES, Pages};
use super::{Found, SwitchTask};
use trellis_command::exit::{self, Failure};

/// Memory of a range in addition to its pages.
const ROOM_BYTES: usize = 1 << 20;
/// Requests that are awaited before and after the move.
const REQUESTS: u64 = 200;

/// What moves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    Range,
    /// Only the pages, which then have a home of their own.
    Pages,
}

impl Moved {
    /// The prefix of the names of its figures.
    fn name(self) -> &'static str {
        match self {
            Moved::Range => "migration",
            Moved::Pages => "pages_migration",
        }
    }
}

pub(super) fn measure(task: &SwitchTask, found: &mut Found) -> Result<(), Failure> {
    [Moved::Range, Moved::Pages].into_iter().try_for_each(|moved| measure_one(task, moved, found))
}

fn measure_one(task: &SwitchTask, what: Moved, found: &mut Found) -> Result<(), Failure> {
    let lab = up("bench-migration", &task.switch, 3, 2, switches::REDIRECTS)?;
    let bytes = task.moved_mebibytes as usize * (1 << 20);
    let mut placed = Placed::start(&lab, bytes + ROOM_BYTES, 0)?;
    placed.serve("s1")?;
    placed.serve("s2")?;
    let [from, to] = ["s1", "s2"].map(|name| served::host(&lab, name).map(|host| host.plan().number));
    let (from, to) = (from?, to?);
    placed.wait_for(from, Some(from), 0)?;
    let home = served::prefix(lab.cluster(), from).host;
    let (mut reader, mut writer) = (client_in(&lab, "c2")?, client_in(&lab, "c3")?);
    let pages = Pages::make(&mut writer, home, bytes / PAGE_BYTES)?;
    let load = Load::new(pages);
    let seconds = std::thread::scope(|scope| {
        let reads = scope.spawn(|| load.read(&mut reader));
        let writes = scope.spawn(|| load.write(&mut writer));
        let moved = (|| {
            load.wait_for(REQUESTS)?;
            let began = Instant::now();
            match what {
                Moved::Range => {
                    placed.send(from, to)?;
                    placed.wait_for(from, Some(to), 0)?;
                }
                Moved::Pages => placed.send_pages(from, to, load.pages.numbers())?,
            }
            let seconds = began.elapsed().as_secs_f64();
            load.wait_for(REQUESTS)?;
            Ok(seconds)
        })();
        load.is_over.store(true, Ordering::Relaxed);
        let broke = |_| Failure::new(exit::FAILED, "a client thread panicked");
        reads.join().map_err(broke)?;
        writes.join().map_err(broke)?;
        moved
    })?;
    if what == Moved::Range {
        // From now on, reads go to the new place.
        placed.kill("s1");
    }
    load.compare(&mut client_in(&lab, "c2")?);
    let count = |counter: &AtomicU64| Some(counter.load(Ordering::Relaxed) as f64);
    let mut put = |figure: &str, value| found.put(&format!("{}_{figure}", what.name()), value);
    put("mebibytes", Some(f64::from(task.moved_mebibytes)));
    put("seconds", Some(seconds));
    put("requests", count(&load.requests));
    put("lost", count(&load.lost));
    put("wrong", count(&load.wrong));
    put("slowest_ms", count(&load.slowest_ns).map(|ns| ns / 1e6));
    Ok(())
}

/// Reads and writes of pages. Each page begins with its number and the number of its writes.
struct Load {
    pages: Pages,
    /// The number of writes of each page, including one that is under way.
    tried: Vec<AtomicU64>,
    /// The number of acknowledged writes of each page.
    written: Vec<AtomicU64>,
    is_over: AtomicBool,
    requests: AtomicU64,
    lost: AtomicU64,
    wrong: AtomicU64,
    slowest_ns: AtomicU64,
}

impl Load {
    fn new(pages: Pages) -> Load {
        let zeros = || (0..pages.count).map(|_| AtomicU64::new(0)).collect();
        let zero = || AtomicU64::new(0);
        let (tried, written, is_over) = (zeros(), zeros(), AtomicBool::new(false));
        let (requests, lost, wrong, slowest_ns) = (zero(), zero(), zero(), zero());
        Load { pages, tried, written, is_over, requests, lost, wrong, slowest_ns }
    }

    /// Does and times a request; returns whether it was answered.
    fn ask<E>(&self, request: impl FnOnce() -> Result<(), E>) -> bool {
        let began = Instant::now();
        let is_answered = request().is_ok();
        self.slowest_ns.fetch_max(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.lost.fetch_add(u64::from(!is_answered), Ordering::Relaxed);
        is_answered
    }

    fn read(&self, client: &mut Client) {
        let mut random = Random::new(1);
        while !self.is_over.load(Ordering::Relaxed) {
            self.read_one(client, random.index(self.pages.count));
        }
    }

    fn read_one(&self, client: &mut Client, page: usize) {
        let mut bytes = [0; PAGE_BYTES];
        let least = self.written[page].load(Ordering::SeqCst);
        if self.ask(|| client.read(self.pages.pointer(page), &mut bytes)) {
            let most = self.tried[page].load(Ordering::SeqCst);
            let is_right =
                content(&bytes).is_some_and(|(number, times)| number == page as u64 && (least..=most).contains(&times));
            self.wrong.fetch_add(u64::from(!is_right), Ordering::Relaxed);
        }
    }

    fn write(&self, client: &mut Client) {
        let mut random = Random::new(2);
        while !self.is_over.load(Ordering::Relaxed) {
            let page = random.index(self.pages.count);
            let times = self.tried[page].load(Ordering::SeqCst) + 1;
            self.tried[page].store(times, Ordering::SeqCst);
            let bytes = [(page as u64).to_le_bytes(), times.to_le_bytes()].concat();
            if self.ask(|| client.write(self.pages.pointer(page), &bytes)) {
                self.written[page].store(times, Ordering::SeqCst);
            }
        }
    }

    /// Reads all pages once more.
    fn compare(&self, client: &mut Client) {
        (0..self.pages.count).for_each(|page| self.read_one(client, page));
    }

    /// Returns when this many more requests were done.
    fn wait_for(&self, more: u64) -> Result<(), Failure> {
        let (before, deadline) = (self.requests.load(Ordering::Relaxed), Instant::now() + super::placed::TIMEOUT);
        while self.requests.load(Ordering::Relaxed) < before + more {
            if Instant::now() > deadline {
                return Err(Failure::new(exit::FAILED, format!("two clients made fewer than {more} requests")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// The number of a page and of its writes.
fn content(page: &[u8]) -> Option<(u64, u64)> {
    let number = |at: usize| page.get(at..at + 8)?.try_into().map(u64::from_le_bytes).ok();
    Some((number(0)?, number(8)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_which_it_is_and_how_often_it_was_written() {
        let page = [7_u64.to_le_bytes(), 3_u64.to_le_bytes()].concat();
        assert_eq!((content(&page), content(&page[1..])), (Some((7, 3)), None));
    }
}
