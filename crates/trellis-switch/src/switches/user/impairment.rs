//! Intentional faults: which packets are lost, duplicated, delayed, reordered. It must never read a clock: time is an
//! argument.
//!
//! Promises: every port has its own random numbers, derived from the seed and the port's number, so that the same seed
//! does the same to the same packets of a port, whatever other ports do meanwhile.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use trellis_base::Random;

use crate::faults::Faults;

/// The maximum time for which a packet waits for the one that is to overtake it.
const REORDERED_DELAY_MAX: Duration = Duration::from_millis(10);
/// The maximum number of waiting packets.
pub(super) const WAITING_MAX: usize = 65_536;

/// The faults of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Impairment {
    pub(super) is_lost: bool,
    pub(super) is_repeated: bool,
    pub(super) is_overtaken: bool,
    pub(super) delay: Duration,
}

/// The random numbers of all ports.
pub(super) struct Impairments {
    faults: Faults,
    of_ports: HashMap<u16, Random>,
}

impl Impairments {
    pub(super) fn new(faults: Faults) -> Impairments {
        Impairments { faults, of_ports: HashMap::new() }
    }

    /// The faults of the next packet of a port. Always uses the same number of random numbers.
    pub(super) fn next(&mut self, port: u16) -> Impairment {
        let faults = self.faults;
        let begin = faults.seed.wrapping_add(u64::from(port).wrapping_mul(0xa076_1d64_78bd_642f));
        let random = self.of_ports.entry(port).or_insert(Random::new(begin));
        let mut chance = |ppm: u32| random.draw() % 1_000_000 < u64::from(ppm);
        let (is_lost, is_repeated, is_overtaken) =
            (chance(faults.drop_ppm), chance(faults.duplicate_ppm), chance(faults.reorder_ppm));
        let jitter_ns = u64::try_from(faults.jitter.as_nanos()).unwrap_or(u64::MAX - 1);
        let extra = random.draw() % (jitter_ns + 1);
        Impairment { is_lost, is_repeated, is_overtaken, delay: faults.delay + Duration::from_nanos(extra) }
    }
}

/// A packet on its way to a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) port: u16,
    pub(super) frame: Vec<u8>,
}

/// Packets that wait until they are due, or to be overtaken.
#[derive(Default)]
pub(super) struct Waiting {
    /// Due time, and number in order of arrival.
    due: BinaryHeap<Reverse<(u64, u64)>>,
    packets: HashMap<u64, Leaving>,
    /// For each port, the packet that waits for the next one.
    overtaken: HashMap<u16, u64>,
    arrived: u64,
}

impl Waiting {
    /// Adds a packet; returns whether there was room. What can leave at once is appended to `leaving`.
    pub(super) fn push(
        &mut self,
        now_ns: u64,
        packet: Leaving,
        impairment: &Impairment,
        leaving: &mut Vec<Leaving>,
    ) -> bool {
        let delay = if impairment.is_overtaken { REORDERED_DELAY_MAX.max(impairment.delay) } else { impairment.delay };
        if self.packets.len() >= WAITING_MAX && !delay.is_zero() {
            return false;
        }
        let port = packet.port;
        let who_waited = self.overtaken.remove(&port);
        if delay.is_zero() {
            leaving.push(packet);
        } else {
            self.arrived += 1;
            self.due.push(Reverse((now_ns + delay.as_nanos() as u64, self.arrived)));
            self.packets.insert(self.arrived, packet);
        }
        match who_waited {
            // It was overtaken by a packet that has left.
            Some(number) if delay.is_zero() => leaving.extend(self.packets.remove(&number)),
            // A packet that itself waits overtakes it when it is due; both then leave, the later one first.
            Some(number) => {
                if let Some(packet) = self.packets.remove(&number) {
                    self.arrived += 1;
                    self.due.push(Reverse((now_ns + delay.as_nanos() as u64, self.arrived)));
                    self.packets.insert(self.arrived, packet);
                }
            }
            None => {}
        }
        if impairment.is_overtaken && who_waited.is_none() {
            self.overtaken.insert(port, self.arrived);
        }
        true
    }

    /// The packets that are due by now.
    pub(super) fn due(&mut self, now_ns: u64, leaving: &mut Vec<Leaving>) {
        while let Some(&Reverse((due, number))) = self.due.peek() {
            if due > now_ns {
                break;
            }
            self.due.pop();
            if let Some(packet) = self.packets.remove(&number) {
                if self.overtaken.get(&packet.port) == Some(&number) {
                    self.overtaken.remove(&packet.port);
                }
                leaving.push(packet);
            }
        }
    }

    /// The time until the next packet is due.
    pub(super) fn next_in(&self, now_ns: u64) -> Option<Duration> {
        self.due.peek().map(|Reverse((due, _))| Duration::from_nanos(due.saturating_sub(now_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Impairment =
        Impairment { is_lost: false, is_repeated: false, is_overtaken: false, delay: Duration::ZERO };

    fn packet(port: u16, number: u8) -> Leaving {
        Leaving { port, frame: vec![number] }
    }

    fn numbers(leaving: &[Leaving]) -> Vec<u8> {
        leaving.iter().map(|packet| packet.frame[0]).collect()
    }

    #[test]
    fn the_same_seed_does_the_same_whatever_other_ports_do() {
        let faults: Faults = "drop=30%,duplicate=30%,reorder=30%,delay=10us,jitter=90us,seed=7".parse().unwrap();
        let alone: Vec<Impairment> = {
            let mut impairments = Impairments::new(faults);
            (0..100).map(|_| impairments.next(3)).collect()
        };
        let mut impairments = Impairments::new(faults);
        let beside: Vec<Impairment> = (0..100)
            .map(|turn| {
                for _ in 0..turn % 3 {
                    impairments.next(4);
                }
                impairments.next(3)
            })
            .collect();
        assert_eq!(alone, beside);
        let other: Vec<Impairment> = {
            let mut impairments = Impairments::new(Faults { seed: 8, ..faults });
            (0..100).map(|_| impairments.next(3)).collect()
        };
        assert_ne!(alone, other);
        assert!(alone.iter().all(|impairment| (10_000..=100_000).contains(&impairment.delay.as_nanos())));
    }

    #[test]
    fn rates_are_what_was_asked_for() {
        let mut impairments = Impairments::new("drop=10%,duplicate=100%,seed=1".parse().unwrap());
        let random_number: Vec<Impairment> = (0..10_000).map(|_| impairments.next(1)).collect();
        let lost = random_number.iter().filter(|impairment| impairment.is_lost).count();
        // Six standard deviations around a tenth; the seed makes the result the same in every run.
        assert!((820..=1180).contains(&lost), "{lost}");
        assert!(
            random_number
                .iter()
                .all(|impairment| impairment.is_repeated && !impairment.is_overtaken && impairment.delay.is_zero())
        );
    }

    #[test]
    fn a_packet_is_overtaken_by_the_next_to_its_port() {
        let (mut waiting, mut leaving) = (Waiting::default(), Vec::new());
        let overtaken = Impairment { is_overtaken: true, ..PLAIN };
        assert!(waiting.push(0, packet(1, 1), &overtaken, &mut leaving));
        assert!(waiting.push(0, packet(2, 2), &PLAIN, &mut leaving));
        assert_eq!(numbers(&leaving), [2]);
        assert!(waiting.push(0, packet(1, 3), &PLAIN, &mut leaving));
        assert_eq!(numbers(&leaving), [2, 3, 1]);
        waiting.due(u64::MAX, &mut leaving);
        assert_eq!(numbers(&leaving), [2, 3, 1], "nobody leaves twice");
    }

    #[test]
    fn who_is_not_overtaken_leaves_alone() {
        let (mut waiting, mut leaving) = (Waiting::default(), Vec::new());
        assert!(waiting.push(5, packet(1, 1), &Impairment { is_overtaken: true, ..PLAIN }, &mut leaving));
        assert_eq!(waiting.next_in(5), Some(REORDERED_DELAY_MAX));
        waiting.due(5 + REORDERED_DELAY_MAX.as_nanos() as u64, &mut leaving);
        assert!(waiting.push(6, packet(1, 2), &PLAIN, &mut leaving));
        assert_eq!(numbers(&leaving), [1, 2]);
    }

    #[test]
    fn delays_are_kept_and_equal_ones_keep_the_order() {
        let (mut waiting, mut leaving) = (Waiting::default(), Vec::new());
        for (number, delay) in [(1, 300), (2, 100), (3, 100)] {
            let impairment = Impairment { delay: Duration::from_nanos(delay), ..PLAIN };
            assert!(waiting.push(0, packet(1, number), &impairment, &mut leaving));
        }
        waiting.due(99, &mut leaving);
        assert!(leaving.is_empty());
        waiting.due(100, &mut leaving);
        assert_eq!(numbers(&leaving), [2, 3]);
        assert_eq!(waiting.next_in(100), Some(Duration::from_nanos(200)));
        waiting.due(300, &mut leaving);
        assert_eq!((numbers(&leaving), waiting.next_in(300)), (vec![2, 3, 1], None));
    }

    #[test]
    fn two_that_wait_are_exchanged() {
        let (mut waiting, mut leaving) = (Waiting::default(), Vec::new());
        let late = Impairment { delay: Duration::from_nanos(50), ..PLAIN };
        assert!(waiting.push(0, packet(1, 1), &Impairment { is_overtaken: true, ..late }, &mut leaving));
        assert!(waiting.push(10, packet(1, 2), &late, &mut leaving));
        waiting.due(60, &mut leaving);
        assert_eq!(numbers(&leaving), [2, 1]);
    }

    #[test]
    fn no_more_wait_than_may() {
        let (mut waiting, mut leaving) = (Waiting::default(), Vec::new());
        let late = Impairment { delay: Duration::from_secs(1), ..PLAIN };
        for _ in 0..WAITING_MAX {
            assert!(waiting.push(0, packet(1, 1), &late, &mut leaving));
        }
        assert!(!waiting.push(0, packet(1, 1), &late, &mut leaving));
        assert!(waiting.push(0, packet(1, 1), &PLAIN, &mut leaving), "what need not wait can go");
    }
}
