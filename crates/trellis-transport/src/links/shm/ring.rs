//! One direction of a pair in shared memory: slots of one cache line each, and a ring of bytes beside them.
//!
//! Promises: a slot becomes visible only after it and its bytes are completely written. Everything that the other side
//! wrote is checked before it is used as an index, and copied before it is examined. Nothing here makes a system call.
//!
//! It must never wait, wake a thread, or depend on the meaning of a frame.
//!
//! # Layout
//!
//! A frame takes a slot: its header, and how many bytes follow in the byte ring, or where they lie in the sender's
//! shared memory. A slot's *stamp* is its number since the start, plus one, and is written last. The receiver polls
//! the cache line in which the next frame will arrive, so a frame without a body crosses between two cores as one
//! line. A stamp of an earlier round never equals the expected one. A long body takes several slots.
//!
//! Each side counts for itself what it took or wrote. The receiver publishes its count in a separate line, which the
//! sender reads only when the room that it knows of is used up.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::HEADER_BYTES;

/// The maximum number of slots in flight.
pub(super) const SLOTS: u64 = 1024;
/// The maximum number of body bytes in flight, for bodies that do not lie in the sender's shared memory.
pub(super) const RING_BODY_BYTES: usize = 256 << 10;
/// A longer body is sent in pieces of this size, so that both sides copy at the same time.
pub(super) const PIECE_BYTES: usize = 32 << 10;
/// The alignment of bodies in the ring, in bytes.
const LINE_BYTES: usize = 64;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) header: [u8; HEADER_BYTES],
    /// The length of the whole body in bytes.
    pub(super) bytes: usize,
    /// The number of its bytes that belong to this slot.
    pub(super) here: usize,
    /// Where the body lies in the sender's shared memory.
    pub(super) offset: u64,
}

/// The purpose of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// A frame begins; its body is in the byte ring.
    Frame = 1,
    /// The body of the preceding frame continues.
    More = 2,
    /// A frame whose body lies in the sender's shared memory.
    Shared = 3,
}

/// One cache line, and the adjacent one that the processor prefetches.
#[repr(C, align(128))]
struct Apart<T>(T);

/// The start of a direction's memory. Each line is mostly written by one side.
#[repr(C)]
struct Control {
    /// Written by the receiver: the numbers of slots and bytes that it has taken.
    taken: Apart<[AtomicU64; 2]>,
    /// Written by the receiver: whether it must be woken when something arrives. The sender that wakes it clears the
    /// mark.
    sleeping: Apart<AtomicU32>,
    /// Written by the sender: whether it must be woken when there is room (the receiver that wakes it clears the mark),
    /// and whether it left before everything was taken, so that the content must not be used any more.
    waits: Apart<[AtomicU32; 2]>,
    /// Written by the receiver: whether it closed its link, and takes nothing any more.
    gone: Apart<AtomicU32>,
}

#[repr(C, align(64))]
struct Slot {
    stamp: AtomicU64,
    kind: AtomicU32,
    bytes: AtomicU32,
    here: AtomicU32,
    unused: AtomicU32,
    offset: AtomicU64,
    header: [AtomicU64; HEADER_BYTES / 8],
}

const CONTROL_BYTES: usize = 4096;
const SLOTS_BYTES: usize = SLOTS as usize * size_of::<Slot>();
/// The size of one direction.
pub(super) const RING_BYTES: usize = CONTROL_BYTES + SLOTS_BYTES + RING_BODY_BYTES;

const _: () = assert!(size_of::<Slot>() == LINE_BYTES && HEADER_BYTES == 32);
const _: () = assert!(size_of::<Control>() <= CONTROL_BYTES && CONTROL_BYTES.is_multiple_of(LINE_BYTES));
const _: () = assert!(RING_BODY_BYTES.is_power_of_two() && SLOTS.is_power_of_two());
const _: () = assert!(PIECE_BYTES.is_multiple_of(LINE_BYTES) && RING_BODY_BYTES >= 4 * PIECE_BYTES);

/// One direction's memory; valid as long as the mapping that it lies in.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    start: NonNull<u8>,
}

// SAFETY: everything but bodies is atomic. Bodies are written by the holder of the sending half and read by the holder
// of the receiving half, each behind a stamp or a count.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// # Safety
    ///
    /// [`RING_BYTES`] bytes from `start` on are mapped writable, at a multiple of 128, and initially zero, as long as
    /// any copy of the result is used.
    pub(super) unsafe fn at(start: NonNull<u8>) -> Ring {
        assert!(start.as_ptr().addr().is_multiple_of(align_of::<Control>()), "memory begins at a page");
        Ring { start }
    }

    #[inline]
    fn control(&self) -> &Control {
        // SAFETY: mapped, aligned, and atomics only, so any bytes are valid.
        unsafe { self.start.cast::<Control>().as_ref() }
    }

    #[inline]
    fn slot(&self, number: u64) -> &Slot {
        let index = (number % SLOTS) as usize;
        // SAFETY: `index` is below SLOTS, so the slot lies inside; mapped, aligned, atomics only.
        unsafe { self.start.add(CONTROL_BYTES).cast::<Slot>().add(index).as_ref() }
    }

    /// Whether slot `number` has been written.
    #[inline]
    pub(super) fn is_written(&self, number: u64) -> bool {
        self.slot(number).stamp.load(Ordering::Acquire) == number + 1
    }

    /// Requests a wake-up by the next frame, or not. The caller must then check for frames that arrived before.
    pub(super) fn set_sleeping(&self, sleeping: bool) {
        let mark = &self.control().sleeping.0;
        if mark.load(Ordering::Relaxed) != u32::from(sleeping) {
            mark.store(u32::from(sleeping), Ordering::SeqCst);
        }
    }

    /// Whether the receiver must be woken for what was just written; true once.
    #[inline]
    pub(super) fn takes_wake_of_receiver(&self) -> bool {
        // Between the write and this check: the receiver marks first and then checks, so at least one of the two sees
        // the other.
        fence(Ordering::SeqCst);
        let mark = &self.control().sleeping.0;
        mark.load(Ordering::Relaxed) != 0 && mark.swap(0, Ordering::SeqCst) != 0
    }

    /// Whether the sender must be woken for the room that was just made; true once.
    #[inline]
    pub(super) fn takes_wake_of_sender(&self) -> bool {
        fence(Ordering::SeqCst);
        let mark = &self.control().waits.0[0];
        mark.load(Ordering::Relaxed) != 0 && mark.swap(0, Ordering::SeqCst) != 0
    }

    /// Requests a wake-up when there is room. The caller must check for room afterwards.
    pub(super) fn wait_for_room(&self) {
        self.control().waits.0[0].store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Marks that the sender leaves before everything was taken: its memory may change from now on.
    pub(super) fn set_abandoned(&self) {
        self.control().waits.0[1].store(1, Ordering::SeqCst);
    }

    /// Whether [`Ring::set_abandoned`] was called.
    #[inline]
    pub(super) fn is_abandoned(&self) -> bool {
        self.control().waits.0[1].load(Ordering::Acquire) != 0
    }

    /// Marks that the receiver left: what is written now is not received.
    pub(super) fn set_gone(&self) {
        self.control().gone.0.store(1, Ordering::SeqCst);
    }

    /// Whether [`Ring::set_gone`] was called.
    pub(super) fn is_gone(&self) -> bool {
        self.control().gone.0.load(Ordering::SeqCst) != 0
    }

    /// Calls `each` with the one or two contiguous parts of the byte ring that hold `bytes` bytes from position `from`
    /// on.
    fn stretches(&self, from: u64, bytes: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
        assert!(bytes <= RING_BODY_BYTES, "checked by both callers");
        let at = (from % RING_BODY_BYTES as u64) as usize;
        let first = bytes.min(RING_BODY_BYTES - at);
        let ring = self.start.as_ptr().wrapping_add(CONTROL_BYTES + SLOTS_BYTES);
        each(ring.wrapping_add(at), 0, first);
        if bytes > first {
            each(ring, first, bytes - first);
        }
    }
}

#[cfg(test)]
impl Ring {
    /// Writes a slot as a hostile sender might, word by word.
    pub(super) fn forge_slot(&self, number: u64, words: [u64; LINE_BYTES / 8]) {
        let slot = self.slot(number);
        slot.kind.store(words[1] as u32, Ordering::Relaxed);
        slot.bytes.store((words[1] >> 32) as u32, Ordering::Relaxed);
        slot.here.store(words[2] as u32, Ordering::Relaxed);
        slot.offset.store(words[3], Ordering::Relaxed);
        slot.header.iter().zip(&words[4..]).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
        slot.stamp.store(words[0], Ordering::Release);
    }

    /// Shows counts as a hostile receiver might.
    pub(super) fn forge_taken(&self, slots: u64, bytes: u64) {
        self.control().taken.0[1].store(bytes, Ordering::Relaxed);
        self.control().taken.0[0].store(slots, Ordering::Release);
    }
}

/// The sending side's private state. Used under the lock of the sending half.
pub(super) struct Writer {
    ring: Ring,
    slot: u64,
    byte: u64,
    /// The checked number that the receiver published last.
    taken_slots: u64,
    taken_bytes: u64,
}

/// The counts that the receiver published are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Implausible;

impl Writer {
    pub(super) fn new(ring: Ring) -> Writer {
        Writer { ring, slot: 0, byte: 0, taken_slots: 0, taken_bytes: 0 }
    }

    pub(super) fn ring(&self) -> Ring {
        self.ring
    }

    /// Whether there is room for `slots` slots and `bytes` bytes of bodies.
    #[inline]
    pub(super) fn has_room(&mut self, slots: u64, bytes: usize) -> Result<bool, Implausible> {
        if self.fits(slots, bytes) {
            return Ok(true);
        }
        let taken = &self.ring.control().taken.0;
        let slots_now = taken[0].load(Ordering::Acquire);
        let bytes_now = taken[1].load(Ordering::Relaxed);
        let plausible =
            (self.taken_slots..=self.slot).contains(&slots_now) && (self.taken_bytes..=self.byte).contains(&bytes_now);
        if !plausible {
            return Err(Implausible);
        }
        (self.taken_slots, self.taken_bytes) = (slots_now, bytes_now);
        Ok(self.fits(slots, bytes))
    }

    #[inline]
    fn fits(&self, slots: u64, bytes: usize) -> bool {
        SLOTS - (self.slot - self.taken_slots) >= slots
            && RING_BODY_BYTES as u64 - (self.byte - self.taken_bytes) >= bytes.next_multiple_of(LINE_BYTES) as u64
    }

    /// The number of slots that the receiver has not taken.
    pub(super) fn untaken(&self) -> u64 {
        self.slot.saturating_sub(self.ring.control().taken.0[0].load(Ordering::Acquire))
    }

    /// Writes a slot; [`Writer::has_room`] must have found room for it.
    ///
    /// # Safety
    ///
    /// `body` is readable for `entry.here` bytes.
    #[inline]
    pub(super) unsafe fn write(&mut self, entry: &Entry, body: *const u8) {
        assert!(self.fits(1, entry.here), "there is room, or the receiver would lose what it has not seen");
        if entry.here > 0 {
            self.ring.stretches(self.byte, entry.here, |place, at, bytes| {
                // SAFETY: `place` lies in the byte ring for `bytes` bytes, which the receiver has taken. The caller
                // promises that `body` is readable; it is private memory or the region, never the ring.
                unsafe { place.copy_from_nonoverlapping(body.add(at), bytes) };
            });
        }
        let slot = self.ring.slot(self.slot);
        slot.kind.store(entry.kind as u32, Ordering::Relaxed);
        slot.bytes.store(entry.bytes as u32, Ordering::Relaxed);
        slot.here.store(entry.here as u32, Ordering::Relaxed);
        slot.offset.store(entry.offset, Ordering::Relaxed);
        for (word, bytes) in slot.header.iter().zip(entry.header.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        self.slot += 1;
        self.byte += entry.here.next_multiple_of(LINE_BYTES) as u64;
        slot.stamp.store(self.slot, Ordering::Release);
    }
}

/// The receiving side's private state. Used under the lock of the receiving half.
pub(super) struct Reader {
    ring: Ring,
    slot: u64,
    byte: u64,
    /// Bytes of the slot that was read and not yet released.
    here: usize,
}

impl Reader {
    pub(super) fn new(ring: Ring) -> Reader {
        Reader { ring, slot: 0, byte: 0, here: 0 }
    }

    /// The number of the next slot.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.slot
    }

    /// Reads the next slot, if it has been written; an error says what is wrong with it. The slot stays until
    /// [`Reader::release`].
    #[inline]
    pub(super) fn read(&mut self) -> Result<Option<Entry>, &'static str> {
        if !self.ring.is_written(self.slot) {
            return Ok(None);
        }
        let slot = self.ring.slot(self.slot);
        let mut header = [0; HEADER_BYTES];
        for (bytes, word) in header.as_chunks_mut::<8>().0.iter_mut().zip(&slot.header) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        let kind = match slot.kind.load(Ordering::Relaxed) {
            1 => Kind::Frame,
            2 => Kind::More,
            3 => Kind::Shared,
            _ => return Err("it wrote something that is no frame into the shared memory"),
        };
        let entry = Entry {
            kind,
            header,
            bytes: slot.bytes.load(Ordering::Relaxed) as usize,
            here: slot.here.load(Ordering::Relaxed) as usize,
            offset: slot.offset.load(Ordering::Relaxed),
        };
        if entry.here > RING_BODY_BYTES || entry.here > 0 && kind == Kind::Shared {
            return Err("it wrote a frame into the shared memory that is longer than there is room");
        }
        self.here = entry.here;
        Ok(Some(entry))
    }

    /// Copies the bytes that belong to the slot that was read.
    ///
    /// # Safety
    ///
    /// `place` is writable for as many bytes as the slot says.
    #[inline]
    pub(super) unsafe fn copy_to(&self, place: *mut u8) {
        self.ring.stretches(self.byte, self.here, |from, at, bytes| {
            // SAFETY: `from` lies in the byte ring for `bytes` bytes; `place` is valid by the caller's promise. If the
            // peer writes there during the copy, other bytes arrive, which it could have sent as well.
            unsafe { place.add(at).copy_from_nonoverlapping(from, bytes) };
        });
    }

    /// Returns the slot that was read, and its bytes, to the sender.
    #[inline]
    pub(super) fn release(&mut self) {
        self.slot += 1;
        self.byte += self.here.next_multiple_of(LINE_BYTES) as u64;
        self.here = 0;
        let taken = &self.ring.control().taken.0;
        taken[1].store(self.byte, Ordering::Relaxed);
        taken[0].store(self.slot, Ordering::Release);
    }
}
