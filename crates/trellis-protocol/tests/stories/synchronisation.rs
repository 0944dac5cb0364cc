//! Scripts about locks, barriers and words.

use super::{Story, Words};
use std::collections::BTreeMap;
use trellis_protocol::NodeId;
use trellis_protocol::sync::{Effect, Input, Message, Operation, Sync, Waiter};

pub(crate) struct Script {
    nodes: Vec<Sync>,
    under_way: Vec<(NodeId, NodeId, Message)>,
    /// Calls that wait, in words.
    waiting: BTreeMap<Waiter, (u16, String)>,
    calls: Waiter,
}

impl Script {
    pub(crate) fn new() -> Script {
        Script { nodes: Vec::new(), under_way: Vec::new(), waiting: BTreeMap::new(), calls: 0 }
    }

    fn step(&mut self, node: u16, input: Input, lines: &mut Vec<String>) {
        let mut effects = Vec::new();
        self.nodes[usize::from(node)].step(input, &mut effects);
        for effect in effects {
            lines.push(match effect {
                Effect::Send(to, message) => {
                    self.under_way.push((NodeId(node), to, message));
                    format!("  send n{}: {}", to.0, text(&message))
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

    /// The call of a program, which waits until it is woken.
    fn call(&mut self, node: u16, what: String, input: impl Fn(Waiter) -> Input, lines: &mut Vec<String>) {
        self.calls += 1;
        let name = format!("call {} (n{node} {what})", self.calls);
        lines.push(name.clone());
        self.waiting.insert(self.calls, (node, name));
        self.step(node, input(self.calls), lines);
    }

    fn deliver(&mut self, index: usize, lines: &mut Vec<String>) {
        let (from, to, message) = self.under_way.remove(index);
        lines.push(format!("n{} hears from n{}: {}", to.0, from.0, text(&message)));
        self.step(to.0, Input::Message(from, message), lines);
    }

    fn abandon(&mut self, node: u16, lock: u64, lines: &mut Vec<String>) -> Result<(), String> {
        let what = format!("(n{node} acquires lock {lock})");
        let mut calls = self.waiting.iter().filter(|(_, (_, name))| name.ends_with(&what));
        let (&waiter, (_, name)) = calls.next().ok_or("no such call waits")?;
        lines.push(format!("{name} gives up"));
        self.step(node, Input::Abandon(lock, waiter), lines);
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
                self.call(words.name(0, 'n')?, what, |waiter| Input::Arrive(barrier, waiter), &mut lines);
            }
            "add" | "exchange" | "compare" | "load" => self.operate(verb, &words, &mut lines)?,
            "deliver" if words.is_empty() => {
                while !self.under_way.is_empty() {
                    self.deliver(0, &mut lines);
                }
            }
            "deliver" => {
                let (from, to) = words.link()?;
                let found = self.under_way.iter().position(|message| (message.0.0, message.1.0) == (from, to));
                self.deliver(found.ok_or("no such message is under way")?, &mut lines);
            }
            _ => return Err("there is no such command".to_string()),
        }
        Ok(lines)
    }

    fn left_over(&self) -> Vec<String> {
        let waiting = self.waiting.values().map(|(_, name)| format!("{name} waits"));
        let under_way = self.under_way.iter().map(|(_, _, message)| format!("`{}` is under way", text(message)));
        waiting.chain(under_way).collect()
    }
}

fn text(message: &Message) -> String {
    match *message {
        Message::LockRequest(id) => format!("request lock {id}"),
        Message::LockForward(id, next) => format!("hand lock {id} to n{}", next.0),
        Message::LockToken(id) => format!("lock {id}"),
        Message::LockReturn(id) => format!("ask for lock {id}, which I leave"),
        Message::BarrierArrive(id, generation) => format!("arrived at barrier {id}, use {generation}"),
        Message::BarrierRelease(id, generation) => format!("leave barrier {id}, use {generation}"),
        Message::AtomicRequest(id, operation, _) => format!("{operation:?} on word {id}"),
        Message::AtomicReply(id, _, before) => format!("word {id} was {before}"),
    }
}
