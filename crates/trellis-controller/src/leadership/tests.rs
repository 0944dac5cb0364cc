//! Tests that at most one of several controllers leads, whatever the store does with their requests, as long as clocks
//! keep to their rates.

use trellis_base::Random;

use super::*;

const TERM: Nanoseconds = 1_000;
/// The clock error in these tests, in parts per million: large enough to show a mistake.
const ERROR_PPM: u32 = 100_000;

/// A message between a controller and the store, in real time.
enum Way {
    /// To the store, at this time; the answer may be lost.
    Action(u64, Action, bool),
    /// Back, at this time.
    Fact(u64, Fact),
}

struct Node {
    host: Host,
    machine: Leadership,
    /// Its clock's rate in thousandths of real time, and its reading at real time zero.
    rate: u64,
    offset: u64,
    ways: Vec<Way>,
    is_stopped: bool,
}

impl Node {
    fn clock(&self, real: u64) -> Nanoseconds {
        self.offset + real * self.rate / 1_000
    }
}

fn apply(record: &mut Option<Vec<u8>>, action: &Action) -> Fact {
    match action {
        Action::Swap { expect, value } if expect == record => {
            record.clone_from(value);
            Fact::Swapped
        }
        Action::Read | Action::Swap { .. } => Fact::Found(record.clone()),
    }
}

/// Runs some controllers for some time; returns how often another one began to lead.
fn run(seed: u64, nodes: u16, faults: bool, until: u64) -> usize {
    let mut random = Random::new(seed);
    let mut record: Option<Vec<u8>> = None;
    let mut all: Vec<Node> = (0..nodes)
        .map(|host| Node {
            host: Host(host + 1),
            machine: Leadership::new(Term::new(TERM, ERROR_PPM), random.draw(), Host(host + 1), false),
            rate: 900 + random.below(201),
            offset: random.below(10 * TERM),
            ways: Vec::new(),
            is_stopped: false,
        })
        .collect();
    let (mut leader, mut changes) = (None, 0);
    for real in 0..until {
        for node in &mut all {
            // A suspended process reads its clock when it resumes.
            if faults && random.once_in(3_000) {
                node.is_stopped = !node.is_stopped;
            }
            let now = node.clock(real);
            if faults && random.once_in(3_000) {
                node.machine.leave(now);
                assert!(!node.machine.leads(now) && node.machine.name().is_none());
            }
            if node.machine.has_left() {
                // Its requests may still arrive; another process begins.
                let host = node.host;
                node.machine = Leadership::new(Term::new(TERM, ERROR_PPM), random.draw(), host, false);
                node.ways.retain(|way| matches!(way, Way::Action(_, _, true)));
            }
            let due = |way: &Way| matches!(way, Way::Action(at, ..) | Way::Fact(at, _) if *at <= real);
            let mut facts = Vec::new();
            while let Some(place) = node.ways.iter().position(due) {
                match node.ways.swap_remove(place) {
                    Way::Action(_, action, is_lost) => {
                        let fact = apply(&mut record, &action);
                        if !is_lost {
                            node.ways.push(Way::Fact(real + random.below(40), fact));
                        }
                    }
                    Way::Fact(..) if node.is_stopped => facts.push(Fact::Unknown),
                    Way::Fact(_, fact) => facts.push(fact),
                }
            }
            if node.is_stopped {
                // Facts that arrived meanwhile are handled late.
                for fact in facts {
                    node.ways.push(Way::Fact(real + 50, fact));
                }
                continue;
            }
            facts.push(Fact::Tick);
            for fact in facts {
                let Some(action) = node.machine.step(now, fact) else { continue };
                let at = real + random.below(40);
                match random.below(20) {
                    // It never arrives.
                    0 if faults => node.ways.push(Way::Fact(at, Fact::Unknown)),
                    // It arrives, perhaps long after the controller has stopped waiting for it.
                    1 if faults => {
                        node.ways.push(Way::Action(at + random.below(3 * TERM), action, true));
                        node.ways.push(Way::Fact(at + 40, Fact::Unknown));
                    }
                    _ => node.ways.push(Way::Action(at, action, false)),
                }
            }
        }
        let leading: Vec<usize> =
            (0..all.len()).filter(|place| all[*place].machine.leads(all[*place].clock(real))).collect();
        assert!(leading.len() <= 1, "at {real} {leading:?} lead; replay: run({seed}, {nodes}, {faults}, {until})");
        if let Some(now) = leading.first().filter(|now| leader != Some(**now)) {
            leader = Some(*now);
            changes += 1;
            let host = all[*now].machine.leader();
            assert_eq!(host, Some(Host(*now as u16 + 1)), "who leads knows it");
        }
    }
    changes
}

#[test]
fn one_leads_at_an_instant_whatever_happens() {
    let mut changes = 0;
    for seed in 0..200 {
        changes += run(seed, 3, true, 20_000);
    }
    assert!(changes > 400, "leaders are gone often: {changes}");
}

#[test]
fn where_nothing_is_lost_the_leader_stays() {
    for seed in 0..50 {
        assert_eq!(run(seed, 3, false, 20_000), 1, "replay: run({seed}, 3, false, 20000)");
    }
}

#[test]
fn another_takes_over_when_the_leader_is_gone() {
    let term = Term::new(TERM, ERROR_PPM);
    let mut record = None;
    let mut first = Leadership::new(term, 7, Host(1), false);
    let action = first.step(0, Fact::Tick).expect("it reads");
    assert_eq!(action, Action::Read);
    let action = first.step(1, Fact::Found(None)).expect("it takes what nobody has");
    assert_eq!(apply(&mut record, &action), Fact::Swapped);
    first.step(2, Fact::Swapped);
    assert!(first.leads(2), "it leads from when it was confirmed");
    let held = term.held;
    assert!(first.leads(held), "counted from when it was sent");
    assert!(!first.leads(1 + held));
    let mut second = Leadership::new(term, 8, Host(2), false);
    let mut now = 100;
    let mut fact = Fact::Tick;
    while !second.leads(now) {
        assert!(now < 100 + 2 * TERM, "it leads after a term");
        fact = match second.step(now, fact) {
            Some(action) => apply(&mut record, &action),
            None => Fact::Tick,
        };
        now += 1;
    }
    assert!(now > 100 + TERM, "not before a whole term, seen from when it looked first: {now}");
    assert_eq!((second.leader(), host_in(record.as_deref().expect("a record"))), (Some(Host(2)), Some(Host(2))));
    assert_ne!(first.name(), second.name());
}

/// Two controllers that watch one record, the first of which leads; and the time.
fn one_leads(record: &mut Option<Vec<u8>>) -> (Leadership, Leadership, Nanoseconds) {
    let term = Term::new(TERM, ERROR_PPM);
    let [mut first, mut second] =
        [(7, 1), (8, 2)].map(|(random_number, host)| Leadership::new(term, random_number, Host(host), false));
    let mut now = 0;
    for machine in [&mut first, &mut second] {
        let mut fact = Fact::Tick;
        for _ in 0..4 {
            now += 1;
            fact = machine.step(now, fact).map_or(Fact::Tick, |action| apply(record, &action));
        }
    }
    assert!(first.leads(now) && !second.leads(now) && second.leader() == Some(Host(1)));
    (first, second, now)
}

#[test]
fn nobody_waits_for_one_that_left() {
    let mut record = None;
    let (mut first, mut second, mut now) = one_leads(&mut record);
    first.leave(now);
    assert!(!first.leads(now) && first.name().is_none() && !first.has_left());
    let action = first.step(now, Fact::Tick).expect("its record goes");
    assert_eq!(apply(&mut record, &action), Fact::Swapped);
    first.step(now, Fact::Swapped);
    assert!(first.has_left() && record.is_none());
    assert_eq!(first.step(now + 10 * TERM, Fact::Tick), None, "it does nothing any more");
    let left = now;
    let mut fact = Fact::Tick;
    while !second.leads(now) {
        fact = second.step(now, fact).map_or(Fact::Tick, |action| apply(&mut record, &action));
        now += 1;
    }
    assert!(now <= left + TERM / 8 + 4, "it looks eight times in a term: {}", now - left);
}

#[test]
fn who_leaves_takes_away_what_it_does_not_know_to_be_there_and_nothing_of_others() {
    // It had sent a renewal, which arrives without being acknowledged.
    let mut record = None;
    let (mut first, _, now) = one_leads(&mut record);
    let renewal = first.step(now + TERM / 3, Fact::Tick).expect("it renews");
    first.leave(now + TERM / 3);
    apply(&mut record, &renewal);
    let mut fact = Fact::Unknown;
    for time in 0..TERM {
        fact = first.step(now + TERM / 3 + time, fact).map_or(Fact::Tick, |action| apply(&mut record, &action));
    }
    assert!(first.has_left() && record.is_none());
    // Another controller leads when it checks.
    let (mut first, _, now) = one_leads(&mut record);
    let others = Some(vec![9; RECORD_BYTES]);
    record.clone_from(&others);
    first.leave(now);
    let action = first.step(now, Fact::Tick).expect("it tries");
    let refused = apply(&mut record, &action);
    first.step(now, refused);
    assert!(first.has_left() && record == others);
    // One that never led has nothing to remove.
    let (_, mut second, now) = one_leads(&mut None);
    second.leave(now);
    while !second.has_left() {
        assert!(second.step(now, Fact::Found(None)).is_none());
    }
}

#[test]
fn nobody_waits_for_one_that_cannot_be_there() {
    let term = Term::new(TERM, ERROR_PPM);
    let mut record = Some(vec![1; RECORD_BYTES]);
    let mut machine = Leadership::new(term, 7, Host(1), true);
    let mut fact = Fact::Tick;
    for now in 0..4 {
        if let Some(action) = machine.step(now, fact.clone()) {
            fact = apply(&mut record, &action);
        }
    }
    assert!(machine.leads(4));
}

#[test]
fn who_stops_leads_again_only_under_another_name() {
    let mut record = None;
    let mut machine = Leadership::new(Term::new(TERM, ERROR_PPM), 7, Host(1), false);
    let lead = |machine: &mut Leadership, record: &mut Option<Vec<u8>>, from: u64| {
        let (mut now, mut fact) = (from, Fact::Tick);
        while !machine.leads(now) {
            fact = machine.step(now, fact).map_or(Fact::Tick, |action| apply(record, &action));
            now += 1;
        }
        (now, machine.name().expect("it leads"))
    };
    let (now, first) = lead(&mut machine, &mut record, 0);
    machine.step_down(now);
    assert!(!machine.leads(now) && machine.name().is_none());
    let (now, second) = lead(&mut machine, &mut record, now);
    assert_ne!(first, second);
    // Its term ends unnoticed: a late confirmation does not restore it.
    let late = now + 2 * TERM;
    assert!(!machine.leads(late));
    machine.step(late, Fact::Swapped);
    assert!(!machine.leads(late));
}

#[test]
fn who_hears_too_late_that_it_leads_does_not_wait_for_itself() {
    let mut record = None;
    let (mut first, mut second, mut now) = one_leads(&mut record);
    // The first one is gone. The request that makes the second one lead arrives, and the answer comes when its right has
    // ended.
    let mut fact = Fact::Tick;
    while second.proposed.is_none() {
        now += 1;
        fact = second.step(now, fact).map_or(Fact::Tick, |action| apply(&mut record, &action));
    }
    now += TERM;
    assert_eq!((fact.clone(), host_in(record.as_deref().expect("a record"))), (Fact::Swapped, Some(Host(2))));
    let late = now;
    while !second.leads(now) {
        fact = second.step(now, fact).map_or(Fact::Tick, |action| apply(&mut record, &action));
        now += 1;
    }
    assert!(now < late + 8, "it leads at once, under another name: {}", now - late);
    // A controller that steps down lets the others lead for a term.
    second.step_down(now);
    let down = now;
    let mut facts = [Fact::Tick, Fact::Tick];
    while !first.leads(now) && !second.leads(now) {
        now += 1;
        for (machine, fact) in [&mut first, &mut second].into_iter().zip(&mut facts) {
            *fact = machine.step(now, fact.clone()).map_or(Fact::Tick, |action| apply(&mut record, &action));
        }
    }
    assert!((down + TERM - TERM / 4..down + TERM + TERM / 2).contains(&now), "{}", now - down);
}
