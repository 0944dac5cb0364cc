//! The checker of linearizability: what clients may see of each page, computed beside a run.
//!
//! A page is one register. A read returns the value at some instant between its beginning and its end. A commit takes
//! effect at one instant between its own beginning and end, and only on the very content on which it is based. A
//! commit that ended without acknowledgement took effect before, or never. The checker keeps every possible history as
//! a set of *views*: the page's value, which unfinished commits have taken effect, and which values each unfinished
//! read may have seen. When no view is left, no order explains what clients saw.
//!
//! A change under a lease counts only if nobody else had the page since: another process could have heard of the change
//! and not found it. So when a home accepts a commit, its client is the last that had a right to the page.
//!
//! More rules are checked in every state. A page has one owner and one home at an instant of real time. No reader
//! answers from a copy while the page has an owner. The backups have what a settled home shows. Every server that the
//! controller may make home next has what any home shows. It must never inspect a machine for anything else.

use super::node::{Machine, Node};
use super::{Setup, Value};
use std::collections::BTreeSet;

/// An event at a client; the first number is that of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A read begins.
    ReadBegins(u8, u8),
    /// The read ends with this value.
    ReadEnds(u8, u8, Value),
    /// A commit begins; it is based on the first value and writes the second.
    CommitBegins(u8, u8, Value, Value),
    /// The commit ends; says whether it was acknowledged.
    CommitEnds(u8, u8, bool),
    /// A home accepts a commit of the client.
    Counts(u8, u8),
    /// The client is gone. Its requests may still take effect.
    Gone(u8),
}

/// One explanation of what clients have seen of a page.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct View {
    value: Value,
    /// Commits that did not take effect: client, base and new value.
    open: Vec<(u8, Value, Value)>,
    /// The clients whose commits took effect and did not end.
    done: Vec<u8>,
    /// Unfinished reads, and the values that they may have seen.
    reads: Vec<(u8, Vec<Value>)>,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ghost {
    pages: Vec<BTreeSet<View>>,
    /// For each page the node that last had a right to it.
    holders: Vec<u8>,
}

/// Stands for a client that is gone.
const NOBODY: u8 = u8::MAX;

impl View {
    /// Removes the unfinished read of `client`.
    fn forget_read(&mut self, client: u8) {
        self.reads.retain(|(reader, _)| *reader != client);
    }

    fn shows(&mut self, value: Value) {
        self.value = value;
        for (_, seen) in &mut self.reads {
            if let Err(place) = seen.binary_search(&value) {
                seen.insert(place, value);
            }
        }
    }
}

impl Ghost {
    /// The state before the first event.
    pub fn new(setup: &Setup) -> Ghost {
        let view = View { value: 0, open: Vec::new(), done: Vec::new(), reads: Vec::new() };
        let pages = setup.pages as usize;
        Ghost { pages: vec![BTreeSet::from([view]); pages], holders: vec![NOBODY; pages] }
    }

    /// The nodes that last had a right to each page, if these nodes have rights now and that makes a difference.
    pub fn other_holders<'a>(
        &self,
        real: u64,
        nodes: impl Iterator<Item = &'a Node> + Clone,
        now: impl Fn(usize, u64) -> u64,
    ) -> Option<Vec<u8>> {
        let holder = |(page, &holder): (u64, &u8)| {
            let has = |&(number, node): &(usize, &Node)| !node.is_dead && node.has_right(now(number, real), page);
            let having = nodes.clone().enumerate().filter(has).map(|(number, _)| number as u8);
            having.reduce(|first, other| if other == holder { other } else { first }).unwrap_or(holder)
        };
        let holders: Vec<u8> = (0..).zip(&self.holders).map(holder).collect();
        (holders != self.holders).then_some(holders)
    }

    /// Notes them.
    pub fn hold(&mut self, holders: Vec<u8>) {
        self.holders = holders;
    }

    /// Applies an event.
    ///
    /// # Errors
    ///
    /// No order explains it.
    pub fn note(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::ReadBegins(client, page) => self.each(page, |view| {
                let seen = vec![view.value];
                view.reads.push((client, seen));
                true
            }),
            Event::CommitBegins(client, page, base, value) => self.each(page, |view| {
                view.open.push((client, base, value));
                true
            }),
            Event::ReadEnds(client, page, value) => {
                self.each(page, |view| {
                    let is_seen = view.reads.iter().any(|(reader, seen)| *reader == client && seen.contains(&value));
                    view.forget_read(client);
                    is_seen
                });
                if self.pages[usize::from(page)].is_empty() {
                    return Err(format!(
                        "client {client} reads {value} from page {page}, which it could not hold then"
                    ));
                }
            }
            Event::CommitEnds(client, page, is_acknowledged) => {
                self.each(page, |view| {
                    let is_done = view.done.contains(&client);
                    view.done.retain(|other| *other != client);
                    view.open.retain(|(other, ..)| *other != client);
                    is_done || !is_acknowledged
                });
                if self.pages[usize::from(page)].is_empty() {
                    return Err(format!(
                        "a commit of client {client} to page {page} is acknowledged and rests on what was changed"
                    ));
                }
            }
            Event::Counts(client, page) => {
                let holder = self.holders[usize::from(page)];
                if holder != client {
                    return Err(format!(
                        "a commit of client {client} to page {page} counts although node {holder} had the page since"
                    ));
                }
            }
            Event::Gone(client) => {
                for page in 0..self.pages.len() {
                    self.each(page as u8, |view| {
                        view.forget_read(client);
                        view.done.retain(|other| *other != client);
                        view.open.iter_mut().filter(|open| open.0 == client).for_each(|open| open.0 = NOBODY);
                        true
                    });
                }
            }
        }
        Ok(())
    }

    /// Applies `change` to every view of a page, keeps those for which it returns `true`, and adds the views that are
    /// possible from then on.
    fn each(&mut self, page: u8, mut change: impl FnMut(&mut View) -> bool) {
        let views = &mut self.pages[usize::from(page)];
        let mut waiting: Vec<View> =
            std::mem::take(views).into_iter().filter_map(|mut view| change(&mut view).then_some(view)).collect();
        while let Some(mut view) = waiting.pop() {
            view.open.sort_unstable();
            view.done.sort_unstable();
            view.reads.sort_unstable();
            for place in 0..view.open.len() {
                let (client, base, value) = view.open[place];
                if base == view.value {
                    let mut next = view.clone();
                    next.open.remove(place);
                    if client != NOBODY {
                        next.done.push(client);
                    }
                    next.shows(value);
                    waiting.push(next);
                }
            }
            views.insert(view);
        }
    }
}

/// Checks the rules about who may use a page at one instant.
///
/// # Errors
///
/// A rule is broken.
pub fn check_rights<'a>(
    setup: &Setup,
    real: u64,
    nodes: impl Iterator<Item = &'a Node> + Clone,
    now: impl Fn(usize, u64) -> u64,
) -> Result<(), String> {
    for page in 0..setup.pages {
        let (mut owner, mut reader) = (None, None);
        for (number, node) in nodes.clone().enumerate().filter(|(_, node)| !node.is_dead) {
            let now = now(number, real);
            match node.machine_of(page) {
                Machine::Client(client) if client.owns(now, page) => {
                    if let Some(other) = owner.replace(number) {
                        return Err(format!("nodes {other} and {number} own page {page} at the same instant"));
                    }
                }
                Machine::Reader(machine) if machine.has(now, page) => reader = Some(number),
                _ => {}
            }
        }
        if let (Some(owner), Some(reader)) = (owner, reader) {
            return Err(format!("node {reader} answers from a copy of page {page} while node {owner} owns it"));
        }
        let at_home = |&(number, node): &(usize, &Node)| !node.is_dead && node.serves(now(number, real), page);
        let mut homes = nodes.clone().enumerate().take(usize::from(setup.servers)).filter(at_home);
        if let (Some((one, home)), other) = (homes.next(), homes.next()) {
            if let Some((other, _)) = other {
                return Err(format!("nodes {one} and {other} are home of page {page} at the same instant"));
            }
            let lacks = |(_, node): &(usize, &Node)| home.differs_from_backup(node, page);
            if let Some((other, _)) = nodes.clone().enumerate().take(usize::from(setup.servers)).find(lacks) {
                return Err(format!("node {one} is settled, and its backup {other} has another page {page}"));
            }
            let controller = nodes.clone().nth(setup.controller()).expect("there is a controller");
            let lacks = |(_, node): &(usize, &Node)| home.shows_more(node, controller, page);
            if let Some((other, _)) = nodes.clone().enumerate().take(usize::from(setup.servers)).find(lacks) {
                return Err(format!("node {other} is taken for complete, and home {one} shows another page {page}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ghost() -> Ghost {
        Ghost::new(&crate::leases::shapes::small()[0])
    }

    #[test]
    fn a_read_sees_what_was_there_while_it_lasted() {
        let mut ghost = ghost();
        ghost.note(Event::ReadBegins(1, 0)).unwrap();
        ghost.note(Event::CommitBegins(2, 0, 0, 7)).unwrap();
        ghost.note(Event::CommitEnds(2, 0, true)).unwrap();
        assert!(ghost.clone().note(Event::ReadEnds(1, 0, 0)).is_ok(), "it began before");
        assert!(ghost.clone().note(Event::ReadEnds(1, 0, 7)).is_ok());
        assert!(ghost.clone().note(Event::ReadEnds(1, 0, 8)).is_err(), "nobody wrote that");
        ghost.note(Event::ReadBegins(3, 0)).unwrap();
        assert!(ghost.clone().note(Event::ReadEnds(3, 0, 0)).is_err(), "it began later");
    }

    #[test]
    fn what_one_read_saw_a_later_one_sees() {
        let mut ghost = ghost();
        ghost.note(Event::CommitBegins(2, 0, 0, 7)).unwrap();
        for (value, is_right) in [(0, true), (7, true), (0, false)] {
            ghost.note(Event::ReadBegins(1, 0)).unwrap();
            assert_eq!(ghost.note(Event::ReadEnds(1, 0, value)).is_ok(), is_right, "{value}");
        }
    }

    #[test]
    fn a_commit_rests_on_the_last_one() {
        let mut ghost = ghost();
        ghost.note(Event::CommitBegins(1, 0, 0, 5)).unwrap();
        ghost.note(Event::CommitBegins(2, 0, 0, 6)).unwrap();
        ghost.note(Event::CommitEnds(1, 0, true)).unwrap();
        assert!(ghost.clone().note(Event::CommitEnds(2, 0, true)).is_err());
        assert!(ghost.note(Event::CommitEnds(2, 0, false)).is_ok());
    }

    #[test]
    fn what_was_refused_never_happens_later_and_what_was_left_open_may() {
        let mut refused = ghost();
        refused.note(Event::CommitBegins(1, 0, 0, 5)).unwrap();
        let mut open = refused.clone();
        refused.note(Event::CommitEnds(1, 0, false)).unwrap();
        open.note(Event::Gone(1)).unwrap();
        for (ghost, is_right) in [(&mut refused, false), (&mut open, true)] {
            ghost.note(Event::ReadBegins(2, 0)).unwrap();
            ghost.note(Event::ReadEnds(2, 0, 0)).unwrap();
            ghost.note(Event::ReadBegins(2, 0)).unwrap();
            assert_eq!(ghost.note(Event::ReadEnds(2, 0, 5)).is_ok(), is_right);
        }
    }
}
