//! Releases and acquires, as decisions that need several parts of a node, one after the other.
//!
//! A node that is about to release something publishes what it stored: [`look_for_stores`], [`publish`], a wait until the
//! publication is over ([`Releases::publication_is_over`]), [`Consistency::end`] even if it took too long. After an acquire it
//! applies what was released to it ([`acquired`], [`apply`]). A message that may release something is used when everything that it
//! depends on is known ([`hear`]). Before the token of a lock leaves, the pages that go with it are sent ([`with_token`]).
//!
//! Promises: each part is stepped alone, and no part is held while another one is stepped, except the knowledge of
//! releases, which shards need. A shard owes its answer before it is told to publish. It must never wait.

use super::dispatch::{Outcome, use_message};
use super::{Carrier, Consistency, Holds, Piggybacking, PublicationLimits, Refreshing, Whole, step, take};
use crate::coherence::Input;
use crate::coherence::hlrc::intervals::Notice;
use crate::page::{NodeId, PageRange, runs};
use crate::sync::{self, Waiter};
use crate::wire::Message;
use alloc::vec::Vec;
use core::ops::DerefMut;

/// The knowledge that a node has of releases. It is reached while a shard is held too.
pub trait Releases {
    /// The knowledge of releases.
    fn consistency(&mut self) -> impl DerefMut<Target = Consistency>;

    /// The publication for which this thread waits is over.
    fn publication_is_over(&mut self, publisher: Waiter);
}

/// Tells the protocols which pages were stored to: they stay open and differ from their twins, or the kernel marked them.
/// `chunks` is room for the pages at which the kernel looks.
pub fn look_for_stores<P: Whole>(parts: &mut P, chunks: &mut Vec<PageRange>) -> Outcome<P> {
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
pub fn publish<P: Whole>(parts: &mut P, publisher: Waiter, limits: &PublicationLimits) -> Outcome<P> {
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
pub fn enters<P: Whole>(parts: &mut P, call: &sync::Input) {
    if let sync::Input::Arrive(barrier, ..) = *call
        && parts.has_releases()
    {
        parts.consistency().knowledge.comes_to_barrier(barrier);
    }
}

/// The call was answered, or its thread waits no longer.
pub fn leaves<P: Whole>(parts: &mut P, call: &sync::Input, is_answered: bool) {
    if let sync::Input::Arrive(barrier, ..) = *call
        && parts.has_releases()
    {
        parts.consistency().knowledge.leaves_barrier(barrier, is_answered);
    }
}

/// Returns the notices of what this node acquired, if there are any. [`apply`] applies them before the acquire ends, and
/// drops the copies that they outdate. With `drops_all`, every copy is dropped first.
pub fn acquired<P: Whole>(parts: &mut P, drops_all: bool) -> Result<Option<Refreshing>, <P as super::Parts>::Breach> {
    if drops_all {
        drop_copies(parts)?;
    }
    Ok(parts.consistency().refresh())
}

/// Applies what was released to this node ([`acquired`]).
pub fn apply<P: Whole>(parts: &mut P, mut notices: impl Iterator<Item = Notice>) -> Outcome<P> {
    notices
        .try_for_each(|Notice { range, stamp }| take(&mut parts.hold_of(range.first()), Input::Notice { range, stamp }))
}

/// Drops every copy, whether or not it is older than what was released to this node: a program that lacks synchronisation
/// fails more often then. The kernel makes marks, which say where copies may be.
fn drop_copies<P: Whole>(parts: &mut P) -> Outcome<P> {
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
pub fn hear<P: Whole>(parts: &mut P, from: NodeId, message: Message, attached: &[u8]) -> Outcome<P> {
    let heard = parts.consistency().knowledge.hear(from, message, attached);
    let mut next = heard.transpose().map(|heard| (from, heard));
    while let Some((from, heard)) = next {
        match heard {
            Ok(message) => use_message(parts, from, message)?,
            Err(why) => parts.breach(from, why)?,
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
pub fn with_token<P: Whole, R>(
    parts: &mut P,
    input: &sync::Input,
    act: impl FnOnce(&mut P::Objects) -> R,
) -> Result<R, <P as super::Parts>::Breach> {
    if !parts.has_releases() {
        return Ok(parts.with_objects(act));
    }
    let (mut act, mut sent_to) = (Some(act), None);
    loop {
        let acted =
            parts.with_objects(|objects| match objects.part().token_goes_to(input).filter(|to| Some(*to) != sent_to) {
                Some(to) => Err(to),
                None => Ok(act.take().expect("it ends the loop")(objects)),
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
fn piggyback<P: Whole>(parts: &mut P, to: NodeId) -> Outcome<P> {
    let mut piggybacking = Piggybacking::new(to, parts.page_bytes(), parts.has_changed_protocols());
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
