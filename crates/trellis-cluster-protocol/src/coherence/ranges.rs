//! Different protocols for different pages of one region.
//!
//! Promises: to its caller this is one protocol. Each page is handled by the protocol that was chosen for it, and no page
//! range that goes in or comes out crosses the border between two protocols. All nodes change a choice at the same barrier,
//! when the page is untouched or only its home holds it ([`Coherence::change`]). It must never look into a protocol, and must
//! never keep a protocol's state for pages that another one handles.

use super::hlrc::Hlrc;
use super::{CannotChange, Coherence, Effect, Geometry, Input, Message, Protocol, Running};
use crate::Nanoseconds;
use crate::page::{Access, NodeId, PageIndex, PageRange};
use alloc::vec;
use alloc::vec::Vec;

/// The largest number of different protocols in one region.
pub const PROTOCOLS_MAX: usize = 16;

/// One shard of a region at one node. See the documentation of this module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ranges {
    geometry: Geometry,
    protocols: Vec<(Protocol, Running)>,
    /// For every page of this shard, the index in `protocols`; empty while there is one protocol for all pages.
    chosen: Vec<u8>,
}

impl Ranges {
    /// Every page is handled by `protocol`.
    pub fn new(protocol: Protocol, geometry: Geometry) -> Ranges {
        Ranges { geometry, protocols: vec![(protocol, protocol.start(geometry))], chosen: Vec::new() }
    }

    /// The pages of `range`, of one chunk, begin under `protocol`. Nothing has happened in the region yet.
    ///
    /// # Errors
    ///
    /// The region would have too many protocols.
    pub fn begin(&mut self, range: PageRange, protocol: Protocol) -> Result<(), CannotChange> {
        let to = self.place_of(protocol)?;
        if !self.chosen.is_empty() {
            let first = self.slot(range.first());
            self.chosen[first..first + range.count() as usize].fill(to);
        }
        Ok(())
    }

    /// The index of `protocol`, which pages are about to get.
    fn place_of(&mut self, protocol: Protocol) -> Result<u8, CannotChange> {
        let to = match self.protocols.iter().position(|(known, _)| *known == protocol) {
            Some(place) => place,
            None if self.protocols.len() == PROTOCOLS_MAX => return Err(CannotChange),
            None => {
                self.protocols.push((protocol, protocol.start(self.geometry)));
                self.protocols.len() - 1
            }
        };
        if self.chosen.is_empty() && self.protocols.len() > 1 {
            self.chosen = vec![0; self.geometry.slots()];
        }
        Ok(to as u8)
    }

    /// The protocol of `page`.
    pub fn protocol(&self, page: PageIndex) -> Protocol {
        self.protocols[self.place(page)].0
    }

    /// What handles `page`, if it is release consistency.
    pub fn hlrc_of(&self, page: PageIndex) -> Option<&Hlrc> {
        self.of(page).as_hlrc()
    }

    /// The range around `page` and inside `range` whose pages have the protocol of `page`.
    pub fn alike(&self, page: PageIndex, range: PageRange) -> PageRange {
        let place = self.place(page);
        range.grow(page, |other| self.place(other) == place)
    }

    fn of(&self, page: PageIndex) -> &Running {
        &self.protocols[self.place(page)].1
    }

    fn place(&self, page: PageIndex) -> usize {
        if self.chosen.is_empty() { 0 } else { usize::from(self.chosen[self.slot(page)]) }
    }

    fn slot(&self, page: PageIndex) -> usize {
        self.geometry.slot(page)
    }

    /// Passes each part of `range` to the protocol that handles it.
    fn split(&mut self, now: Nanoseconds, range: PageRange, input: Input, effects: &mut Vec<Effect>) {
        let mut next = range.first().0;
        while next < range.end() {
            let run = self.alike(PageIndex(next), PageRange::around(PageIndex(next), next, range.end()));
            next = run.end();
            let part = match input {
                Input::Notice { stamp, .. } => Input::Notice { range: run, stamp },
                Input::Place { node, .. } => Input::Place { range: run, node },
                Input::Close { .. } => Input::Close { range: run },
                _ => Input::Stored { range: run },
            };
            let place = self.place(run.first());
            self.protocols[place].1.step(now, part, effects);
        }
    }

    /// The nodes whose acknowledgements a publication waits for.
    pub fn awaited_from(&self) -> Vec<NodeId> {
        self.protocols
            .iter()
            .filter_map(|(_, running)| running.as_hlrc())
            .flat_map(|hlrc| hlrc.awaited_from())
            .collect()
    }

    /// Splits the wanted pages at the borders.
    fn prefetch(
        &mut self,
        now: Nanoseconds,
        wanted: PageRange,
        write: bool,
        announced: bool,
        effects: &mut Vec<Effect>,
    ) {
        let mut next = wanted.first().0;
        while next < wanted.end() {
            let rest = PageRange::around(PageIndex(next), next, wanted.end());
            let run = self.alike(PageIndex(next), rest);
            next = run.end();
            let place = self.place(run.first());
            self.protocols[place].1.step(now, Input::Prefetch { wanted: run, write, announced }, effects);
        }
    }
}

impl Coherence for Ranges {
    fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        let (page, input) = match input {
            Input::Fault { page, write, wanted } => {
                (page, Input::Fault { page, write, wanted: self.alike(page, wanted) })
            }
            Input::Prefetch { wanted, write, announced } => {
                return self.prefetch(now, wanted, write, announced, effects);
            }
            Input::Message { message, .. } => {
                let is_late = matches!(message, Message::Retry { .. } | Message::Again { .. })
                    && !self.chosen.is_empty()
                    && !self.protocol(message.page()).can_lock();
                let is_unwanted =
                    message.piggybacked().is_some() && !self.protocol(message.page()).is_release_consistent();
                if is_late || is_unwanted && !self.chosen.is_empty() {
                    // No thread waits for these when all nodes meet to change the protocol, so they may still be on their
                    // way.
                    return;
                }
                (message.page(), input)
            }
            Input::Resumed { page } | Input::Alarm { page, .. } => (page, input),
            Input::Lock { range, .. } | Input::Unlock { range, .. } => (range.first(), input),
            Input::Stored { range }
            | Input::Notice { range, .. }
            | Input::Place { range, .. }
            | Input::Close { range } => {
                return self.split(now, range, input, effects);
            }
            Input::Changed { page } => (page, input),
            Input::Publish { .. } => {
                let running = self.protocols.iter_mut().map(|(_, running)| running);
                return running
                    .filter(|running| running.publishers() > 0)
                    .for_each(|running| running.step(now, input, effects));
            }
            Input::Gone { .. } | Input::Piggyback { .. } => {
                return self.protocols.iter_mut().for_each(|(_, protocol)| protocol.step(now, input, effects));
            }
        };
        let place = self.place(page);
        self.protocols[place].1.step(now, input, effects);
    }

    fn access(&self, page: PageIndex) -> Access {
        self.of(page).access(page)
    }

    fn may_hand_over(&self, page: PageIndex) -> bool {
        self.of(page).may_hand_over(page)
    }

    fn is_pending(&self, page: PageIndex) -> bool {
        self.of(page).is_pending(page)
    }

    fn owns(&self, page: PageIndex) -> bool {
        self.of(page).owns(page)
    }

    fn leaves_behind(&self, page: PageIndex) -> bool {
        self.of(page).leaves_behind(page)
    }

    fn is_untouched(&self, page: PageIndex) -> bool {
        self.of(page).is_untouched(page)
    }

    fn release(&mut self, page: PageIndex) {
        let place = self.place(page);
        self.protocols[place].1.release(page);
    }

    fn adopt(&mut self, page: PageIndex) {
        let place = self.place(page);
        self.protocols[place].1.adopt(page);
    }

    fn change(&mut self, range: PageRange, protocol: Protocol) -> Result<(), CannotChange> {
        let chosen = self.place_of(protocol)?;
        let to = usize::from(chosen);
        for page in range.pages() {
            let from = self.place(page);
            if from == to {
                continue;
            }
            let is_home = self.geometry.home_of(page) == self.geometry.me;
            debug_assert!(!is_home || self.may_hand_over(page), "{page} changes its protocol while it is away");
            let is_here = self.protocols[from].1.access(page) == Access::Write;
            debug_assert!(is_home || self.access(page) == Access::None, "{page} has two holders");
            self.protocols[from].1.release(page);
            if is_home && is_here {
                self.protocols[to].1.adopt(page);
            }
            let slot = self.slot(page);
            self.chosen[slot] = chosen;
        }
        Ok(())
    }

    fn lockable(&self, wanted: PageRange) -> Result<PageRange, PageRange> {
        let first = self.alike(wanted.first(), wanted);
        if self.protocol(first.first()).can_lock() { Ok(first) } else { Err(first) }
    }

    fn is_watched(&self, page: PageIndex) -> bool {
        self.of(page).is_watched(page)
    }

    fn has_twin(&self, page: PageIndex) -> bool {
        self.of(page).has_twin(page)
    }

    fn publishers(&self) -> u32 {
        self.protocols.iter().map(|(_, running)| running.publishers()).sum()
    }

    fn publishing(&self) -> u32 {
        self.protocols.iter().map(|(_, running)| running.publishing()).sum()
    }

    fn has_migratory(&self) -> bool {
        self.protocols.iter().any(|(_, running)| running.has_migratory())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::homes::{Home, Manager};

    fn ranges(me: u16) -> Ranges {
        let home = Home::Manager(Manager(NodeId(0)));
        let geometry =
            Geometry { me: NodeId(me), nodes: 2, founders: 2, pages: 16, shard: 0, shards: 1, home, marks: false };
        Ranges::new(Protocol::IVY, geometry)
    }

    fn run(first: u32, count: u32) -> PageRange {
        PageRange::new(PageIndex(first), count).unwrap()
    }

    #[test]
    fn one_call_locks_pages_of_one_protocol_that_has_locks() {
        let mut node = ranges(1);
        node.change(run(4, 4), "delay(lock(ivy))".parse().unwrap()).unwrap();
        node.change(run(8, 2), "lock(migrate)".parse().unwrap()).unwrap();
        let lockable = [run(0, 16), run(5, 11), run(8, 1), run(9, 7), run(10, 6)].map(|wanted| node.lockable(wanted));
        assert_eq!(lockable, [Err(run(0, 4)), Ok(run(5, 3)), Ok(run(8, 1)), Ok(run(9, 1)), Err(run(10, 6))]);
    }

    #[test]
    fn a_run_ends_where_another_protocol_begins() {
        let mut node = ranges(1);
        node.change(run(4, 4), Protocol::DYNAMIC).unwrap();
        assert_eq!(node.alike(PageIndex(5), run(0, 16)), run(4, 4));
        let mut effects = Vec::new();
        node.step(0, Input::Fault { page: PageIndex(3), write: false, wanted: run(0, 16) }, &mut effects);
        node.step(0, Input::Prefetch { wanted: run(2, 14), write: true, announced: true }, &mut effects);
        let asked: Vec<PageRange> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Send { message, .. } => message.asks().map(|asked| asked.range),
                _ => None,
            })
            .collect();
        assert_eq!(asked, [run(0, 4), run(4, 4), run(8, 8)]);
    }

    #[test]
    fn a_page_keeps_its_holder_when_its_protocol_changes() {
        let mut home = ranges(0);
        let mut effects = Vec::new();
        home.step(0, Input::Fault { page: PageIndex(2), write: true, wanted: run(2, 1) }, &mut effects);
        home.step(0, Input::Resumed { page: PageIndex(2) }, &mut effects);
        assert!(home.may_hand_over(PageIndex(2)) && home.may_hand_over(PageIndex(3)));
        home.change(run(0, 8), Protocol::DYNAMIC).unwrap();
        assert_eq!((home.access(PageIndex(2)), home.access(PageIndex(3))), (Access::Write, Access::None));
        assert!(home.is_untouched(PageIndex(3)) && !home.is_untouched(PageIndex(2)));
        home.change(run(0, 8), Protocol::IVY).unwrap();
        assert_eq!(home.access(PageIndex(2)), Access::Write);
        assert_eq!(home.protocol(PageIndex(2)), Protocol::IVY);
    }

    #[test]
    fn a_region_has_a_bounded_number_of_protocols() {
        let mut node = ranges(0);
        let protocol = |number: u32| format_of(number).parse().unwrap();
        for number in 1..PROTOCOLS_MAX as u32 {
            node.change(run(number, 1), protocol(number)).unwrap();
        }
        assert_eq!(node.change(run(0, 1), protocol(99)), Err(CannotChange));
        assert_eq!(node.protocol(PageIndex(0)), Protocol::IVY);
    }

    fn format_of(number: u32) -> alloc::string::String {
        alloc::format!("delay(ivy, {number}us)")
    }
}
