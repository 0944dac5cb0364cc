//! How a memory server handles requests that change something: objects, writes, and commits under a lease.
//!
//! Promises: effects have the order that the parent module describes. The pages of an object are zeroed before they are
//! published, published before they are named, and published as gone before they are given again. Bytes are staged before a
//! decision about them, and written before the answer. It must never answer before the bytes are in place.

use super::{AccessKind, Client, Decision, Effect, End, Lease, Leases, MemoryServer, Object, Staged, Taken, reply};
use crate::Nanoseconds;
use crate::wire::address::{Arguments, PAGE_BYTES, Pointer};
use crate::wire::command::Command;
use crate::wire::datagram::{Body, Extent, Reply, Request, Status};
use alloc::vec::Vec;

impl MemoryServer {
    pub(super) fn create(&mut self, request: &Request, bytes: u64, effects: &mut Vec<Effect>) -> End {
        match self.make(request, bytes) {
            Err(status) => End::Refused(status),
            Ok(object) => {
                effects.push(Effect::Zero { offset: object.offset(), bytes: object.pages * PAGE_BYTES });
                effects.push(Effect::Publish { first_page: object.first_page, pages: object.pages });
                self.named(&object)
            }
        }
    }

    /// CREATE_WRITE: an object that is made when all of its bytes have come.
    pub(super) fn create_write(
        &mut self,
        now: Nanoseconds,
        request: &Request,
        extent: Extent,
        leases: &mut impl Leases,
        effects: &mut Vec<Effect>,
    ) -> Option<End> {
        let mut slot = None;
        if extent.is_several {
            match self.stage(now, request, extent, effects)? {
                Err(status) => return Some(End::Refused(status)),
                Ok(whole) => slot = Some(whole),
            }
            // The request id is remembered, so the slot need not be.
            self.staging.free(key(request));
        }
        let object = match self.make(request, extent.total.into()) {
            Ok(object) => object,
            Err(status) => return Some(End::Refused(status)),
        };
        leases.made_with_bytes(object.first_page, object.pages);
        let offset = object.offset();
        effects.push(match slot {
            Some(slot) => Effect::WriteStaged { slot, offset, bytes: extent.total },
            None => Effect::Write { offset, at: extent.at, bytes: extent.bytes },
        });
        let rest = object.pages * PAGE_BYTES - object.bytes;
        if rest > 0 {
            effects.push(Effect::Zero { offset: offset + object.bytes, bytes: rest });
        }
        effects.push(Effect::Publish { first_page: object.first_page, pages: object.pages });
        Some(self.named(&object))
    }

    /// Makes an object for a host, if its quota and the memory allow it.
    fn make(&mut self, request: &Request, bytes: u64) -> Result<Object, Status> {
        if bytes == 0 {
            return Err(Status::Malformed);
        }
        let host = request.source.host;
        let (quota_bytes, used_bytes) = self.quota(host);
        // In whole pages, because no other object can have the rest of the last one.
        let whole = bytes.div_ceil(PAGE_BYTES).checked_mul(PAGE_BYTES).ok_or(Status::NoMemory)?;
        if whole > self.objects.table.pages() * PAGE_BYTES {
            return Err(Status::NoMemory);
        }
        if whole > quota_bytes.saturating_sub(used_bytes) {
            return Err(Status::Quota);
        }
        let goes_with_session = request.destination.arguments.has(Arguments::OF_SESSION);
        let session = goes_with_session.then_some((Client::of(&request.source), request.epoch));
        let object = self.objects.create(bytes, host, session).ok_or(Status::NoMemory)?;
        *self.used_bytes.entry(host).or_default() += whole;
        Ok(object)
    }

    pub(super) fn delete(
        &mut self,
        now: Nanoseconds,
        request: &Request,
        leases: &mut impl Leases,
        effects: &mut Vec<Effect>,
    ) -> End {
        let pointer = request.destination.pointer;
        if let Err(status) = self.objects.table.check(pointer.generation(), pointer.offset(), 1) {
            return End::Refused(status);
        }
        let object = self.objects.at(pointer.page()).copied();
        let Some(object) = object.filter(|object| object.offset() == pointer.offset()) else {
            return End::Refused(Status::Bounds);
        };
        if self.is_lent(&object) {
            return End::Refused(Status::Busy);
        }
        if let Err(end) = self.admit(now, request, object.bytes, AccessKind::Delete, leases) {
            return end;
        }
        self.remove(&object, leases, effects);
        End::Body(Status::Ok, Body::Nothing)
    }

    /// Removes the objects whose sessions are over.
    pub(super) fn remove_orphans(&mut self, leases: &mut impl Leases, effects: &mut Vec<Effect>) {
        if self.sessions.ended == self.sessions_seen {
            return;
        }
        self.sessions_seen = self.sessions.ended;
        let is_over = |(client, epoch)| !self.sessions.is_open(client, epoch);
        let orphans: Vec<Object> =
            self.objects.all().filter(|object| object.session.is_some_and(is_over)).copied().collect();
        for object in &orphans {
            if !self.is_lent(object) {
                self.remove(object, leases, effects);
            }
        }
    }

    /// Whether some of its pages are elsewhere. If so, they are wanted back.
    fn is_lent(&mut self, object: &Object) -> bool {
        let lent = self.objects.lent_in(object.first_page, object.pages);
        self.wants_back = lent.or(self.wants_back);
        lent.is_some()
    }

    fn remove(&mut self, object: &Object, leases: &mut impl Leases, effects: &mut Vec<Effect>) {
        leases.forget(object.first_page, object.pages);
        self.objects.delete(object.first_page);
        if let Some(used) = self.used_bytes.get_mut(&object.maker) {
            *used -= object.pages * PAGE_BYTES;
            if *used == 0 {
                self.used_bytes.remove(&object.maker);
            }
        }
        effects.push(Effect::Publish { first_page: object.first_page, pages: object.pages });
    }

    /// Generation 0 asks for whatever object is there now.
    pub(super) fn inquire(&self, pointer: Pointer) -> End {
        let object = self.objects.at(pointer.page());
        if pointer.generation() != 0
            && let Err(status) = self.objects.table.check(pointer.generation(), pointer.offset(), 1)
        {
            return End::Refused(status);
        }
        match object.filter(|object| pointer.offset() - object.offset() < object.bytes) {
            Some(object) => self.named(object),
            None => End::Refused(Status::Bounds),
        }
    }

    pub(super) fn write(
        &mut self,
        now: Nanoseconds,
        request: &Request,
        extent: Extent,
        leases: &mut impl Leases,
        effects: &mut Vec<Effect>,
    ) -> Option<End> {
        let pointer = request.destination.pointer;
        if let Err(end) = self.admit(now, request, extent.total.into(), AccessKind::Write, leases) {
            // No datagram of it is kept: the next one starts again.
            self.staging.give_up(key(request));
            return Some(end);
        }
        let offset = pointer.offset();
        if extent.is_several {
            match self.stage(now, request, extent, effects)? {
                Err(status) => return Some(End::Refused(status)),
                Ok(slot) => effects.push(Effect::WriteStaged { slot, offset, bytes: extent.total }),
            }
            self.staging.done(key(request));
        } else {
            effects.push(Effect::Write { offset, at: extent.at, bytes: extent.bytes });
        }
        Some(End::Body(Status::Ok, Body::Nothing))
    }

    /// Bytes of one page under a lease: they are staged, and the lease server decides.
    pub(super) fn commit(
        &mut self,
        now: Nanoseconds,
        request: &Request,
        extent: Extent,
        effects: &mut Vec<Effect>,
    ) -> Option<End> {
        let pointer = request.destination.pointer;
        if let Err(status) = self.objects.table.check(pointer.generation(), pointer.offset(), extent.total.into()) {
            return Some(End::Refused(status));
        }
        if pointer.offset() % PAGE_BYTES + u64::from(extent.total) > PAGE_BYTES {
            return Some(End::Refused(Status::Bounds));
        }
        match self.stage(now, request, extent, effects)? {
            Err(status) => Some(End::Refused(status)),
            Ok(slot) => {
                self.staging.hand(key(request));
                let staged = Some(Staged { slot, bytes: extent.total });
                effects.push(Effect::Lease(Lease { request: *request, staged }));
                None
            }
        }
    }

    /// Keeps the bytes of a datagram. `None`: others are missing, or the datagram came again, and the answer is given.
    fn stage(
        &mut self,
        now: Nanoseconds,
        request: &Request,
        extent: Extent,
        effects: &mut Vec<Effect>,
    ) -> Option<Result<u32, Status>> {
        let Extent { at, bytes, position, .. } = extent;
        let mut keep = |slot: u32| effects.push(Effect::Stage { slot, position, at, bytes });
        match self.staging.take(now, key(request), request.destination.identity().encode(), &extent) {
            Taken::Whole(slot) => {
                keep(slot);
                Some(Ok(slot))
            }
            Taken::Missing(slot, received) => {
                keep(slot);
                let taken = reply(request, Status::Ok, Body::Taken { position, received });
                self.say(request, Reply { is_last: false, ..taken }, 0, effects);
                None
            }
            Taken::Done => {
                self.repeated += 1;
                self.say(request, reply(request, Status::Ok, Body::Nothing), 0, effects);
                None
            }
            Taken::Handed => {
                self.repeated += 1;
                None
            }
            Taken::Full => Some(Err(Status::Busy)),
            Taken::Other => Some(Err(Status::Malformed)),
        }
    }

    /// Carries out a decision of the lease server.
    pub(super) fn decided(&mut self, lease: &Lease, decision: Decision, effects: &mut Vec<Effect>) {
        let request = &lease.request;
        let pointer = request.destination.pointer;
        let is_there = self.objects.table.check(pointer.generation(), pointer.offset(), 1);
        if let Some(Staged { slot, .. }) = lease.staged {
            // Already decided: only the first decision has bytes.
            if !self.staging.is_handed(key(request), slot) {
                return;
            }
            self.staging.free(key(request));
        }
        let mut offset = pointer.offset();
        let (status, epoch, body) = match (decision, is_there) {
            (Decision::Silent, _) => return,
            (Decision::Refused { status, epoch }, _) => (status, epoch, Body::Nothing),
            (Decision::Moved { to, epoch }, _) => (Status::Moved, epoch, Body::Moved(to)),
            (Decision::Counted { epoch }, _) => (Status::Ok, epoch, Body::Nothing),
            // Deleted in the meantime.
            (_, Err(status)) => (status, request.epoch, Body::Nothing),
            (Decision::Granted { epoch, term, is_known }, Ok(())) => {
                offset = pointer.page() * PAGE_BYTES;
                let valid = self.objects.table.entry(pointer.page()).map_or(0, |entry| entry.valid_bytes);
                let bytes = if request.command() == Command::Renew || is_known { 0 } else { u32::from(valid) };
                (Status::Ok, epoch, Body::Leased { term, bytes })
            }
            (Decision::Done { epoch }, Ok(())) => {
                if let Some(Staged { slot, bytes }) = lease.staged {
                    effects.push(Effect::WriteStaged { slot, offset, bytes });
                }
                (Status::Ok, epoch, Body::Nothing)
            }
        };
        let is_release = request.is_release && status == Status::Ok;
        self.say(request, Reply { epoch, is_release, ..reply(request, status, body) }, offset, effects);
    }

    fn named(&self, object: &Object) -> End {
        let super::Settings { cluster, home, .. } = self.settings;
        match Pointer::new(cluster, home, object.generation, object.offset()) {
            Some(pointer) => End::Body(Status::Ok, Body::Object { pointer, bytes: object.bytes }),
            None => unreachable!("the memory ends before the offsets do"),
        }
    }
}

fn key(request: &Request) -> super::staging::Key {
    (Client::of(&request.source), request.source.request)
}
