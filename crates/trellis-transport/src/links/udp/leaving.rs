//! The end of a link: everything that waits is delivered, and the peers are told.
//!
//! Promises: it gives up when no peer takes anything any more, and in any case after a time. Two nodes that leave at
//! once do not wait for each other.
//!
//! It must never deliver a frame. What arrives meanwhile is acknowledged, so that its sender can leave too, and
//! discarded.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::PollFlags;

use super::delivery::Nanoseconds;
use super::input::{Overheard, Step};
use super::peers::Peers;
use super::timer;
use crate::links::Lost;
use crate::links::roster::{lock, try_lock};
use crate::links::tcp::sockets;
use crate::links::waits::Closing;

/// The maximum number of farewells until one is answered; each waits twice as long as the one before. A peer that
/// receives none of them learns from its kernel that nothing listens here any more.
const FAREWELLS_MAX: u32 = 5;
const FAREWELL_NS_FIRST: Nanoseconds = 3_000_000;
const RECEIVES_MAX: usize = 256;

/// One peer that this node is leaving.
struct Leaving {
    peer: usize,
    farewells: u32,
    next: Nanoseconds,
    /// Whether the peer knows, or is gone itself.
    answered: bool,
}

/// Sends what waits and ends every connection. `closed` is set: polls do nothing any more.
pub(super) fn leave_all(peers: &Peers) {
    let (start, mut closing) = (timer::now(), Closing::new());
    let mut leaving: Vec<Leaving> = (0..peers.roster.count())
        .filter(|&peer| peers.roster.is_up(peer))
        .map(|peer| Leaving { peer, farewells: 0, next: 0, answered: false })
        .collect();
    // Receivers of multicasts delay their acknowledgements.
    leaving.iter().for_each(|one| lock(&peers.roster.peers[one.peer].own.output).hurry(start));
    while !leaving.is_empty() {
        let now = timer::now();
        let (mut progress, mut next) = (0, now + 20_000_000);
        peers.disperse(now);
        leaving.retain_mut(|one| one.step(peers, now, &mut progress, &mut next));
        progress += leaving.iter().map(|one| u64::from(one.farewells)).sum::<u64>();
        if closing.is_over(progress, Duration::from_nanos(now - start)) {
            break;
        }
        let wires: Vec<_> =
            leaving.iter().filter_map(|one| lock(&peers.roster.peers[one.peer].own.output).wire()).collect();
        let waiting: Vec<_> = wires.iter().map(|wire| (&wire.socket, PollFlags::IN)).collect();
        sockets::wait(&waiting, next.saturating_sub(now).div_ceil(1_000_000).max(1) as i32);
    }
    // Peers that did not take all of it are told as well; this may fail.
    for one in &leaving {
        lock(&peers.roster.peers[one.peer].own.output).say_bye(timer::now());
    }
    for (index, peer) in peers.roster.peers.iter().enumerate() {
        let Some(mut input) = try_lock(&peer.own.input) else { continue };
        peers.retire(index, &mut input, Lost::ClosedHere);
    }
}

impl Leaving {
    /// Does what is due for this peer; returns whether leaving it continues.
    fn step(&mut self, peers: &Peers, now: Nanoseconds, progress: &mut u64, next: &mut Nanoseconds) -> bool {
        self.listen(peers, now);
        let mut output = lock(&peers.roster.peers[self.peer].own.output);
        output.tick(now);
        if output.doom.is_some() || self.answered {
            // With this, the peer does not wait for an answer either.
            output.say_bye(now);
            return false;
        }
        let (idle, arrived) = output.progress();
        *progress += arrived;
        *next = (*next).min(output.due());
        if let Some(wire) = output.wire() {
            wire.release(now);
            *next = (*next).min(wire.due().unwrap_or(Nanoseconds::MAX));
        }
        if idle && self.next <= now {
            if self.farewells == FAREWELLS_MAX {
                return false;
            }
            output.say_bye(now);
            self.next = now + (FAREWELL_NS_FIRST << self.farewells);
            self.farewells += 1;
        }
        if idle {
            *next = (*next).min(self.next);
        }
        true
    }

    /// Takes what the peer acknowledges, and acknowledges what it sends. A callback that is still running holds the
    /// receiving half; then nothing is received.
    fn listen(&mut self, peers: &Peers, now: Nanoseconds) {
        let peer = &peers.roster.peers[self.peer].own;
        let Some(mut input) = try_lock(&peer.input) else { return };
        for _ in 0..RECEIVES_MAX {
            match input.overhear() {
                Overheard::Nothing => break,
                Overheard::Foreign => {}
                Overheard::Datagram(heard, range) => {
                    let (Some(low), Some((mut fragment, _))) = (heard.number, heard.fragment) else { continue };
                    fragment.sequence = input.widen(low);
                    let arrival = Some(input.accept(&fragment, range.len()));
                    lock(&peer.output).heard_multicast(now, true, arrival, input.acknowledgement());
                }
            }
        }
        for _ in 0..RECEIVES_MAX {
            match input.receive() {
                Step::Nothing => return,
                Step::Handshake | Step::Foreign => {}
                Step::NobodyThere => lock(&peer.output).nobody_there(now),
                Step::Failed(_) => {
                    self.answered = true;
                    return;
                }
                Step::Confirmation => lock(&peer.output).owe_word(now, input.acknowledgement()),
                Step::Datagram(content, range) => {
                    peer.packets_in.fetch_add(1, Ordering::Relaxed);
                    let arrival = content.fragment.as_ref().map(|(fragment, _)| input.accept(fragment, range.len()));
                    let heard = lock(&peer.output).heard(now, &content, arrival, input.acknowledgement());
                    self.answered |= content.bye.is_some() || heard.is_err();
                }
            }
        }
    }
}
