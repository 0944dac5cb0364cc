//! The addresses of the program's globals in this process, and the objects from which the process was loaded: the
//! program and its libraries.
//!
//! Promises: [`Layout::globals`] are the bytes of .data and .bss of the main executable. They exclude the loader's
//! data there (the table of lazily resolved addresses) and the copies of variables that belong to libraries
//! (`stdout`, `environ`): those keep each process's own values. [`Layout::images`] are whole pages, with all that is
//! there, of the program and of those libraries that are the program's own. [`Layout::objects`] is equal in two processes exactly
//! if the same files are loaded at the same addresses, so that a pointer into one means the same in the other. It
//! must never write, or read anything but what the loader mapped.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::hash::Hasher as _;
use std::ops::Range;

use trellis_base::{Fnv1a, fnv1a, is_c_library};

/// The loader's result for this program.
pub(crate) struct Layout {
    /// Ascending; none is empty, and none overlap.
    pub(crate) globals: Vec<Range<usize>>,
    /// The pages with variables of the program and its libraries, except those of the C library, of the loader and of
    /// Trellis, which belong to the process.
    pub(crate) images: Vec<Range<usize>>,
    /// The names of library variables of which the linker keeps a copy among the globals.
    pub(crate) copied: Vec<String>,
    /// A line for each object: its name, its address, and an identification of its contents.
    pub(crate) objects: String,
}

pub(crate) const DT_PLTRELSZ: u64 = 2;
const DT_PLTGOT: u64 = 3;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
pub(crate) const DT_JMPREL: u64 = 23;

/// The type of relocation by which the linker keeps a library's variable in the executable.
#[cfg(target_arch = "x86_64")]
const R_COPY: u32 = 5;
#[cfg(target_arch = "aarch64")]
const R_COPY: u32 = 1024;

const NT_GNU_BUILD_ID: u32 = 3;

#[repr(C)]
struct Dynamic {
    tag: u64,
    value: u64,
}

#[repr(C)]
pub(crate) struct Relocation {
    pub(crate) offset: u64,
    info: u64,
    addend: i64,
}

#[repr(C)]
pub(crate) struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    /// 0: it is of another object.
    pub(crate) section: u16,
    pub(crate) value: u64,
    size: u64,
}

const _: () = assert!(size_of::<Dynamic>() == 16 && size_of::<Relocation>() == 24 && size_of::<Symbol>() == 24);

impl Layout {
    /// Reads the layout of this process.
    pub(crate) fn of_this_process() -> Layout {
        Layout::of(&objects())
    }

    /// Reads the layout of some of its objects.
    pub(crate) fn of(objects: &[Object]) -> Layout {
        let mut layout = Layout { globals: Vec::new(), images: Vec::new(), copied: Vec::new(), objects: String::new() };
        objects.iter().for_each(|object| layout.note(object));
        layout
    }

    fn note(&mut self, object: &Object) {
        let Object { base, headers, is_program, .. } = *object;
        if is_program {
            // SAFETY: these are the headers of an object that is loaded there.
            (self.globals, self.copied) = unsafe { globals_of(base, headers) };
        }
        if !object.is_of_process {
            self.images.extend(image_of(base, headers));
        }
        let shown = if is_program { "the program" } else { &object.name };
        // SAFETY: as above.
        let contents = unsafe { contents_of(base, headers, is_program) };
        let _ = writeln!(self.objects, "{shown} at {base:#x} ({contents:016x})");
    }

    /// The first difference between the objects of another process and these, for a message.
    pub(crate) fn difference(&self, theirs: &str) -> Option<String> {
        if self.objects == theirs {
            return None;
        }
        let mut ours = self.objects.lines();
        for their_line in theirs.lines() {
            let our_line = ours.next().unwrap_or("nothing");
            if their_line != our_line {
                return Some(format!("there it is `{their_line}`, here `{our_line}`"));
            }
        }
        Some(format!("here it is also `{}`", ours.next().unwrap_or("nothing")))
    }
}

/// An object from which this process was loaded.
pub(crate) struct Object {
    /// The distance from an address in the file to the same place in memory.
    pub(crate) base: usize,
    pub(crate) headers: &'static [libc::Elf64_Phdr],
    /// The file, and its name without the folder.
    pub(crate) path: String,
    pub(crate) name: String,
    pub(crate) is_program: bool,
    /// Its variables are those of a process, not of the program.
    pub(crate) is_of_process: bool,
}

/// The objects from which this process was loaded, the program first.
pub(crate) fn objects() -> Vec<Object> {
    let mut objects = Vec::new();
    // SAFETY: `note_object` is called for each object before this returns, with the pointer given here.
    unsafe { libc::dl_iterate_phdr(Some(note_object), (&raw mut objects).cast()) };
    objects
}

unsafe extern "C" fn note_object(info: *mut libc::dl_phdr_info, _bytes: usize, objects: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description; the second pointer is the one from `objects`.
    let (info, objects) = unsafe { (&*info, &mut *objects.cast::<Vec<Object>>()) };
    // SAFETY: the loader gives the address and the number of the headers, which stay as long as the object.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let path = if info.dlpi_name.is_null() {
        ""
    } else {
        // SAFETY: the loader's names end with a NUL.
        unsafe { CStr::from_ptr(info.dlpi_name) }.to_str().unwrap_or("?")
    };
    let name = path.rsplit('/').next().unwrap_or(path).to_owned();
    // The kernel's own object may differ between hosts, and programs have no pointers into it.
    if name.starts_with("linux-vdso") || name.starts_with("linux-gate") {
        return 0;
    }
    let is_program = objects.is_empty();
    let is_of_process = !is_program && (is_c_library(&name) || name.starts_with("libtrellis"));
    let path = path.to_owned();
    objects.push(Object { base: info.dlpi_addr as usize, headers, path, name, is_program, is_of_process });
    0
}

/// The writable parts of an object without what belongs to the loader or to libraries, and the names of the latter.
///
/// # Safety
/// The object with these headers is loaded at `base`.
unsafe fn globals_of(base: usize, headers: &[libc::Elf64_Phdr]) -> (Vec<Range<usize>>, Vec<String>) {
    let place = |header: &libc::Elf64_Phdr| {
        let start = base + header.p_vaddr as usize;
        start..start + header.p_memsz as usize
    };
    let mut ranges: Vec<Range<usize>> = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0)
        .map(place)
        .collect();
    ranges.sort_by_key(|range| range.start);
    let mut copied = Vec::new();
    for header in headers.iter().filter(|header| header.p_type == libc::PT_GNU_RELRO) {
        let protected = place(header);
        // The loader protects only whole pages; data that shares the last one with globals stays writable.
        take_out(&mut ranges, &(protected.start..protected.end & !4095));
    }
    // SAFETY: the caller's promise.
    if let Some(section) = unsafe { DynamicSection::of(base, headers) } {
        for (owned, name) in owned_by_others(&section) {
            take_out(&mut ranges, &owned);
            copied.extend(name);
        }
    }
    (ranges, copied)
}

/// The pages of an object that are written after the loader is done with them.
fn image_of(base: usize, headers: &[libc::Elf64_Phdr]) -> Vec<Range<usize>> {
    let of_kind = |kind: u32| headers.iter().filter(move |header| header.p_type == kind);
    let start = |header: &libc::Elf64_Phdr| base + header.p_vaddr as usize;
    let mut pages: Vec<Range<usize>> = of_kind(libc::PT_LOAD)
        .filter(|header| header.p_flags & libc::PF_W != 0)
        .map(|header| start(header) & !4095..(start(header) + header.p_memsz as usize).next_multiple_of(4096))
        .collect();
    pages.sort_by_key(|range| range.start);
    for header in of_kind(libc::PT_GNU_RELRO) {
        take_out(&mut pages, &(start(header) & !4095..(start(header) + header.p_memsz as usize) & !4095));
    }
    pages
}

/// The dynamic section of an object that is loaded (elf(5)).
pub(crate) struct DynamicSection {
    base: usize,
    entries: *const Dynamic,
}

impl DynamicSection {
    /// # Safety
    /// The object with these headers is loaded at `base`, and stays.
    pub(crate) unsafe fn of(base: usize, headers: &[libc::Elf64_Phdr]) -> Option<DynamicSection> {
        let header = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        Some(DynamicSection { base, entries: (base + header.p_vaddr as usize) as *const Dynamic })
    }

    pub(crate) fn value(&self, wanted: u64) -> Option<usize> {
        let mut entry = self.entries;
        loop {
            // SAFETY: entries follow each other up to the one with tag zero.
            let Dynamic { tag, value } = unsafe { &*entry };
            if *tag == wanted {
                return Some(*value as usize);
            }
            if *tag == 0 {
                return None;
            }
            entry = entry.wrapping_add(1);
        }
    }

    pub(crate) fn address(&self, wanted: u64) -> Option<usize> {
        let base = self.base;
        // The loader of glibc has already added the base to the addresses; others have not.
        self.value(wanted).map(|value| if value < base { base + value } else { value })
    }

    /// A table of relocations, by the tags of its address and of its size in bytes, with the symbol of each.
    pub(crate) fn relocations(&self, at: u64, bytes: u64) -> impl Iterator<Item = (&Relocation, &Symbol)> {
        let symbols = self.address(DT_SYMTAB);
        let (at, bytes) = (symbols.and_then(|_| self.address(at)), self.value(bytes));
        let table = match (at, bytes) {
            // SAFETY: the section names the place and the size of the table.
            (Some(at), Some(bytes)) => unsafe {
                std::slice::from_raw_parts(at as *const Relocation, bytes / size_of::<Relocation>())
            },
            _ => &[],
        };
        table.iter().map(move |relocation| {
            let symbol = (symbols.unwrap_or(0) as *const Symbol).wrapping_add((relocation.info >> 32) as usize);
            // SAFETY: a relocation names a symbol of the object's own table.
            (relocation, unsafe { &*symbol })
        })
    }
}

/// The loader's table of addresses, and the copies of libraries' variables with their names.
fn owned_by_others(section: &DynamicSection) -> Vec<(Range<usize>, Option<String>)> {
    let mut owned = Vec::new();
    if let Some(table) = section.address(DT_PLTGOT) {
        let slots = section.value(DT_PLTRELSZ).unwrap_or(0) / size_of::<Relocation>();
        owned.push((table..table + 8 * (3 + slots), None));
    }
    for (relocation, symbol) in section.relocations(DT_RELA, DT_RELASZ) {
        if relocation.info as u32 == R_COPY {
            let start = section.base + relocation.offset as usize;
            let name = section.address(DT_STRTAB).map(|names| {
                // SAFETY: a symbol's name is a C string in the object's own table of names.
                let name = unsafe { CStr::from_ptr((names as *const c_char).wrapping_add(symbol.name as usize)) };
                name.to_string_lossy().into_owned()
            });
            owned.push((start..start + symbol.size as usize, name));
        }
    }
    owned
}

/// Removes `hole` from ascending ranges.
fn take_out(ranges: &mut Vec<Range<usize>>, hole: &Range<usize>) {
    let cut = |range: &Range<usize>| {
        let before = range.start..range.end.min(hole.start);
        let after = range.start.max(hole.end)..range.end;
        [before, after]
    };
    if hole.is_empty() {
        return;
    }
    *ranges = ranges.iter().flat_map(cut).filter(|range| !range.is_empty()).collect();
}

/// A number that differs if the object's contents differ: its build id, or a hash of the contents.
///
/// # Safety
/// The object with these headers is loaded at `base`.
unsafe fn contents_of(base: usize, headers: &[libc::Elf64_Phdr], in_full: bool) -> u64 {
    for header in headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
        let start = base + header.p_vaddr as usize;
        // SAFETY: the header gives the address and the length of the notes.
        let notes = unsafe { std::slice::from_raw_parts(start as *const u8, header.p_memsz as usize) };
        if let Some(id) = build_id(notes) {
            return fnv1a(id);
        }
    }
    let mut hash = Fnv1a::default();
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        let facts = [header.p_vaddr, header.p_memsz, header.p_filesz, u64::from(header.p_flags)];
        facts.iter().for_each(|fact| hash.write(&fact.to_ne_bytes()));
        if in_full && header.p_flags & (libc::PF_W | libc::PF_R) == libc::PF_R {
            let start = base + header.p_vaddr as usize;
            // SAFETY: a loaded segment that may be read and that nothing writes to.
            hash.write(unsafe { std::slice::from_raw_parts(start as *const u8, header.p_filesz as usize) });
        }
    }
    hash.finish()
}

fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    let word = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).map(|four| u32::from_ne_bytes(four.try_into().unwrap_or_default()))
    };
    while let (Some(name_bytes), Some(bytes), Some(kind)) = (word(notes, 0), word(notes, 4), word(notes, 8)) {
        let name_end = 12 + (name_bytes as usize).next_multiple_of(4);
        let end = name_end + bytes as usize;
        let body = notes.get(name_end..end)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..16) == Some(b"GNU\0") {
            return Some(body);
        }
        notes = notes.get(end.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_splits_shortens_or_removes() {
        let mut ranges = vec![10..20, 30..40, 50..60];
        take_out(&mut ranges, &(15..16));
        take_out(&mut ranges, &(38..52));
        take_out(&mut ranges, &(0..12));
        take_out(&mut ranges, &(30..30));
        assert_eq!(ranges, [12..15, 16..20, 30..38, 52..60]);
        take_out(&mut ranges, &(0..100));
        assert!(ranges.is_empty());
    }

    #[test]
    fn a_build_id_is_found_behind_other_notes() {
        let note = |name: &[u8; 4], kind: u32, body: &[u8]| {
            let mut bytes = Vec::new();
            for word in [4, body.len() as u32, kind] {
                bytes.extend_from_slice(&word.to_ne_bytes());
            }
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(body);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let mut notes = note(b"GNU\0", 1, b"abcde");
        notes.extend(note(b"XYZ\0", NT_GNU_BUILD_ID, b"not this one"));
        assert_eq!(build_id(&notes), None);
        notes.extend(note(b"GNU\0", NT_GNU_BUILD_ID, b"identity"));
        assert_eq!(build_id(&notes), Some(&b"identity"[..]));
    }

    #[test]
    fn the_globals_of_this_program_are_found() {
        static mut IN_DATA: u64 = 0x1234_5678;
        static mut IN_BSS: [u64; 10_000] = [0; 10_000];
        let layout = Layout::of_this_process();
        for address in [(&raw const IN_DATA) as usize, (&raw const IN_BSS) as usize] {
            assert!(layout.globals.iter().any(|range| range.contains(&address)), "{address:#x}: {:x?}", layout.globals);
        }
        let local = 0;
        let elsewhere = (&raw const local) as usize;
        assert!(layout.globals.iter().all(|range| !range.contains(&elsewhere)));
        let is_shared = |address: usize| layout.images.iter().any(|pages| pages.contains(&address));
        assert!(is_shared((&raw const IN_DATA) as usize) && is_shared((&raw const IN_BSS) as usize));
        assert!(!is_shared(elsewhere) && !is_shared(libc::free as *const () as usize));
        assert!(layout.images.iter().all(|pages| pages.start % 4096 == 0 && pages.end % 4096 == 0));
        assert!(layout.objects.starts_with("the program at "), "{}", layout.objects);
        assert!(layout.objects.contains("libc.so"), "{}", layout.objects);
    }

    #[test]
    fn the_first_object_that_differs_is_named() {
        let layout = Layout {
            globals: Vec::new(),
            images: Vec::new(),
            copied: Vec::new(),
            objects: "the program at 0x1 (a)\nlibc at 0x2 (b)\n".to_owned(),
        };
        assert_eq!(layout.difference(&layout.objects), None);
        let said = layout.difference("the program at 0x1 (a)\nlibc at 0x3 (b)\n").unwrap();
        assert_eq!(said, "there it is `libc at 0x3 (b)`, here `libc at 0x2 (b)`");
        let said = layout.difference("the program at 0x1 (a)\n").unwrap();
        assert_eq!(said, "here it is also `libc at 0x2 (b)`");
    }
}
