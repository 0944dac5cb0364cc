//! The image of main's globals and private heap, which is sent to a worker through shared memory.
//!
//! Promises: after [`Image::put_in_place`] every byte of the writer's ranges has the value that it had at the writer
//! when [`Image::write`] ran; bytes outside are unchanged. Zero pages are not sent. A worker with another binary, or
//! with libraries at other addresses, is refused before anything is changed. It must never run while the program's
//! own code runs in the same process.

use std::ops::Range;

use super::arena::arena;
use crate::layout::Layout;

/// The first word of an image.
const MAGIC: u64 = 0x7472_656c_6c69_7301;
const HEADER_WORDS: usize = 7;
/// Memory is examined in pieces of this size, at multiples of it.
const PIECE_BYTES: usize = 4096;

/// An image in shared memory.
pub(super) struct Image {
    start: *mut u64,
}

/// The words at the start of an image. Ranges, pieces, the names of objects and the pieces' bytes follow.
struct Header {
    function: u64,
    is_for_one: bool,
    ranges: usize,
    pieces: usize,
    names_bytes: usize,
    /// The size of the whole image.
    bytes: usize,
}

/// The content of a future image, determined first so that the image is written once and directly to its place.
pub(super) struct Plan<'a> {
    ranges: Vec<Range<usize>>,
    pieces: Vec<Range<usize>>,
    names: &'a str,
}

impl<'a> Plan<'a> {
    /// An image with only the identity of the binary: for workers that share the globals.
    pub(super) fn empty(layout: &'a Layout) -> Plan<'a> {
        Plan { ranges: Vec::new(), pieces: Vec::new(), names: &layout.objects }
    }

    /// Plans an image of the globals and the private heap of this process as they are now.
    pub(super) fn make(layout: &'a Layout) -> Plan<'a> {
        let mut ranges = layout.globals.clone();
        if let Some(arena) = arena().as_mut() {
            ranges.push(arena.used());
        }
        let pieces = pieces_of(&ranges);
        Plan { ranges, pieces, names: &layout.objects }
    }

    /// The size of the image.
    pub(super) fn bytes(&self) -> usize {
        8 * (HEADER_WORDS + 2 * (self.ranges.len() + self.pieces.len()))
            + self.names.len().next_multiple_of(8)
            + self.pieces.iter().map(Range::len).sum::<usize>()
    }
}

impl Image {
    /// An existing image, or the place for one.
    ///
    /// # Safety
    /// At `start`, a multiple of 8, is an image of another node of this cluster, or room for one of the plan that
    /// will be written to it; nothing else changes it.
    pub(super) unsafe fn at(start: *mut u8) -> Image {
        Image { start: start.cast() }
    }

    /// Writes the plan. `function` is the worker's function; with `is_for_one` the worker frees the image.
    pub(super) fn write(&self, plan: &Plan<'_>, function: usize, is_for_one: bool) {
        let numbers = [plan.ranges.len(), plan.pieces.len(), plan.names.len(), plan.bytes()];
        let mut words = vec![MAGIC, function as u64, is_for_one.into()];
        words.extend(numbers.iter().map(|number| *number as u64));
        for range in plan.ranges.iter().chain(&plan.pieces) {
            words.extend([range.start as u64, range.end as u64]);
        }
        // SAFETY: the place has room for `plan.bytes()` bytes, and this is their order and their sum; the pieces are
        // memory of this process which nothing else writes to while main is in CREATE.
        unsafe {
            let mut place = self.start;
            place.copy_from_nonoverlapping(words.as_ptr(), words.len());
            place = place.add(words.len());
            place.cast::<u8>().copy_from_nonoverlapping(plan.names.as_ptr(), plan.names.len());
            let mut place = place.cast::<u8>().add(plan.names.len().next_multiple_of(8));
            for piece in &plan.pieces {
                place.copy_from_nonoverlapping(piece.start as *const u8, piece.len());
                place = place.add(piece.len());
            }
        }
    }

    /// The worker's function, and whether the worker frees the image.
    pub(super) fn order(&self) -> (usize, bool) {
        let header = self.header();
        (header.function as usize, header.is_for_one)
    }

    /// Gives this process's globals and private heap the contents that they had at the writer. `announce` gets the
    /// address and the length of the bytes to be read, before they are read.
    pub(super) fn put_in_place(&self, layout: &Layout, announce: impl FnOnce(usize, usize)) -> Result<(), String> {
        let header = self.header();
        announce(self.start as usize, header.bytes);
        // SAFETY: the writer of the image put so many words and bytes there.
        let (ranges, pieces, names, bytes) = unsafe {
            let ranges = self.start.add(HEADER_WORDS);
            let pieces = ranges.add(2 * header.ranges);
            let names = pieces.add(2 * header.pieces).cast::<u8>();
            let text = std::slice::from_raw_parts(names, header.names_bytes);
            (
                list(ranges, header.ranges),
                list(pieces, header.pieces),
                String::from_utf8_lossy(text).into_owned(),
                names.add(header.names_bytes.next_multiple_of(8)),
            )
        };
        if let Some(difference) = layout.difference(&names) {
            return Err(format!(
                "this process was not loaded as node 0 was: {difference}; use the same binary, the same release of \
                 the system's libraries and the same LD_LIBRARY_PATH on every host, and let the kernel keep addresses \
                 (personality ADDR_NO_RANDOMIZE must be allowed)"
            ));
        }
        let end_of_arena = ranges.last().map_or(0, |range| range.end);
        if let Some(arena) = arena().as_mut().filter(|arena| arena.has(end_of_arena)) {
            arena.open_to(end_of_arena)?;
        }
        let mut pieces = pieces.into_iter().peekable();
        let mut bytes = bytes.cast_const();
        for range in ranges {
            let mut at = range.start;
            while let Some(piece) = pieces.next_if(|piece| piece.end <= range.end && piece.start >= range.start) {
                // SAFETY: the same object is loaded at the same address as at the writer, so the range is writable
                // memory of the program here too, or the arena, which was opened; no code of the program runs.
                unsafe {
                    clear(at..piece.start);
                    (piece.start as *mut u8).copy_from_nonoverlapping(bytes, piece.len());
                    bytes = bytes.add(piece.len());
                }
                at = piece.end;
            }
            // SAFETY: as above.
            unsafe { clear(at..range.end) };
        }
        Ok(())
    }

    fn header(&self) -> Header {
        // SAFETY: the promise of `at`.
        let words = unsafe { std::slice::from_raw_parts(self.start, HEADER_WORDS) };
        assert_eq!(words[0], MAGIC, "an image begins as one");
        let number = |at: usize| words[at] as usize;
        Header {
            function: words[1],
            is_for_one: words[2] != 0,
            ranges: number(3),
            pieces: number(4),
            names_bytes: number(5),
            bytes: number(6),
        }
    }
}

/// # Safety
/// At `words` are `count` pairs of addresses.
unsafe fn list(words: *const u64, count: usize) -> Vec<Range<usize>> {
    // SAFETY: the caller's promise.
    let words = unsafe { std::slice::from_raw_parts(words, 2 * count) };
    words.chunks_exact(2).map(|pair| pair[0] as usize..pair[1] as usize).collect()
}

/// The parts of the ranges that are not zero; adjacent ones are merged.
fn pieces_of(ranges: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut pieces: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let end = (at + 1).next_multiple_of(PIECE_BYTES).min(range.end);
            // SAFETY: a piece of the program's own memory, or of the arena's used part.
            if !unsafe { is_zero(at..end) } {
                match pieces.last_mut().filter(|last| last.end == at && at > range.start) {
                    Some(last) => last.end = end,
                    None => pieces.push(at..end),
                }
            }
            at = end;
        }
    }
    pieces
}

/// # Safety
/// The range may be read, and nothing writes to it meanwhile.
unsafe fn is_zero(range: Range<usize>) -> bool {
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(range.start as *const u8, range.len()) };
    // SAFETY: any eight bytes are a valid number.
    let (head, words, tail) = unsafe { bytes.align_to::<u64>() };
    head.iter().chain(tail).all(|byte| *byte == 0) && words.iter().all(|word| *word == 0)
}

/// Makes a range zero without touching pages that are zero already: a large .bss stays unused memory.
///
/// # Safety
/// The range may be written, and nothing else uses it.
unsafe fn clear(range: Range<usize>) {
    let mut at = range.start;
    while at < range.end {
        let end = (at + 1).next_multiple_of(PIECE_BYTES).min(range.end);
        // SAFETY: the caller's promise.
        unsafe {
            if !is_zero(at..end) {
                (at as *mut u8).write_bytes(0, end - at);
            }
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range_of<T>(memory: &mut [T]) -> Range<usize> {
        let start = memory.as_mut_ptr() as usize;
        start..start + size_of_val(memory)
    }

    #[test]
    fn what_was_written_is_put_back_and_what_came_later_is_cleared() {
        // The same memory plays both roles: written at the writer, changed later at the worker.
        let mut globals = vec![0u64; 5000];
        let mut others = vec![7u8; 100];
        globals[3] = 33;
        globals[4000] = 44;
        let layout = Layout {
            images: Vec::new(),
            copied: Vec::new(),
            globals: vec![range_of(&mut globals), range_of(&mut others)],
            objects: "the program at 0x1 (2)\n".to_owned(),
        };
        let plan = Plan::make(&layout);
        let mut room = vec![0u64; plan.bytes().div_ceil(8)];
        assert!(plan.bytes() < 5000 * 8, "zero pages need no room");
        // SAFETY: there is room for the plan.
        let image = unsafe { Image::at(room.as_mut_ptr().cast()) };
        image.write(&plan, 0x1234, true);
        globals[3] = 5;
        globals[2000] = 6;
        others.fill(9);
        assert_eq!(image.order(), (0x1234, true));
        image.put_in_place(&layout, |_, _| {}).unwrap();
        let wanted = |index: usize| match index {
            3 => 33,
            4000 => 44,
            _ => 0,
        };
        assert!(globals.iter().enumerate().all(|(index, value)| *value == wanted(index)));
        assert_eq!(others, [7u8; 100]);
    }

    #[test]
    fn another_binary_is_refused_and_nothing_is_changed() {
        let mut globals = vec![1u8; 10];
        let mut layout = Layout {
            images: Vec::new(),
            globals: vec![range_of(&mut globals)],
            copied: Vec::new(),
            objects: "the program at 0x1 (2)\n".to_owned(),
        };
        let plan = Plan::make(&layout);
        let mut room = vec![0u64; plan.bytes().div_ceil(8)];
        // SAFETY: there is room for the plan.
        let image = unsafe { Image::at(room.as_mut_ptr().cast()) };
        image.write(&plan, 1, false);
        drop(plan);
        globals.fill(2);
        layout.objects = "the program at 0x1 (3)\n".to_owned();
        let why = image.put_in_place(&layout, |_, _| {}).unwrap_err();
        assert!(why.contains("there it is `the program at 0x1 (2)`, here `the program at 0x1 (3)`"), "{why}");
        assert_eq!(globals, [2u8; 10]);
    }
}
