//! Tests shared memory with files in place of the kernel's maps, and threads in place of its program.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;

use super::super::layout::EXTENT_VALUE_BYTES;
use super::*;

/// A file as long as an extent.
fn file() -> OwnedFd {
    let file = rustix::fs::memfd_create("extent", rustix::fs::MemfdFlags::empty()).expect("memory");
    rustix::fs::ftruncate(&file, EXTENT_VALUE_BYTES).expect("it grows");
    file
}

/// Memory whose first extent is shared, backed by that file, and whose second one is not.
fn memory() -> (Shared, OwnedFd) {
    let mut memory = Shared::new(EXTENT_BYTES + 8 * PAGE_BYTES).expect("there are addresses");
    let file = file();
    let mut make = |number: u64| (number == 0).then(|| file.as_fd().try_clone_to_owned().expect("it is open"));
    memory.zero(0..EXTENT_BYTES + 8 * PAGE_BYTES, &mut make);
    (memory, file)
}

/// The same extent as the program sees it.
fn other_side(file: &OwnedFd) -> &'static [Known] {
    let number = file.as_raw_fd();
    // SAFETY: a new mapping that is never removed, of as many entries as there are in the file.
    unsafe {
        let table = map(std::ptr::null_mut(), TABLE_BYTES, libc::MAP_SHARED, number, EXTENT_TABLE_AT).expect("mapped");
        std::slice::from_raw_parts(table.cast::<Known>().as_ptr(), EXTENT_PAGES as usize)
    }
}

#[test]
fn both_kinds_of_memory_are_one() {
    let (mut memory, _file) = memory();
    assert_eq!((memory.bytes(), memory.bytes_in_kernel()), (EXTENT_BYTES + 8 * PAGE_BYTES, EXTENT_BYTES));
    let mut room = Vec::new();
    let text: Vec<u8> = (0..20_000_u32).map(|at| ((at * 7) >> 2) as u8).collect();
    let at = EXTENT_BYTES - 9_999;
    memory.write(at, &text);
    assert_eq!(memory.read(at..at + 20_000, &mut room), text, "across the boundary");
    let eight = u64::from_le_bytes(text[..8].try_into().expect("eight bytes"));
    assert_eq!(memory.replace(at, &|before| Some(before.wrapping_add(1))), eight);
    assert_eq!(memory.replace(at, &|_| None), eight.wrapping_add(1));
    memory.zero(at + 100..at + 19_900, &mut |_| unreachable!("both were decided"));
    let bytes = memory.read(at..at + 20_000, &mut room);
    assert!(bytes[100..19_900].iter().all(|byte| *byte == 0));
    assert_eq!((&bytes[8..100], &bytes[19_900..]), (&text[8..100], &text[19_900..]));
}

#[test]
fn a_version_moves_with_what_is_changed_and_only_then() {
    let (mut memory, file) = memory();
    let known = other_side(&file);
    let version = |page: usize| known[page].version.load(Ordering::Relaxed);
    let digest = |page: usize| known[page].digest.load(Ordering::Relaxed);
    let mut room = Vec::new();
    memory.write(PAGE_BYTES - 1, &[5; 2 + PAGE_BYTES as usize]);
    assert_eq!([0, 1, 2, 3].map(version), [2, 2, 2, 0]);
    assert_eq!((digest(0), digest(2)), (0, 0), "a part of a page was written");
    assert_eq!(digest(1), checksum::digest(2, &[5; PAGE_BYTES as usize]));
    memory.read(0..4 * PAGE_BYTES, &mut room);
    assert_eq!([0, 1, 2, 3].map(version), [2, 2, 2, 0], "reading changes nothing");
    memory.replace(PAGE_BYTES, &|_| None);
    assert_eq!(version(1), 2);
    memory.replace(PAGE_BYTES, &|_| Some(1));
    assert_eq!((version(1), digest(1)), (4, 0));
    memory.publish(3, &mut [7, 8].into_iter());
    assert_eq!([3, 4].map(|page: usize| known[page].entry.load(Ordering::Relaxed)), [7, 8]);
    assert_eq!([3, 4].map(version), [2, 2]);
    // Beyond the extent there is no reader of entries.
    memory.publish(EXTENT_PAGES, &mut [7].into_iter());
}

#[test]
fn nobody_sees_half_of_a_change() {
    let (mut memory, file) = memory();
    let known = &other_side(&file)[0];
    // SAFETY: a new mapping that is never removed, of the file's first page.
    let page = unsafe {
        map(std::ptr::null_mut(), PAGE_BYTES as usize, libc::MAP_SHARED, file.as_raw_fd(), 0).expect("mapped").as_ptr()
            as usize
    };
    let is_over = AtomicBool::new(false);
    let writes = AtomicU64::new(0);
    std::thread::scope(|scope| {
        // What the program does for a write: it never waits.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let version = known.version.load(Ordering::SeqCst);
                let (even, odd) = (version & !1, version | 1);
                if version == odd
                    || known.version.compare_exchange(even, odd, Ordering::SeqCst, Ordering::SeqCst).is_err()
                {
                    continue;
                }
                let count = writes.fetch_add(1, Ordering::Relaxed);
                // SAFETY: the page is mapped, and held.
                unsafe { std::ptr::write_bytes(page as *mut u8, count as u8, PAGE_BYTES as usize) };
                known.version.fetch_add(1, Ordering::SeqCst);
            }
        });
        let mut room = Vec::new();
        let mut round = 0_u64;
        while round < 20_000 || writes.load(Ordering::Relaxed) < 100 {
            let bytes = memory.read(0..PAGE_BYTES, &mut room);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "round {round}");
            if round.is_multiple_of(4) {
                memory.write(0, &[round as u8; PAGE_BYTES as usize]);
            }
            round += 1;
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
#[should_panic(expected = "is not inside the memory")]
fn outside_is_outside() {
    let (memory, _file) = memory();
    memory.read(EXTENT_BYTES + 8 * PAGE_BYTES - 1..EXTENT_BYTES + 8 * PAGE_BYTES + 1, &mut Vec::new());
}
