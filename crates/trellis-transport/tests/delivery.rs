//! Two delivery machines and a bag between them: the network may deliver any datagram at any time, twice, or never.
//!
//! One seed decides everything here. A failure prints the command that repeats it.

use trellis_base::Random;
use trellis_transport::links::udp::delivery::{
    Acknowledgement, Arrival, Fragment, Nanoseconds, Plan, Receiver, Sender, WINDOW,
};

/// The number of runs in one test; `TRELLIS_DELIVERY_SEED` runs one alone.
const SEEDS: u64 = 3_000;
const STEPS_MAX: usize = 400_000;
/// The maximum number of datagrams in flight in the bag; more are lost, as in a full router.
const BAG_MAX: usize = 64;

/// A frame: its number, and the bytes of its body.
#[derive(Clone, Debug)]
struct Frame {
    number: usize,
    body: Vec<u8>,
}

#[derive(Clone)]
struct Datagram {
    acknowledgement: Acknowledgement,
    prompt: bool,
    fragment: Option<(Fragment, usize, Vec<u8>)>,
}

/// Where a frame is assembled: its number and its bytes.
type Place = (usize, Vec<u8>);

struct End {
    sender: Sender<Frame>,
    receiver: Receiver<Place>,
    submitted: usize,
    released: usize,
    delivered: Vec<Option<Vec<u8>>>,
    room_bytes: u32,
    /// The maximum size of one body: a frame is not split into more than a few dozen fragments.
    bytes_max: usize,
}

/// What the network does, in percent.
#[derive(Debug)]
struct FaultMix {
    drop: u8,
    duplicate: u8,
    reorder: u8,
    /// One direction is worse than the other.
    drop_back: u8,
}

impl End {
    fn new(random: &mut Random) -> End {
        let fragment_bytes = random.one_of(&[1, 7, 100, 1371, 60_000]);
        let mut sender = Sender::new(0, fragment_bytes, 101);
        sender.start(0);
        let (receiver, delivered) = (Receiver::default(), Vec::new());
        let room_bytes = random.one_of(&[16 << 10, 1 << 20]);
        sender.set_room(room_bytes);
        End {
            sender,
            receiver,
            submitted: 0,
            released: 0,
            delivered,
            room_bytes,
            bytes_max: fragment_bytes as usize * 40,
        }
    }

    fn submit(&mut self, random: &mut Random) {
        let bytes = random.one_of(&[0, 1, 6, 8, 50, 300, 4096]).min(self.bytes_max);
        let number = self.submitted;
        let body: Vec<u8> = (0..bytes).map(|at| (number * 31 + at * 7) as u8).collect();
        self.sender.submit(Frame { number, body }, bytes as u32);
        self.submitted += 1;
    }

    /// Sends everything that may be sent now.
    fn transmit(&mut self, now: Nanoseconds, bag: &mut Vec<Datagram>) -> usize {
        self.sender.tick(now);
        let mut count = 0;
        while let Some(plan) = self.sender.next(now) {
            let fragment = self.sender.fragment(plan).map(|(fragment, frame)| {
                let bytes = frame.body[fragment.range()].to_vec();
                (fragment, frame.number, bytes)
            });
            let prompt = plan == Plan::Probe || self.sender.is_held_back();
            bag.push(Datagram { acknowledgement: *self.sender.acknowledgement(), prompt, fragment });
            self.sender.sent(plan, now);
            count += 1;
            assert!(count <= 2 * WINDOW as usize, "a burst without an end");
        }
        assert!(self.sender.outstanding() as u64 <= WINDOW);
        count
    }

    fn receive(&mut self, now: Nanoseconds, datagram: &Datagram) {
        self.sender.heard(now);
        let released = &mut self.released;
        self.sender.acknowledged(now, &datagram.acknowledgement, |_| *released += 1).expect("an honest peer");
        let arrival =
            datagram.fragment.as_ref().map(|(fragment, _, bytes)| self.receiver.accept(fragment, bytes.len()));
        if datagram.prompt || arrival.is_some() {
            let here = self.receiver.acknowledgement(self.room_bytes);
            self.sender.owe(now, here, datagram.prompt || arrival == Some(Arrival::Duplicate));
        }
        let (Some((fragment, number, bytes)), Some(arrival)) = (&datagram.fragment, arrival) else { return };
        match arrival {
            Arrival::Duplicate | Arrival::OutOfReach => {}
            Arrival::Inconsistent => panic!("an honest peer: {fragment:?}"),
            Arrival::Whole => self.deliver(*number, bytes.clone()),
            Arrival::First => {
                let mut body = vec![0; fragment.body_bytes as usize];
                body[fragment.range()].copy_from_slice(bytes);
                self.receiver.open(fragment, (*number, body));
            }
            Arrival::Later { slot } => {
                let place = self.receiver.place(slot);
                assert_eq!(place.0, *number, "a fragment of another frame");
                place.1[fragment.range()].copy_from_slice(bytes);
                if let Some((number, body)) = self.receiver.finish(slot) {
                    self.deliver(number, body);
                }
            }
        }
        assert!(self.receiver.open_frames() as u64 <= WINDOW + 1);
    }

    fn deliver(&mut self, number: usize, body: Vec<u8>) {
        let count = self.delivered.len().max(number + 1);
        self.delivered.resize(count, None);
        let expected: Vec<u8> = (0..body.len()).map(|at| (number * 31 + at * 7) as u8).collect();
        assert_eq!(body, expected, "the bytes of frame {number}");
        assert!(self.delivered[number].replace(body).is_none(), "frame {number} came twice");
    }

    fn has_all_of(&self, other: &End) -> bool {
        self.delivered.len() == other.submitted && self.delivered.iter().all(Option::is_some)
    }
}

/// Takes one datagram out of the bag, or loses it; its direction is index 0 or 1.
fn pick(bag: &mut Vec<Datagram>, random: &mut Random, fault_mix: &FaultMix, drop: u8) -> Option<Datagram> {
    while bag.len() > BAG_MAX {
        bag.pop();
    }
    if bag.is_empty() {
        return None;
    }
    let at = if random.percent(fault_mix.reorder) { random.index(bag.len()) } else { 0 };
    let datagram = if random.percent(fault_mix.duplicate) { bag[at].clone() } else { bag.remove(at) };
    (!random.percent(drop)).then_some(datagram)
}

/// Performs one run: frames in both directions through a bad network, until all have arrived. Returns the number of
/// datagrams.
fn run(seed: u64) -> usize {
    let mut random = Random::new(seed);
    let fault_mix = FaultMix {
        drop: random.one_of(&[0, 10, 10, 30, 50]),
        duplicate: random.one_of(&[0, 5, 30]),
        reorder: random.one_of(&[0, 5, 50]),
        drop_back: random.one_of(&[0, 10, 60]),
    };
    let mut ends = [End::new(&mut random), End::new(&mut random)];
    let mut bags = [Vec::new(), Vec::new()];
    let wanted = [random.index(40) + 1, random.index(40)];
    let (mut now, mut went) = (1_000_000, 0);
    for _ in 0..STEPS_MAX {
        for side in 0..2 {
            if ends[side].submitted < wanted[side] && random.percent(30) {
                ends[side].submit(&mut random);
            }
            went += ends[side].transmit(now, &mut bags[side]);
        }
        let side = random.index(2);
        let drop = if side == 0 { fault_mix.drop } else { fault_mix.drop_back };
        match pick(&mut bags[side], &mut random, &fault_mix, drop) {
            Some(datagram) => {
                now += random.below(50_000);
                ends[1 - side].receive(now, &datagram);
            }
            // Nothing to do but to wait for a clock.
            None if bags.iter().all(Vec::is_empty) => {
                now = now.max(ends.iter().map(|end| end.sender.due()).min().expect("two ends"));
            }
            None => now += random.below(20_000),
        }
        let done = (0..2).all(|side| {
            ends[side].submitted == wanted[side]
                && ends[1 - side].has_all_of(&ends[side])
                && ends[side].sender.is_idle()
        });
        if done {
            for end in &ends {
                assert_eq!(end.released, end.submitted, "every frame is given back once");
                assert_eq!(end.receiver.open_frames(), 0);
            }
            return went;
        }
    }
    panic!("not all arrived in {STEPS_MAX} steps; {fault_mix:?}");
}

#[test]
fn every_frame_arrives_once_whatever_the_network_does() {
    if let Some(seed) = std::env::var("TRELLIS_DELIVERY_SEED").ok().and_then(|seed| seed.parse().ok()) {
        run(seed);
        return;
    }
    for seed in 0..SEEDS {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("TRELLIS_DELIVERY_SEED={seed} cargo test -p trellis-transport --test delivery");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [1, 7, 2_999] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

/// Request and answer acknowledge each other: two datagrams for each pair, and one more at the end.
#[test]
fn a_quiet_exchange_costs_no_datagram_more_than_its_frames() {
    let ends = [(); 2].map(|()| {
        let mut sender = Sender::<usize>::new(0, 60_000, 101);
        sender.start(0);
        sender.set_room(1 << 20);
        (sender, Receiver::<()>::default())
    });
    let [mut near, mut far] = ends;
    let (mut now, mut went) = (0, 0);
    for round in 0..1000 {
        for (bytes, forth) in [(0, true), (4096, false)] {
            let ((from, _), (to, receiver)) = if forth { (&mut near, &mut far) } else { (&mut far, &mut near) };
            from.submit(round, bytes);
            assert_eq!(from.next(now), Some(Plan::Next));
            let fragment = from.fragment(Plan::Next).expect("a fragment").0;
            let acknowledgement = *from.acknowledgement();
            from.sent(Plan::Next, now);
            assert_eq!(from.next(now), None);
            went += 1;
            now += 4_000;
            to.heard(now);
            to.acknowledged(now, &acknowledgement, |_| {}).expect("an honest peer");
            assert_eq!(receiver.accept(&fragment, bytes as usize), Arrival::Whole);
            to.owe(now, receiver.acknowledgement(1 << 20), false);
            assert!(to.is_idle());
        }
    }
    assert_eq!(went, 2000);
    // The last answer is acknowledged separately, when its time has come and no sooner.
    let due = near.0.due();
    assert_eq!(near.0.next(due - 1), None);
    assert_eq!(near.0.next(due), Some(Plan::Acknowledge));
    assert_eq!(near.0.resent + far.0.resent, 0);
}

/// Losses make a sender slower, and the window limits its rate; without losses the window opens up.
#[test]
fn the_window_opens_with_arrivals_and_closes_with_losses() {
    let mut sender = Sender::<u32>::new(0, 100, 101);
    sender.start(0);
    (0..400).for_each(|number| sender.submit(number, 50));
    let (mut now, mut cumulative) = (0, 0);
    let acknowledges = |cumulative| Acknowledgement { cumulative, room_bytes: 1 << 30, ..Acknowledgement::default() };
    sender.acknowledged(now, &acknowledges(0), |_| {}).expect("honest");
    let mut windows = Vec::new();
    for _ in 0..4 {
        let mut count = 0;
        while let Some(Plan::Next) = sender.next(now) {
            sender.sent(Plan::Next, now);
            count += 1;
            now += 10_000;
        }
        windows.push(count);
        cumulative += count;
        now += 100_000;
        sender.acknowledged(now, &acknowledges(cumulative), |_| {}).expect("honest");
    }
    assert!(windows.is_sorted() && windows[0] == 10 && windows[3] >= 40, "{windows:?}");
    let before = sender.congestion_window();
    // One is lost, those behind it arrive.
    for _ in 0..8 {
        now += 10_000;
        sender.sent(Plan::Next, now);
    }
    let mut gap = acknowledges(cumulative);
    gap.beyond[0] = 0b1111_1110;
    sender.acknowledged(now, &gap, |_| {}).expect("honest");
    assert_eq!(sender.congestion_window(), before / 2);
    assert_eq!(sender.next(now), Some(Plan::Again { sequence: cumulative }));
    // Nothing at all comes back: two at a time, and each time later.
    sender.sent(Plan::Again { sequence: cumulative }, now);
    let mut waits = Vec::new();
    for timeouts in 1..=5 {
        let before = now;
        while sender.doublings() < timeouts {
            now = now.max(sender.due());
            sender.tick(now);
            assert_ne!(now, Nanoseconds::MAX, "something is always due");
        }
        waits.push(now - before);
        while let Some(plan @ (Plan::Again { .. } | Plan::Next)) = sender.next(now) {
            sender.sent(plan, now);
        }
        assert!(sender.congestion_window() <= 2 && sender.outstanding() as u64 <= WINDOW);
    }
    assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
    assert!(sender.acknowledged(now, &acknowledges(100_000), |_| {}).is_err(), "of what was never sent");
}
