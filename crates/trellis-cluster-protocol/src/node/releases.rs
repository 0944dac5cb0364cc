//! Releases and acquires, as decisions that need several parts of a node, one after the other.
//!
//! A node that is about to release something publishes what it stored: [`look_for_stores`], [`publish`], a wait until the
//! publication is over ([`Parts::publication_is_over`]), [`Consistency::end`] even if it took too long. After an acquire it
//! applies what was released to it ([`Consistency::refresh`], [`apply`]). A message that may release something is used when everything that it
//! depends on is known ([`hear`]). Before the token of a lock leaves, the pages that go with it are sent ([`with_token`]).
//!
//! Promises: each part is stepped alone, and no part is held while another one is stepped, except the knowledge of
//! releases, which shards need. A shard owes its answer before it is told to publish. It must never wait.

use super::{Carrier, Consistency, Piggybacking, PublicationLimits, step};
use crate::coherence::Input;
use crate::coherence::hlrc::intervals::Notice;
use crate::page::{CHUNK_PAGES, NodeId, PageIndex, PageRange, runs};
use crate::sync::{self, Sync};
use crate::wire::Message;
use alloc::vec::Vec;
use core::ops::{DerefMut, Range};

/// The knowledge of releases, which is reached while a shard is held too.
pub trait Releases {
    /// See [`Carrier::Breach`].
    type Breach;

    /// The knowledge of releases.
    fn consistency(&mut self) -> impl DerefMut<Target = Consistency>;

    /// The publication for which this thread waits is over.
    fn publication_is_over(&mut self, publisher: u32);
}

/// A shard under release consistency that is held.
pub trait Publishes: Carrier + Releases<Breach = <Self as Carrier>::Breach> {
    /// Passes to [`super::Shard::look_for_stores`] how pages are compared and protected.
    ///
    /// # Errors
    ///
    /// As [`Carrier::carry_out`].
    fn look_for_stores(&mut self, stored: &mut Vec<PageIndex>) -> Result<(), <Self as Carrier>::Breach>;
}

/// The parts of a node. Each is held alone, for as long as something is done with it.
pub trait Parts: Releases {
    /// A shard that is held.
    type Held<'a>: Publishes + Carrier<Breach = <Self as Releases>::Breach>;
    /// Locks, barriers and other objects, when they are held.
    type Synchronisation: AsRef<Sync>;

    /// The number of shards.
    fn shards(&self) -> u32;

    /// Holds a shard.
    fn with_shard<R>(&mut self, shard: u32, act: impl FnOnce(&mut Self::Held<'_>) -> R) -> R;

    /// Holds the shard of `page`.
    fn with_shard_of<R>(&mut self, page: PageIndex, act: impl FnOnce(&mut Self::Held<'_>) -> R) -> R {
        self.with_shard(page.0 / CHUNK_PAGES % self.shards(), act)
    }

    /// Holds the objects.
    fn with_synchronisation<R>(&mut self, act: impl FnOnce(&mut Self::Synchronisation) -> R) -> R;

    /// Whether some page is under release consistency.
    fn has_releases(&self) -> bool;

    /// Whether stores may have to be looked for in this shard.
    fn is_watching(&self, shard: u32) -> bool;

    /// Passes to `found` those of `pages` that the kernel marked.
    ///
    /// # Errors
    ///
    /// Those of `found`.
    fn stores_in(
        &mut self,
        pages: Range<u32>,
        found: impl FnMut(&mut Self, Range<u32>) -> Result<(), <Self as Releases>::Breach>,
    ) -> Result<(), <Self as Releases>::Breach>;

    /// The pages that may go with the token of a lock to `to`.
    fn piggybacking(&self, to: NodeId) -> Piggybacking;

    /// Uses a message about objects or the heap.
    ///
    /// # Errors
    ///
    /// As [`Carrier::carry_out`].
    fn use_message(&mut self, from: NodeId, message: Message) -> Result<(), <Self as Releases>::Breach>;

    /// No correct peer sends this.
    ///
    /// # Errors
    ///
    /// As [`Carrier::carry_out`].
    fn refuse(&mut self, from: NodeId, why: &'static str) -> Result<(), <Self as Releases>::Breach>;
}

/// The outcome of a decision.
type Outcome<P> = Result<(), <P as Releases>::Breach>;

/// Tells the protocols which pages were stored to: they stay open and differ from their twins, or the kernel marked them.
/// `chunks` is room for the pages at which the kernel looks.
///
/// # Errors
///
/// Those of [`step`].
pub fn look_for_stores<P: Parts>(parts: &mut P, chunks: &mut Vec<PageRange>) -> Outcome<P> {
    chunks.clear();
    let mut stored = Vec::new();
    for number in 0..parts.shards() {
        if !parts.is_watching(number) {
            continue;
        }
        parts.with_shard(number, |held| {
            held.look_for_stores(&mut stored)?;
            for page in stored.drain(..) {
                take(held, Input::Stored { range: PageRange::one(page) })?;
            }
            chunks.extend(held.shard().watched());
            Ok(())
        })?;
    }
    chunks.sort_unstable_by_key(|pages| pages.first());
    for run in chunks.chunk_by(|one, next| one.end() == next.first().0) {
        parts.stores_in(run[0].first().0..run[run.len() - 1].end(), |parts, found| {
            runs(found).try_for_each(|run| parts.with_shard_of(run.first(), |held| note_marked(held, run)))
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
///
/// # Errors
///
/// Those of [`step`].
pub fn publish<P: Parts>(parts: &mut P, publisher: u32, limits: &PublicationLimits) -> Outcome<P> {
    parts.consistency().begin(publisher);
    for number in 0..parts.shards() {
        parts.with_shard(number, |held| match held.shard().publish(limits) {
            Some((input, owed)) => {
                held.consistency().owes(owed);
                take(held, input)
            }
            None => Ok(()),
        })?;
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

/// Applies what was released to this node ([`Consistency::refresh`]).
///
/// # Errors
///
/// Those of [`step`].
pub fn apply<P: Parts>(parts: &mut P, mut notices: impl Iterator<Item = Notice>) -> Outcome<P> {
    notices.try_for_each(|Notice { range, stamp }| {
        parts.with_shard_of(range.first(), |held| take(held, Input::Notice { range, stamp }))
    })
}

/// Learns what is attached to a message that releases something ([`Message::releases`]). It is used now, or after what it
/// depends on; earlier messages may have waited for what was learnt.
///
/// # Errors
///
/// Those of [`Parts::use_message`] and [`Parts::refuse`].
pub fn hear<P: Parts>(parts: &mut P, from: NodeId, message: Message, attached: &[u8]) -> Outcome<P> {
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
///
/// # Errors
///
/// Those of [`step`].
#[inline]
pub fn with_token<P: Parts, R>(
    parts: &mut P,
    input: &sync::Input,
    act: impl FnOnce(&mut P::Synchronisation) -> R,
) -> Result<R, <P as Releases>::Breach> {
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
fn piggyback<P: Parts>(parts: &mut P, to: NodeId) -> Outcome<P> {
    let mut piggybacking = parts.piggybacking(to);
    for number in 0..parts.shards() {
        if piggybacking.is_over() {
            break;
        }
        parts.with_shard(number, |held| {
            if let Some(input) = piggybacking.of(&held.shard().protocol) {
                piggybacking.sent(step(held, input, Default::default())?);
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The shard takes a fact with which nothing came.
fn take<C: Carrier>(held: &mut C, input: Input) -> Result<(), C::Breach> {
    step(held, input, C::Attached::default()).map(drop)
}
