//! A faulty network for tests and experiments: it loses, duplicates, delays, reorders and changes datagrams.
//!
//! Promises: the same seed and the same datagrams at the same times have the same outcome. The number of datagrams that
//! are held back is bounded.
//!
//! It must never read a clock, a socket or a source of random numbers, so that a simulator can use it unchanged.
//!
//! It stands between the udp link and its socket ([`crate::UdpOptions::faults`]), on the sending side, so that the
//! recovery of the link is tested.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use trellis_base::Random;

use crate::links::udp::delivery::Nanoseconds;

/// The maximum number of datagrams held back at one time; one more is lost.
pub const HELD_MAX: usize = 1024;
/// Bounds of reordering: the number of datagrams that overtake one, and the time for which it is held back.
const OVERTAKEN_MAX: u64 = 4;
const OVERTAKEN_NS_MAX: Nanoseconds = 3_000_000;
const MILLION: u32 = 1_000_000;

/// The faults of a network. Shares are in parts per million. As text: `drop=10%,duplicate=5%,reorder=5%,seed=7`, and
/// optionally `corrupt=1%`, `delay=2ms` and `partition=100ms/2s`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The share that is lost.
    pub drop_ppm: u32,
    /// The share that is sent twice.
    pub duplicate_ppm: u32,
    /// The share that is held back until up to four later ones were sent.
    pub reorder_ppm: u32,
    /// The share in which one bit is flipped.
    pub corrupt_ppm: u32,
    /// The longest random time by which each datagram is delayed.
    pub delay_max: Duration,
    /// Nothing passes during the first of the two times in each period of the length of the second.
    pub partition: Option<(Duration, Duration)>,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl fmt::Display for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = [
            ("drop", self.drop_ppm),
            ("duplicate", self.duplicate_ppm),
            ("reorder", self.reorder_ppm),
            ("corrupt", self.corrupt_ppm),
        ];
        for (name, ppm) in shares.into_iter().filter(|(_, ppm)| *ppm > 0) {
            write!(formatter, "{name}={}%,", f64::from(ppm) / 10_000.0)?;
        }
        if !self.delay_max.is_zero() {
            write!(formatter, "delay={}us,", self.delay_max.as_micros())?;
        }
        if let Some((length, every)) = self.partition {
            write!(formatter, "partition={}us/{}us,", length.as_micros(), every.as_micros())?;
        }
        write!(formatter, "seed={}", self.seed)
    }
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut faults = Faults::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("`{part}` sets nothing; write it as `drop=10%`"))?;
            match name.trim() {
                "drop" => faults.drop_ppm = share(value)?,
                "duplicate" => faults.duplicate_ppm = share(value)?,
                "reorder" => faults.reorder_ppm = share(value)?,
                "corrupt" => faults.corrupt_ppm = share(value)?,
                "delay" => faults.delay_max = duration(value)?,
                "partition" => faults.partition = Some(partition(value)?),
                "seed" => {
                    faults.seed = value.trim().parse().map_err(|_| format!("`{value}` is not a seed; use a number"))?
                }
                other => {
                    return Err(format!(
                        "`{other}` is no fault; use drop, duplicate, reorder, corrupt, delay, partition or seed"
                    ));
                }
            }
        }
        Ok(faults)
    }
}

fn share(text: &str) -> Result<u32, String> {
    let wrong = || format!("`{text}` is not a share; use one from 0% to 100%");
    let percent: f64 = text.trim().strip_suffix('%').ok_or_else(wrong)?.trim().parse().map_err(|_| wrong())?;
    if (0.0..=100.0).contains(&percent) { Ok((percent * 10_000.0).round() as u32) } else { Err(wrong()) }
}

fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    for (unit, microseconds) in [("us", 1), ("ms", 1_000), ("s", 1_000_000)] {
        if let Some(Ok(count)) = text.strip_suffix(unit).map(|count| count.trim().parse::<u32>()) {
            return Ok(Duration::from_micros(u64::from(count) * microseconds));
        }
    }
    Err(format!("`{text}` is no time; use a whole number with us, ms or s behind it"))
}

fn partition(text: &str) -> Result<(Duration, Duration), String> {
    let wrong = || format!("`{text}` is no partition; use two times as in 100ms/2s, the first one shorter");
    let (length, every) = text.split_once('/').ok_or_else(wrong)?;
    let (length, every) = (duration(length)?, duration(every)?);
    if length < every { Ok((length, every)) } else { Err(wrong()) }
}

/// One direction through the faulty network.
#[derive(Debug)]
pub struct Faulty {
    faults: Faults,
    random: Random,
    begun: Option<Nanoseconds>,
    passed: u64,
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    due: Nanoseconds,
    /// The number of datagrams after which it is also sent.
    after: u64,
    bytes: Vec<u8>,
}

impl Faulty {
    /// `way` distinguishes the directions of one network.
    pub fn new(faults: Faults, way: u64) -> Faulty {
        let random = Random::new(faults.seed ^ way.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        Faulty { faults, random, begun: None, passed: 0, held: Vec::new() }
    }

    /// Sends a datagram into the network; `out` gets what leaves it now.
    pub fn pass(&mut self, now: Nanoseconds, datagram: &[u8], out: &mut impl FnMut(&[u8])) {
        self.passed += 1;
        self.pass_one(now, datagram, out);
        if self.happens(self.faults.duplicate_ppm) {
            self.pass_one(now, datagram, out);
        }
        self.release(now, out);
    }

    /// Sends the datagrams that were held back and are due now.
    pub fn release(&mut self, now: Nanoseconds, out: &mut impl FnMut(&[u8])) {
        let passed = self.passed;
        let mut at = 0;
        while at < self.held.len() {
            if self.held[at].due <= now || self.held[at].after <= passed {
                out(&self.held.remove(at).bytes);
            } else {
                at += 1;
            }
        }
    }

    /// When [`Self::release`] has something to do.
    pub fn due(&self) -> Option<Nanoseconds> {
        self.held.iter().map(|held| held.due).min()
    }

    fn pass_one(&mut self, now: Nanoseconds, datagram: &[u8], out: &mut impl FnMut(&[u8])) {
        // Every number is drawn in every case, so that one more fault does not change all the others.
        let (drop, corrupt) = (self.happens(self.faults.drop_ppm), self.happens(self.faults.corrupt_ppm));
        let (reorder, number) = (self.happens(self.faults.reorder_ppm), self.random.draw());
        if drop || self.is_partitioned(now) {
            return;
        }
        let mut bytes = Vec::new();
        if corrupt && !datagram.is_empty() {
            bytes.extend_from_slice(datagram);
            let bit = number % (datagram.len() as u64 * 8);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        let late_ns = match self.faults.delay_max.as_nanos() as u64 {
            0 => 0,
            max => number % (max + 1),
        };
        if reorder || late_ns > 0 {
            let after = if reorder { self.passed + 1 + number % OVERTAKEN_MAX } else { u64::MAX };
            let due = now + if reorder { OVERTAKEN_NS_MAX.max(late_ns) } else { late_ns };
            if bytes.is_empty() {
                bytes.extend_from_slice(datagram);
            }
            if self.held.len() < HELD_MAX {
                self.held.push(Held { due, after, bytes });
            }
            return;
        }
        out(if bytes.is_empty() { datagram } else { &bytes });
    }

    fn is_partitioned(&mut self, now: Nanoseconds) -> bool {
        let begun = *self.begun.get_or_insert(now);
        self.faults.partition.is_some_and(|(length, every)| {
            let into = u128::from(now.saturating_sub(begun)) % every.as_nanos().max(1);
            into < length.as_nanos()
        })
    }

    fn happens(&mut self, ppm: u32) -> bool {
        (self.random.draw() % u64::from(MILLION)) < u64::from(ppm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Faults {
        text.parse().unwrap()
    }

    #[test]
    fn faults_are_read_as_they_are_written_and_wrong_ones_say_what_to_write() {
        let all = faults("drop=10%, duplicate=5%,reorder=0.5%,corrupt=100%,delay=2ms,partition=100ms/2s,seed=7");
        assert_eq!((all.drop_ppm, all.duplicate_ppm, all.reorder_ppm), (100_000, 50_000, 5_000));
        assert_eq!((all.corrupt_ppm, all.delay_max, all.seed), (1_000_000, Duration::from_millis(2), 7));
        assert_eq!(all.partition, Some((Duration::from_millis(100), Duration::from_secs(2))));
        assert_eq!(faults(&all.to_string()), all);
        assert_eq!(faults(""), Faults::default());
        for wrong in ["drop", "drop=10", "drop=101%", "drop=-1%", "fog=1%", "delay=2", "partition=2s/1s", "seed=x"] {
            let sentence = wrong.parse::<Faults>().unwrap_err();
            assert!(sentence.contains("use ") || sentence.contains("write "), "{sentence}");
        }
    }

    /// What leaves for 10,000 numbered datagrams, one each microsecond.
    fn run(text: &str) -> Vec<Vec<u8>> {
        let mut faulty = Faulty::new(faults(text), 1);
        let mut out = Vec::new();
        for number in 0..10_000_u64 {
            faulty.pass(number * 1_000, &number.to_le_bytes(), &mut |bytes| out.push(bytes.to_vec()));
        }
        while let Some(due) = faulty.due() {
            faulty.release(due, &mut |bytes| out.push(bytes.to_vec()));
        }
        out
    }

    #[test]
    fn each_fault_happens_as_often_as_was_said_and_the_same_again_with_the_same_seed() {
        let count = |text: &str| run(text).len();
        assert_eq!(count("seed=1"), 10_000);
        assert!((8_800..9_200).contains(&count("drop=10%,seed=1")));
        assert!((10_400..10_600).contains(&count("duplicate=5%,seed=1")));
        assert_eq!(count("drop=100%"), 0);
        let sorted = |text: &str| run(text).is_sorted_by_key(|bytes| u64::from_le_bytes(bytes[..].try_into().unwrap()));
        assert!(sorted("seed=1") && !sorted("reorder=5%,seed=1") && !sorted("delay=1ms,seed=1"));
        assert_eq!(count("reorder=5%,delay=1ms,seed=1"), 10_000, "late is not lost");
        let changed = run("corrupt=10%,seed=1");
        let changed = changed.iter().zip(0_u64..).filter(|(bytes, number)| **bytes != number.to_le_bytes()).count();
        assert!((900..1_100).contains(&changed), "{changed}");
        // Nothing passes in a tenth of each millisecond.
        assert_eq!(count("partition=100us/1ms"), 9_000);
        let text = "drop=10%,duplicate=5%,reorder=5%,corrupt=1%,delay=1ms,seed=";
        assert_eq!(run(&format!("{text}3")), run(&format!("{text}3")));
        assert_ne!(run(&format!("{text}3")), run(&format!("{text}4")));
    }

    #[test]
    fn what_is_held_back_is_bounded() {
        let mut faulty = Faulty::new(faults("delay=1s"), 0);
        for number in 0..3 * HELD_MAX as u64 {
            faulty.pass(number, &[0; 8], &mut |_| {});
        }
        assert_eq!(faulty.held.len(), HELD_MAX);
    }
}
