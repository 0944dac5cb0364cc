//! The commands of scripts about locks, barriers, words and objects that are kept at their home.

use super::{Story, Words, named};
use std::collections::BTreeMap;
use trellis_check::model::Envelope;
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::sync::{
    ConditionDemand, Contribution, Demand, Effect, EventDemand, Input, Kind, Message, OnceDemand, Operation,
    ReadWriteDemand, Reduction, SemaphoreDemand, Subject, Sync, Waiter,
};

pub(crate) struct Script {
    nodes: Vec<Sync>,
    under_way: Vec<Envelope<Message>>,
    /// Calls that wait, in words.
    waiting: BTreeMap<Waiter, (u16, String)>,
    calls: Waiter,
    /// The last call that asked.
    asked: Waiter,
}

impl Script {
    pub(crate) fn new() -> Script {
        Script { nodes: Vec::new(), under_way: Vec::new(), waiting: BTreeMap::new(), calls: 0, asked: 0 }
    }

    fn step(&mut self, node: u16, input: Input, lines: &mut Vec<String>) {
        let mut effects = Vec::new();
        self.nodes[usize::from(node)].step(input, &mut effects);
        self.tell(node, effects, lines);
    }

    fn tell(&mut self, node: u16, effects: Vec<Effect>, lines: &mut Vec<String>) {
        for effect in effects {
            lines.push(match effect {
                Effect::Send(to, message) => {
                    self.under_way.push(Envelope { from: node, to: to.0, message });
                    format!("  send n{}: {}", to.0, message)
                }
                Effect::Wake(waiter, value) => format!("  {} is done, {value}", self.take(waiter)),
                Effect::Refused(waiter, what) => format!("  {} is refused: {what}", self.take(waiter)),
                Effect::Violation(from, what) => panic!("node {node} reports of {from}: {what}"),
            });
        }
    }

    fn take(&mut self, waiter: Waiter) -> String {
        self.waiting.remove(&waiter).expect("a call is woken once").1
    }

    /// Makes a call of a program, which waits until it is woken.
    fn call(&mut self, node: u16, what: String, input: impl Fn(Waiter) -> Input, lines: &mut Vec<String>) {
        self.calls += 1;
        let name = format!("call {} (n{node} {what})", self.calls);
        lines.push(name.clone());
        self.waiting.insert(self.calls, (node, name));
        self.step(node, input(self.calls), lines);
    }

    fn deliver(&mut self, index: usize, lines: &mut Vec<String>) {
        let Envelope { from, to, message } = self.under_way.remove(index);
        lines.push(format!("n{to} hears from n{from}: {message}"));
        self.step(to, Input::Message(NodeId(from), message), lines);
    }

    fn abandon(&mut self, node: u16, lock: u64, lines: &mut Vec<String>) -> Result<(), String> {
        let what = format!("(n{node} acquires lock {lock})");
        let mut calls = self.waiting.iter().filter(|(_, (_, name))| name.ends_with(&what));
        let (&waiter, (_, name)) = calls.next().ok_or("no such call waits")?;
        lines.push(format!("{name} gives up"));
        self.step(node, Input::Abandon(lock, waiter), lines);
        Ok(())
    }

    /// The last call of a node that still waits is abandoned.
    fn give_up(&mut self, node: u16, lines: &mut Vec<String>) -> Result<(), String> {
        let waiting = self.waiting.iter().rev().find(|(_, (of, _))| *of == node);
        let (call, name) = waiting.map(|(&call, (_, name))| (call, name.clone())).ok_or("no such call waits")?;
        lines.push(format!("{name} gives up"));
        let input = match name.contains("enters barrier") {
            true => Input::AbandonBarrier(7, call),
            false => Input::AbandonDemand(call),
        };
        self.step(node, input, lines);
        Ok(())
    }

    /// Demands something of object 1, whose home is node 1: `demand n0 write`.
    fn demand(&mut self, words: &Words<'_>, lines: &mut Vec<String>) -> Result<(), String> {
        let node = words.name(0, 'n')?;
        let what = words.at(1)?;
        let demand = match what {
            "read" => Demand::ReadWriteLock(ReadWriteDemand::Read),
            "try-read" => Demand::ReadWriteLock(ReadWriteDemand::TryRead),
            "write" => Demand::ReadWriteLock(ReadWriteDemand::Write),
            "try-write" => Demand::ReadWriteLock(ReadWriteDemand::TryWrite),
            "end-read" => Demand::ReadWriteLock(ReadWriteDemand::EndRead),
            "end-write" => Demand::ReadWriteLock(ReadWriteDemand::EndWrite),
            "acquire" => Demand::Semaphore(SemaphoreDemand::Acquire),
            "try-acquire" => Demand::Semaphore(SemaphoreDemand::TryAcquire),
            "release" => Demand::Semaphore(SemaphoreDemand::Release(words.number("by")?)),
            "value" => Demand::Semaphore(SemaphoreDemand::Value),
            "set" => Demand::Event(EventDemand::Set),
            "clear" => Demand::Event(EventDemand::Clear),
            "wait" => Demand::Event(EventDemand::Wait),
            "is-set" => Demand::Event(EventDemand::IsSet),
            "begin" => Demand::Once(OnceDemand::Begin),
            "done" => Demand::Once(OnceDemand::Done),
            "failed" => Demand::Once(OnceDemand::Failed),
            "notify-one" => Demand::Condition(ConditionDemand::NotifyOne),
            "notify-all" => Demand::Condition(ConditionDemand::NotifyAll),
            "come" => Demand::CountingBarrier(words.number("of")? as u32),
            _ => return Err("there is no such demand".to_string()),
        };
        if matches!(demand, Demand::ReadWriteLock(ReadWriteDemand::EndRead | ReadWriteDemand::EndWrite)) {
            lines.push(format!("n{node} {what}"));
            self.step(node, Input::Demand(1, demand, 0), lines);
        } else {
            self.call(node, what.to_owned(), |waiter| Input::Demand(1, demand, waiter), lines);
        }
        Ok(())
    }

    fn enroll(&mut self, node: u16, lines: &mut Vec<String>) -> Result<(), String> {
        self.calls += 2;
        let (enrolled, waiter) = (self.calls - 1, self.calls);
        for (call, what) in [(enrolled, "enrolls"), (waiter, "waits for a notification")] {
            let name = format!("call {call} (n{node} {what})");
            lines.push(name.clone());
            self.waiting.insert(call, (node, name));
        }
        self.step(node, Input::Enroll(1, enrolled, waiter), lines);
        Ok(())
    }

    /// Asks every other node for its state of an object: `ask n0 barrier=7`, or `ask n0 lock=1`.
    fn ask(&mut self, words: &Words<'_>, lines: &mut Vec<String>) -> Result<(), String> {
        let node = words.name(0, 'n')?;
        let of = |kind, name| words.number(name).map(|id| Subject { kind, id });
        let subject = of(Kind::Barrier, "barrier").or(of(Kind::Lock, "lock")).or(of(Kind::ReadWriteLock, "shared"))?;
        self.calls += 1;
        self.asked = self.calls;
        let name = format!("call {} (n{node} asks about {:?} {})", self.calls, subject.kind, subject.id);
        lines.push(name.clone());
        self.waiting.insert(self.calls, (node, name));
        let peers = (0..self.nodes.len() as u16).filter(|&peer| peer != node).map(NodeId);
        let mut effects = Vec::new();
        self.nodes[usize::from(node)].inquire(subject, peers, self.calls, &mut effects);
        self.tell(node, effects, lines);
        Ok(())
    }

    /// The result of the last inquiry.
    fn answers(&mut self, words: &Words<'_>, lines: &mut Vec<String>) -> Result<(), String> {
        let node = words.name(0, 'n')?;
        let answers = self.nodes[usize::from(node)].conclude(self.asked);
        self.waiting.remove(&self.asked);
        lines.extend(answers.into_iter().map(|(peer, answer)| match answer {
            Some(standing) => format!("n{} holds {}, waits {}", peer.0, standing.holds, standing.waits),
            None => format!("n{} did not answer", peer.0),
        }));
        Ok(())
    }

    fn operate(&mut self, verb: &str, words: &Words<'_>, lines: &mut Vec<String>) -> Result<(), String> {
        let word = words.number("word")?;
        let (operation, what) = match verb {
            "add" => {
                let by = words.number("by")?;
                (Operation::FetchAdd(by), format!("adds {by} to word {word}"))
            }
            "exchange" => {
                let to = words.number("to")?;
                (Operation::Exchange(to), format!("puts {to} into word {word}"))
            }
            "compare" => {
                let (from, to) = (words.number("from")?, words.number("to")?);
                let what = format!("puts {to} into word {word} if it is {from}");
                (Operation::CompareExchange(from, to), what)
            }
            _ => (Operation::Load, format!("loads word {word}")),
        };
        self.call(words.name(0, 'n')?, what, |waiter| Input::Operate(word, operation, waiter), lines);
        Ok(())
    }
}

impl Story for Script {
    fn command(&mut self, line: &str) -> Result<Vec<String>, String> {
        let (verb, words) = Words::of(line);
        let mut lines = Vec::new();
        match verb {
            "cluster" => {
                let nodes = words.number("nodes")? as u16;
                let founders = words.number("founders").map_or(nodes, |founders| founders as u16);
                self.nodes = (0..nodes).map(|me| Sync::new(NodeId(me), founders)).collect();
            }
            "acquire" => {
                let lock = words.number("lock")?;
                let what = format!("acquires lock {lock}");
                self.call(words.name(0, 'n')?, what, |waiter| Input::Acquire(lock, waiter), &mut lines);
            }
            "release" => {
                let (node, lock) = (words.name(0, 'n')?, words.number("lock")?);
                lines.push(format!("n{node} releases lock {lock}"));
                self.step(node, Input::Release(lock), &mut lines);
            }
            "depart" => {
                let node = words.name(0, 'n')?;
                lines.push(format!("n{node} gives its locks back"));
                self.step(node, Input::Depart, &mut lines);
                let clear = self.nodes[usize::from(node)].is_clear();
                lines.extend(clear.then(|| format!("  n{node} has none")));
            }
            "abandon" => self.abandon(words.name(0, 'n')?, words.number("lock")?, &mut lines)?,
            "arrive" => {
                let barrier = words.number("barrier")?;
                let what = format!("enters barrier {barrier}");
                let contribution = match (words.number("sum"), words.number("broadcast"), words.number("from")) {
                    (Ok(value), ..) => Contribution::Value(Reduction::Sum, value),
                    (_, Ok(value), Ok(from)) => Contribution::Value(Reduction::Broadcast(NodeId(from as u16)), value),
                    _ => Contribution::Nothing,
                };
                let arrive = |waiter| Input::Arrive(barrier, contribution, waiter);
                self.call(words.name(0, 'n')?, what, arrive, &mut lines);
            }
            "try" => {
                let lock = words.number("lock")?;
                let what = format!("tries lock {lock}");
                self.call(words.name(0, 'n')?, what, |waiter| Input::TryAcquire(lock, waiter), &mut lines);
            }
            "demand" => self.demand(&words, &mut lines)?,
            "enroll" => self.enroll(words.name(0, 'n')?, &mut lines)?,
            "give-up" => self.give_up(words.name(0, 'n')?, &mut lines)?,
            "ask" => self.ask(&words, &mut lines)?,
            "answers" => self.answers(&words, &mut lines)?,
            "quiet" => lines.extend(self.nodes.iter().enumerate().map(|(node, state)| {
                format!("n{node} {}", if state.is_quiet() { "remembers nothing" } else { "remembers calls" })
            })),
            "add" | "exchange" | "compare" | "load" => self.operate(verb, &words, &mut lines)?,
            "deliver" if words.is_empty() => {
                while !self.under_way.is_empty() {
                    self.deliver(0, &mut lines);
                }
            }
            "deliver" => {
                let index = named(&words, &self.under_way, |_| "")?;
                self.deliver(index, &mut lines);
            }
            _ => return Err("there is no such command".to_string()),
        }
        Ok(lines)
    }

    fn left_over(&self) -> Vec<String> {
        let waiting = self.waiting.values().map(|(_, name)| format!("{name} waits"));
        let under_way = self.under_way.iter().map(|envelope| format!("`{}` is under way", envelope.message));
        waiting.chain(under_way).collect()
    }
}
