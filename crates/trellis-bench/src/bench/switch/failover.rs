//! Failover: a server dies and a backup takes its pages over; measures how long a client that reads them continuously
//! waits.
//!
//! The clock begins when the death is known: when the controller finds that the home's right to its range has ended.
//! Before that, nobody may answer in its place, and the operator chooses how long that takes. The time includes the
//! choice of the new home among the backups, the update of the switch, and the client's path to the right answer.
//! Wrong bytes are an error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use trellis::remote::Client;
use trellis_base::Random;
use trellis_switch::lab::Lab;
use trellis_switch::switches;

use super::latency::{client_in, up};
use super::placed::{Placed, TIMEOUT};
use super::served::{self, PAGE_BYTES, Pages};
use super::{Found, SwitchTask};
use trellis_command::exit::{self, Failure};

/// Answers that are awaited before the death, and after it.
const ANSWERS: usize = 50;
/// Pages that are read.
const PAGES: usize = 64;
/// The controller's message about a range when its home's right to it has ended.
const ENDED: &str = "nothing is heard of its home";
/// Memory of a server.
const MEMORY_BYTES: usize = 2 * PAGES * PAGE_BYTES;

pub(super) fn measure(task: &SwitchTask, found: &mut Found) -> Result<(), Failure> {
    let lab = up("bench-failover", &task.switch, 2, 2, switches::REDIRECTS)?;
    let mut placed = Placed::start(&lab, MEMORY_BYTES, 1)?;
    placed.serve("s1")?;
    placed.serve("s2")?;
    let range = served::host(&lab, "s1")?.plan().number;
    placed.wait_for(range, Some(range), 1)?;
    let mut client = client_in(&lab, "c2")?;
    let pages = Pages::make(&mut client, served::prefix(lab.cluster(), range).host, PAGES)?;
    let mut gaps = Vec::new();
    for _ in 0..task.deaths {
        gaps.push(one_death(&lab, &mut placed, range, &mut client, &pages)?.as_secs_f64() * 1e3);
    }
    found.put("failover_gap_ms_p50", Some(trellis_base::statistics::quantile(&mut gaps, 0.5)));
    found.put("failover_gap_ms_max", Some(trellis_base::statistics::quantile(&mut gaps, 1.0)));
    Ok(())
}

/// The times of a client's answers.
#[derive(Default)]
struct Answered(Mutex<Vec<Instant>>);

impl Answered {
    fn came(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
    }

    fn all(&self) -> Vec<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns when this many answers have come since a moment.
    fn wait_for(&self, count: usize, since: Instant) -> Result<(), Failure> {
        let deadline = Instant::now() + TIMEOUT;
        while self.all().iter().filter(|&&at| at >= since).count() < count {
            if Instant::now() > deadline {
                let seconds = TIMEOUT.as_secs();
                return Err(Failure::new(
                    exit::FAILED,
                    format!("a client got fewer than {count} answers in {seconds} s"),
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// The home of a range dies. It is back as a backup when this returns.
fn one_death(
    lab: &Lab,
    placed: &mut Placed<'_>,
    range: u16,
    client: &mut Client,
    pages: &Pages,
) -> Result<Duration, Failure> {
    let dying = placed.home_of(range)?;
    let name = format!("range {}", served::prefix(lab.cluster(), range));
    let (answers, over) = (Answered::default(), AtomicBool::new(false));
    let gap = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let (mut random, mut room) = (Random::new(1), vec![0; PAGE_BYTES]);
            while !over.load(Ordering::Relaxed) {
                pages.read(client, random.index(pages.count), &mut room)?;
                answers.came();
            }
            Ok(())
        });
        let timed = (|| {
            answers.wait_for(ANSWERS, Instant::now())?;
            placed.kill(&dying);
            let known = placed.heard(&format!("{name}: {ENDED}"))?;
            answers.wait_for(ANSWERS, known)?;
            Ok(longest_gap(&answers.all(), known))
        })();
        over.store(true, Ordering::Relaxed);
        asking.join().unwrap_or_else(|_| Err(Failure::new(exit::FAILED, "a client thread panicked")))?;
        timed
    })?;
    placed.serve(&dying)?;
    placed.wait_for(range, None, 1)?;
    Ok(gap)
}

/// The longest time without an answer after the death was known.
fn longest_gap(answers: &[Instant], known: Instant) -> Duration {
    let before = answers.iter().copied().rfind(|&at| at < known);
    // The time before the death was known is not counted.
    let mut last = before.map_or(known, |before| before.max(known));
    let mut longest = Duration::ZERO;
    for &at in answers.iter().filter(|&&at| at >= known) {
        longest = longest.max(at - last);
        last = at;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_begins_when_the_death_is_known() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let answers = [at(1), at(2), at(20), at(21), at(25)];
        assert_eq!(longest_gap(&answers, at(15)), Duration::from_millis(5));
        assert_eq!(longest_gap(&answers, at(20)), Duration::from_millis(4));
        assert_eq!(longest_gap(&answers, at(30)), Duration::ZERO);
    }
}
