//! Releases and acquires, as decisions that need several parts of a node, one after the other.
//!
//! A node that is about to release something publishes what it stored: [`look_for_stores`], [`publish`], a wait until the
//! publication is over ([`Releases::publication_is_over`]), [`Consistency::end`] even if it took too long. After an acquire it
//! applies what was released to it ([`Consistency::refresh`], [`apply`]). A message that may release something is used when everything that it
//! depends on is known ([`hear`]). Before the token of a lock leaves, the pages that go with it are sent ([`with_token`]).
//!
//! Promises: each part is stepped alone, and no part is held while another one is stepped, except the knowledge of
//! releases, which shards need. A shard owes its answer before it is told to publish. It must never wait.

use super::{Carrier, Consistency, Parts, Piggybacking, PublicationLimits, step, take};
use crate::coherence::Input;
use crate::coherence::hlrc::intervals::Notice;
use crate::page::{NodeId, PageRange, runs};
use crate::sync::{self, Sync, Waiter};
use crate::wire::Message;
use alloc::vec::Vec;
use core::ops::{DerefMut, Range};

/// The knowledge that a node has of releases. It is reached while a shard is held too.
pub trait Releases {
    /// The knowledge of releases.
    fn consistency(&mut self) -> impl DerefMut<Target = Consistency>;

    /// The publication for which this thread waits is over.
    fn publication_is_over(&mut self, publisher: Waiter);
}

/// A node under release consistency.
pub trait Publisher: Parts + Releases {
    /// Locks, barriers and other objects, when they are held.
    type Synchronisation: AsRef<Sync>;

    /// Holds the objects.
    fn with_synchronisation<R>(&mut self, act: impl FnOnce(&mut Self::Synchronisation) -> R) -> R;

    /// Whether some page is under release consistency.
    fn has_releases(&mut self) -> bool;

    /// Whether stores may have to be looked for in this shard.
    fn is_watching(&mut self, shard: u32) -> bool;

    /// Passes to `found` those of `pages` that the kernel marked.
    fn stores_in(
        &mut self,
        pages: Range<u32>,
        found: impl FnMut(&mut Self, Range<u32>) -> Result<(), Self::Breach>,
    ) -> Result<(), Self::Breach>;

    /// The pages that may go with the token of a lock to `to`.
    fn piggybacking(&self, to: NodeId) -> Piggybacking;

    /// Uses a message about objects or the heap.
    fn use_message(&mut self, from: NodeId, message: Message) -> Result<(), Self::Breach>;

    /// No correct peer sends this.
    fn refuse(&mut self, from: NodeId, why: &'static str) -> Result<(), Self::Breach>;
}

/// The outcome of a decision.
type Outcome<P> = Result<(), <P as Parts>::Breach>;

/// Tells the protocols which pages were stored to: they stay open and differ from their twins, or the kernel marked them.
/// `chunks` is room for the pages at which the kernel looks.
pub fn look_for_stores<P: Publisher>(parts: &mut P, chunks: &mut Vec<PageRange>) -> Outcome<P> {
    chunks.clear();
    let mut stored = Vec::new();
    for number in 0..parts.shards() {
        if !parts.is_watching(number) {
            continue;
        }
        let mut held = parts.hold(number);
        held.look_for_stores(&mut stored)?;
        for page in stored.drain(..) {
            take(&mut held, Input::Stored { range: PageRange::one(page) })?;
        }
        chunks.extend(held.shard().watched());
    }
    chunks.sort_unstable_by_key(|pages| pages.first());
    for run in chunks.chunk_by(|one, next| one.end() == next.first().0) {
        parts.stores_in(run[0].first().0..run[run.len() - 1].end(), |parts, found| {
            runs(found).try_for_each(|run| note_marked(&mut parts.hold_of(run.first()), run))
        })?;
    }
    Ok(())
}

/// The kernel marked the pages of `run`.
fn note_marked<C: Carrier>(held: &mut C, run: PageRange) -> Result<(), C::Breach> {
    let mut rest = Some(run);
    while let Some(range) = rest.and_then(|rest| held.shard().marked(rest)) {
        take(held, Input::Stored { range })?;
        rest = run.from(range.end());
    }
    Ok(())
}

/// Every shard publishes; thread `publisher` waits until the publication is over.
pub fn publish<P: Publisher>(parts: &mut P, publisher: Waiter, limits: &PublicationLimits) -> Outcome<P> {
    parts.consistency().begin(publisher);
    for number in 0..parts.shards() {
        let mut held = parts.hold(number);
        if let Some((input, owed)) = held.shard().publish(limits) {
            held.owes(owed);
            take(&mut held, input)?;
        }
    }
    published(parts);
    Ok(())
}

/// A shard has answered ([`crate::coherence::Effect::Published`]), or all have been told to publish.
pub fn published(releases: &mut impl Releases) {
    let publisher = releases.consistency().published();
    if let Some(publisher) = publisher {
        releases.publication_is_over(publisher);
    }
}

/// A call of the program is about to reach the objects.
pub fn enters<P: Publisher>(parts: &mut P, call: &sync::Input) {
    if let sync::Input::Arrive(barrier, ..) = *call
        && parts.has_releases()
    {
        parts.consistency().knowledge.comes_to_barrier(barrier);
    }
}

/// The call was answered, or its thread waits no longer.
pub fn leaves<P: Publisher>(parts: &mut P, call: &sync::Input, is_answered: bool) {
    if let sync::Input::Arrive(barrier, ..) = *call
        && parts.has_releases()
    {
        parts.consistency().knowledge.leaves_barrier(barrier, is_answered);
    }
}

/// Applies what was released to this node ([`Consistency::refresh`]).
pub fn apply<P: Publisher>(parts: &mut P, mut notices: impl Iterator<Item = Notice>) -> Outcome<P> {
    notices
        .try_for_each(|Notice { range, stamp }| take(&mut parts.hold_of(range.first()), Input::Notice { range, stamp }))
}

/// Drops every copy, whether or not it is older than what was released to this node: a program that lacks synchronisation
/// fails more often then. The kernel makes marks, which say where copies may be.
pub fn drop_copies<P: Publisher>(parts: &mut P) -> Outcome<P> {
    for number in 0..parts.shards() {
        let chunks: Vec<PageRange> = parts.hold(number).shard().watched().collect();
        for range in chunks {
            take(&mut parts.hold(number), Input::Notice { range, stamp: u64::MAX })?;
        }
    }
    Ok(())
}

/// Learns what is attached to a message that releases something ([`Message::releases`]). It is used now, or after what it
/// depends on; earlier messages may have waited for what was learnt.
pub fn hear<P: Publisher>(parts: &mut P, from: NodeId, message: Message, attached: &[u8]) -> Outcome<P> {
    let heard = parts.consistency().knowledge.hear(from, message, attached);
    let mut next = heard.transpose().map(|heard| (from, heard));
    while let Some((from, heard)) = next {
        match heard {
            Ok(message) => parts.use_message(from, message)?,
            Err(why) => parts.refuse(from, why)?,
        }
        next = parts.consistency().knowledge.next_usable();
    }
    Ok(())
}

/// Holds the objects for `input`. If it makes the token of a lock leave this node, the pages that go with the token have
/// been sent.
///
/// They are sent while the objects are not held, so a node may request the lock meanwhile, or a thread may take it. These
/// pages then arrive like a message that was overtaken, which the protocols allow.
#[inline]
pub fn with_token<P: Publisher, R>(
    parts: &mut P,
    input: &sync::Input,
    act: impl FnOnce(&mut P::Synchronisation) -> R,
) -> Result<R, <P as Parts>::Breach> {
    if !parts.has_releases() {
        return Ok(parts.with_synchronisation(act));
    }
    let (mut act, mut sent_to) = (Some(act), None);
    loop {
        let acted = parts.with_synchronisation(|objects| {
            match (*objects).as_ref().token_goes_to(input).filter(|to| Some(*to) != sent_to) {
                Some(to) => Err(to),
                None => Ok(act.take().expect("it ends the loop")(objects)),
            }
        });
        match acted {
            Ok(acted) => return Ok(acted),
            Err(to) => {
                piggyback(parts, to)?;
                sent_to = Some(to);
            }
        }
    }
}

/// Sends the pages that this node published last to `to`, the next holder of a lock.
fn piggyback<P: Publisher>(parts: &mut P, to: NodeId) -> Outcome<P> {
    let mut piggybacking = parts.piggybacking(to);
    for number in 0..parts.shards() {
        if piggybacking.is_over() {
            break;
        }
        let mut held = parts.hold(number);
        if let Some(input) = piggybacking.of(&held.shard().protocol) {
            piggybacking.sent(step(&mut held, input, Default::default())?);
        }
    }
    Ok(())
}
