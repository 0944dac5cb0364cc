//! The functions of libraries whose addresses the program has made its own.
//!
//! A program that is not position-independent, and takes the address of a library's function, has an entry for it in its
//! own code. The address of the entry is the function's address for every library, and the entry jumps to where a word
//! among the program's variables says (System V ABI, AMD64 supplement, 5.2, "Function Addresses"). These variables are in
//! the region, and the libraries of the process have threads that must not wait for a page of it.
//!
//! Where some memory of the program is relaxed, these libraries must also allocate in another way: they keep streams in the
//! heap, with locks that are atomic instructions.
//!
//! Promises: the libraries of the process call functions without the program's entries. Must be called while the
//! process has one thread, before the program's variables are in the region.

use std::collections::BTreeMap;
use std::io;

use crate::layout::{DT_JMPREL, DT_PLTRELSZ, DynamicSection, Object, objects};

const PAGE_BYTES: usize = 4096;

/// Puts the addresses of functions in the place of those of the program's entries, and for each of these `others`, pairs of
/// addresses, the second one in the place of the first.
pub(super) fn bind_libraries(others: &[[usize; 2]]) -> io::Result<()> {
    let objects = objects();
    let others: BTreeMap<usize, usize> = others.iter().map(|[from, to]| (*from, *to)).collect();
    let entries = objects.iter().filter(|object| object.is_program).flat_map(entries);
    let mut functions: BTreeMap<usize, usize> =
        entries.map(|(entry, function)| (entry, *others.get(&function).unwrap_or(&function))).collect();
    functions.extend(others);
    if functions.is_empty() {
        return Ok(());
    }
    objects.iter().filter(|object| object.is_of_process).try_for_each(|object| bind(object, &functions))
}

/// The address of each entry of the program, and that of its function, to which the loader has bound it already.
fn entries(program: &Object) -> Vec<(usize, usize)> {
    // SAFETY: the program is loaded.
    let Some(section) = (unsafe { DynamicSection::of(program.base, program.headers) }) else { return Vec::new() };
    section
        .relocations(DT_JMPREL, DT_PLTRELSZ)
        .filter(|(_, symbol)| symbol.section == 0 && symbol.value != 0)
        .map(|(relocation, symbol)| {
            let word = program.base + relocation.offset as usize;
            // SAFETY: a word that the loader has set.
            (program.base + symbol.value as usize, unsafe { (word as *const usize).read() })
        })
        .collect()
}

/// Changes the addresses in what the loader has written for a library: in its table of functions, and in what it has made
/// read-only then.
fn bind(library: &Object, functions: &BTreeMap<usize, usize>) -> io::Result<()> {
    let is_read_only = |address: usize| {
        let mut parts = library.headers.iter().filter(|header| header.p_type == libc::PT_GNU_RELRO);
        parts.any(|part| {
            let start = library.base + part.p_vaddr as usize;
            (start..start + part.p_memsz as usize).contains(&address)
        })
    };
    // SAFETY: the library is loaded.
    let section = unsafe { DynamicSection::of(library.base, library.headers) };
    let table = section.iter().flat_map(|section| section.relocations(DT_JMPREL, DT_PLTRELSZ));
    let words = table.map(|(relocation, _)| library.base + relocation.offset as usize);
    for word in words.filter(|word| !is_read_only(*word)) {
        let word = word as *mut usize;
        // SAFETY: a word of the library's table, which stays writable; only the caller's thread is there.
        unsafe {
            if let Some(function) = functions.get(&word.read()) {
                word.write(*function);
            }
        }
    }
    for header in library.headers.iter().filter(|header| header.p_type == libc::PT_GNU_RELRO) {
        let start = library.base + header.p_vaddr as usize;
        let end = start + header.p_memsz as usize;
        let words =
            (start.next_multiple_of(size_of::<usize>())..end - (size_of::<usize>() - 1)).step_by(size_of::<usize>());
        // SAFETY: words of an object that is loaded; only the caller's thread is there.
        let is_entry = |word: &usize| functions.contains_key(unsafe { &*(*word as *const usize) });
        for word in words.filter(is_entry) {
            let page = word & !(PAGE_BYTES - 1);
            // The end of the last page may have variables of the library, and stays writable.
            let is_read_only = page + PAGE_BYTES <= end;
            if is_read_only {
                protect(page, libc::PROT_READ | libc::PROT_WRITE)?;
            }
            // SAFETY: as above; it may be written now, and the function is the same.
            unsafe {
                let word = word as *mut usize;
                word.write(functions[&word.read()]);
            }
            if is_read_only {
                protect(page, libc::PROT_READ)?;
            }
        }
    }
    Ok(())
}

fn protect(page: usize, protection: i32) -> io::Result<()> {
    // SAFETY: a page of a library's table of addresses, which stays readable.
    match unsafe { libc::mprotect(page as *mut libc::c_void, PAGE_BYTES, protection) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
