//! One sender, several receivers, and datagrams for all of them at once.
//! The network loses, duplicates and reorders each copy independently: each receiver gets each frame once, and a
//! receiver that has everything sends nothing.
//!
//! One seed decides everything here. A failure prints the command that repeats it.

use trellis_base::Random;
use trellis_transport::links::udp::delivery::{
    Acknowledgement, Arrival, Fragment, Heartbeats, MULTICAST_ACKNOWLEDGE_NS, MULTICAST_RESEND_NS, Nanoseconds, Plan,
    Receiver, Sender, WINDOW,
};

/// The number of runs in one test; `TRELLIS_DELIVERY_SEED` runs one alone.
const SEEDS: u64 = 3_000;
const STEPS_MAX: usize = 400_000;
/// The maximum number of datagrams in flight to one node; more are lost, as in a full router.
const BAG_MAX: usize = 64;
const ROOM_BYTES: u32 = 1 << 20;

/// A frame's number, and the bytes of its body.
#[derive(Clone, Debug)]
struct Frame {
    number: usize,
    body: Vec<u8>,
}

fn body(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (number * 31 + at * 7) as u8).collect()
}

type Piece = (Fragment, usize, Vec<u8>);

#[derive(Clone)]
enum Datagram {
    /// For one node.
    Alone { acknowledgement: Acknowledgement, prompt: bool, piece: Option<Piece> },
    /// The part of a multicast for this node: a piece, or how many fragments there were.
    Common { prompt: bool, low: u32, piece: Option<Piece> },
}

/// One end of one connection.
struct End {
    sender: Sender<Frame>,
    receiver: Receiver<(usize, Vec<u8>)>,
    wanted: Vec<usize>,
    released: usize,
    delivered: Vec<usize>,
    negative: usize,
    sent_alone: usize,
}

impl End {
    fn new(fragment_bytes: u32) -> End {
        let mut sender = Sender::new(0, fragment_bytes, 101);
        sender.start(0);
        sender.set_room(ROOM_BYTES);
        End {
            sender,
            receiver: Receiver::default(),
            wanted: Vec::new(),
            released: 0,
            delivered: Vec::new(),
            negative: 0,
            sent_alone: 0,
        }
    }

    fn transmit(&mut self, now: Nanoseconds, bag: &mut Vec<Datagram>) {
        self.sender.tick(now);
        let mut count = 0;
        while let Some(plan) = self.sender.next(now) {
            let piece = self.sender.fragment(plan).map(|(fragment, frame)| {
                let bytes = frame.body[fragment.range()].to_vec();
                (fragment, frame.number, bytes)
            });
            let prompt = plan == Plan::Probe || self.sender.is_held_back();
            let acknowledgement = *self.sender.acknowledgement();
            self.negative += usize::from(acknowledgement.is_negative());
            self.sent_alone += 1;
            bag.push(Datagram::Alone { acknowledgement, prompt, piece });
            self.sender.sent(plan, now);
            count += 1;
            assert!(count <= 2 * WINDOW as usize, "a burst without an end");
        }
        assert!(self.sender.outstanding() as u64 <= WINDOW);
    }

    fn receive(&mut self, now: Nanoseconds, datagram: Datagram) {
        self.sender.heard(now);
        let piece = match datagram {
            Datagram::Alone { acknowledgement, prompt, piece } => {
                let released = &mut self.released;
                self.sender.acknowledged(now, &acknowledgement, |_| *released += 1).expect("an honest peer");
                let arrival = piece.as_ref().map(|(fragment, _, bytes)| self.receiver.accept(fragment, bytes.len()));
                if prompt || arrival.is_some() {
                    let here = self.receiver.acknowledgement(ROOM_BYTES);
                    self.sender.owe(now, here, prompt || arrival == Some(Arrival::Duplicate));
                }
                piece.zip(arrival)
            }
            Datagram::Common { prompt, low, piece } => {
                let number = self.receiver.widen(low);
                let piece =
                    piece.map(|(fragment, frame, bytes)| (Fragment { sequence: number, ..fragment }, frame, bytes));
                let arrival = piece.as_ref().map(|(fragment, _, bytes)| self.receiver.accept(fragment, bytes.len()));
                if piece.is_none() {
                    self.receiver.note_report(number).expect("an honest peer");
                }
                let here = self.receiver.acknowledgement(ROOM_BYTES);
                let at_once = prompt || arrival == Some(Arrival::Duplicate);
                if at_once || arrival.is_some() || here.is_negative() {
                    self.sender.owe_for_multicast(now, here, at_once);
                }
                piece.zip(arrival)
            }
        };
        let Some(((fragment, number, bytes), arrival)) = piece else { return };
        match arrival {
            Arrival::Duplicate | Arrival::OutOfReach => {}
            Arrival::Inconsistent => panic!("an honest peer: {fragment:?}"),
            Arrival::Whole => self.deliver(number, &bytes),
            Arrival::First => {
                let mut body = vec![0; fragment.body_bytes as usize];
                body[fragment.range()].copy_from_slice(&bytes);
                self.receiver.open(&fragment, (number, body));
            }
            Arrival::Later { slot } => {
                let place = self.receiver.place(slot);
                assert_eq!(place.0, number, "a fragment of another frame");
                place.1[fragment.range()].copy_from_slice(&bytes);
                if let Some((number, body)) = self.receiver.finish(slot) {
                    self.deliver(number, &body);
                }
            }
        }
    }

    fn deliver(&mut self, number: usize, bytes: &[u8]) {
        assert_eq!(bytes, body(number, bytes.len()), "the bytes of frame {number}");
        self.delivered.push(number);
    }

    fn submit(&mut self, number: usize, bytes: usize) {
        self.wanted.push(number);
        self.sender.submit(Frame { number, body: body(number, bytes) }, bytes as u32);
    }
}

/// The sender of multicasts and its receivers: a pair of ends for each.
struct Group {
    near: Vec<End>,
    far: Vec<End>,
    /// What is in flight to each receiver, and back.
    there: Vec<Vec<Datagram>>,
    back: Vec<Vec<Datagram>>,
    heartbeats: Heartbeats,
    fragment_bytes: u32,
    frames: usize,
    multicasts: usize,
}

impl Group {
    fn new(receivers: usize, fragment_bytes: u32) -> Group {
        let ends = || (0..receivers).map(|_| End::new(fragment_bytes)).collect();
        Group {
            near: ends(),
            far: ends(),
            there: vec![Vec::new(); receivers],
            back: vec![Vec::new(); receivers],
            heartbeats: Heartbeats::default(),
            fragment_bytes,
            frames: 0,
            multicasts: 0,
        }
    }

    /// Sends a frame to some receivers: by multicast to those that may begin, in steps as large as the one with the
    /// least room allows, and separately to all others.
    fn send_to(&mut self, now: Nanoseconds, to: &[usize], bytes: usize) {
        let number = self.frames;
        self.frames += 1;
        let frame = Frame { number, body: body(number, bytes) };
        let mut share = Vec::new();
        for &at in to {
            let end = &mut self.near[at];
            if end.sender.may_multicast() {
                end.wanted.push(number);
                share.push((at, end.sender.multicast(frame.clone(), bytes as u32, self.fragment_bytes)));
            } else {
                end.submit(number, bytes);
            }
        }
        let fragment =
            Fragment { sequence: 0, index: 0, body_bytes: bytes as u32, fragment_bytes: self.fragment_bytes };
        let mut index = 0;
        while index < fragment.count() {
            let room = share.iter().map(|&(at, _)| self.near[at].sender.room()).min().unwrap_or(0);
            let going = room.min(u64::from(fragment.count() - index));
            if going == 0 {
                break;
            }
            for &(at, first) in &share {
                let end = &mut self.near[at];
                assert_eq!(end.sender.depart_by_multicast(now, going), going, "there was room");
                let prompt = end.sender.is_half_full();
                for index in index..index + going as u32 {
                    let fragment = Fragment { index, ..fragment };
                    let piece = Some((fragment, number, frame.body[fragment.range()].to_vec()));
                    let low = (first + u64::from(index)) as u32;
                    self.there[at].push(Datagram::Common { prompt, low, piece });
                }
            }
            index += going as u32;
            self.multicasts += going as usize;
            self.heartbeats.sent(now);
        }
        share.iter().for_each(|&(at, _)| self.near[at].sender.release());
    }

    fn tick(&mut self, now: Nanoseconds) {
        if self.heartbeats.due() <= now {
            let mut wanted = false;
            for (end, bag) in self.near.iter().zip(&mut self.there) {
                if end.sender.waits_for_multicast() {
                    let low = end.sender.fragments() as u32;
                    bag.push(Datagram::Common { prompt: false, low, piece: None });
                    wanted = true;
                }
            }
            self.heartbeats.update(now, wanted);
        }
        for (end, bag) in self.near.iter_mut().zip(&mut self.there) {
            end.transmit(now, bag);
        }
        for (end, bag) in self.far.iter_mut().zip(&mut self.back) {
            end.transmit(now, bag);
        }
    }

    fn due(&self) -> Nanoseconds {
        let ends = self.near.iter().chain(&self.far).map(|end| end.sender.due()).min().expect("some end");
        ends.min(self.heartbeats.due())
    }

    fn is_done(&self) -> bool {
        let pairs = || self.near.iter().zip(&self.far);
        pairs().all(|(near, far)| near.sender.is_idle() && far.sender.is_idle())
    }

    /// Checks that every frame arrived once at every receiver that it was for, and back.
    fn check(&self) {
        for (near, far) in self.near.iter().zip(&self.far) {
            for (from, to) in [(near, far), (far, near)] {
                let mut delivered = to.delivered.clone();
                delivered.sort_unstable();
                assert_eq!(delivered, from.wanted, "each frame once");
                assert_eq!(from.released, from.wanted.len(), "every frame is given back once");
                assert_eq!(to.receiver.open_frames(), 0);
            }
        }
    }
}

/// What the network does, in percent.
#[derive(Debug)]
struct FaultMix {
    drop: u8,
    duplicate: u8,
    reorder: u8,
}

/// Takes one datagram out of a bag, or loses it.
fn pick(bag: &mut Vec<Datagram>, random: &mut Random, fault_mix: &FaultMix) -> Option<Datagram> {
    bag.truncate(BAG_MAX);
    if bag.is_empty() {
        return None;
    }
    let at = if random.percent(fault_mix.reorder) { random.index(bag.len()) } else { 0 };
    let datagram = if random.percent(fault_mix.duplicate) { bag[at].clone() } else { bag.remove(at) };
    (!random.percent(fault_mix.drop)).then_some(datagram)
}

/// Performs one run; returns the numbers of multicasts, of repaired fragments and of negative acknowledgements.
fn run(seed: u64) -> (usize, u64, usize) {
    let mut random = Random::new(seed);
    let fault_mix = FaultMix {
        drop: random.one_of(&[0, 10, 10, 30, 50]),
        duplicate: random.one_of(&[0, 5, 30]),
        reorder: random.one_of(&[0, 5, 50]),
    };
    let receivers = 1 + random.index(5);
    let mut group = Group::new(receivers, random.one_of(&[7, 100, 1371, 60_000]));
    let wanted = 1 + random.index(30);
    let mut now = 1_000_000;
    for _ in 0..STEPS_MAX {
        if group.frames < wanted && random.percent(20) {
            let to: Vec<_> = (0..receivers).filter(|_| random.percent(80)).collect();
            let bytes = random.one_of(&[0, 1, 8, 50, 300, 4096]).min(group.fragment_bytes as usize * 40);
            match random.below(4) {
                0 => {
                    let (at, number) = (random.index(receivers), group.frames);
                    group.frames += 1;
                    group.near[at].submit(number, bytes);
                }
                1 => {
                    let at = random.index(receivers);
                    let number = group.far[at].wanted.len();
                    group.far[at].submit(number, bytes);
                }
                _ => group.send_to(now, &to, bytes),
            }
        }
        group.tick(now);
        let at = random.index(receivers);
        let there = random.percent(50);
        let bag = if there { &mut group.there[at] } else { &mut group.back[at] };
        match pick(bag, &mut random, &fault_mix) {
            Some(datagram) => {
                now += random.below(50_000);
                let end = if there { &mut group.far[at] } else { &mut group.near[at] };
                end.receive(now, datagram);
            }
            None if group.there.iter().chain(&group.back).all(Vec::is_empty) => now = now.max(group.due()),
            None => now += random.below(20_000),
        }
        if group.frames == wanted && group.is_done() {
            group.check();
            let repaired = group.near.iter().map(|end| end.sender.repaired).sum();
            return (group.multicasts, repaired, group.far.iter().map(|end| end.negative).sum());
        }
    }
    panic!("not all arrived in {STEPS_MAX} steps; {fault_mix:?}");
}

#[test]
fn every_frame_arrives_once_at_each_receiver_whatever_the_network_does() {
    if let Some(seed) = std::env::var("TRELLIS_DELIVERY_SEED").ok().and_then(|seed| seed.parse().ok()) {
        run(seed);
        return;
    }
    let mut all = (0, 0, 0);
    for seed in 0..SEEDS {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(one) => all = (all.0 + one.0, all.1 + one.1, all.2 + one.2),
            Err(panic) => {
                eprintln!("TRELLIS_DELIVERY_SEED={seed} cargo test -p trellis-transport --test delivery_multicast");
                std::panic::resume_unwind(panic);
            }
        }
    }
    // Otherwise the seeds test nothing.
    assert!(all.0 > 10_000 && all.1 > 1_000 && all.2 > 1_000, "multicasts, repaired, negative: {all:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [1, 7, 2_999] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

/// Delivers everything in flight at once; `loses` is the receiver that loses what arrives now.
fn settle(group: &mut Group, now: Nanoseconds, loses: Option<usize>) {
    while group.there.iter().chain(&group.back).any(|bag| !bag.is_empty()) {
        for at in 0..group.far.len() {
            for datagram in std::mem::take(&mut group.there[at]) {
                if loses != Some(at) {
                    group.far[at].receive(now, datagram);
                }
            }
            for datagram in std::mem::take(&mut group.back[at]) {
                group.near[at].receive(now, datagram);
            }
        }
        group.tick(now);
    }
}

#[test]
fn receivers_that_have_all_say_nothing_until_they_must() {
    let mut group = Group::new(5, 60_000);
    group.send_to(0, &[0, 1, 2, 3, 4], 4096);
    settle(&mut group, 10, None);
    assert!(group.far.iter().all(|end| end.delivered == [0] && end.sent_alone == 0));
    // Heartbeats arrive, and no receiver answers.
    while group.due() < MULTICAST_ACKNOWLEDGE_NS {
        let now = group.due();
        group.tick(now);
        settle(&mut group, now, None);
    }
    assert!(group.far.iter().all(|end| end.sent_alone == 0));
    let now = 10 + MULTICAST_ACKNOWLEDGE_NS;
    group.tick(now);
    settle(&mut group, now, None);
    assert!(group.far.iter().all(|end| end.sent_alone == 1 && end.negative == 0), "one word, when it is time");
    assert!(group.is_done() && group.near.iter().all(|end| end.sender.resent == 0));
    // A receiver with something to send piggybacks its acknowledgement.
    group.send_to(now, &[0, 1, 2, 3, 4], 4096);
    group.far.iter_mut().for_each(|end| end.submit(0, 8));
    settle(&mut group, now, None);
    group.tick(now);
    settle(&mut group, now, None);
    assert!(group.near.iter().all(|end| end.sender.is_idle()));
    assert!(group.far.iter().all(|end| end.sent_alone == 2));
}

#[test]
fn the_loss_of_the_last_datagram_is_noticed_by_a_heartbeat_and_only_who_lost_it_speaks() {
    let mut group = Group::new(3, 60_000);
    group.send_to(0, &[0, 1, 2], 4096);
    settle(&mut group, 10, Some(1));
    assert!(group.far[1].delivered.is_empty());
    let now = group.due();
    assert!(now < MULTICAST_RESEND_NS, "long before the sender doubts by itself");
    group.tick(now);
    settle(&mut group, now, None);
    assert_eq!(group.far.iter().map(|end| end.delivered.len()).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(group.far.iter().map(|end| end.negative).collect::<Vec<_>>(), [0, 1, 0]);
    assert_eq!(group.near.iter().map(|end| end.sender.repaired).collect::<Vec<_>>(), [0, 1, 0]);
    assert_eq!(group.near[1].sent_alone, 1, "to that one alone");
}

#[test]
fn a_receiver_that_says_nothing_at_all_is_sent_to_again() {
    let mut group = Group::new(2, 60_000);
    group.send_to(0, &[0, 1], 100);
    settle(&mut group, 10, Some(1));
    // Heartbeats are lost as well.
    while group.near[1].sender.repaired == 0 {
        let now = group.due();
        assert!(now <= 2 * MULTICAST_RESEND_NS, "nothing is sent again");
        group.tick(now);
        settle(&mut group, now, Some(1));
    }
    assert!(group.near[1].sender.misses() > 0 && group.near[0].sender.misses() == 0);
}
