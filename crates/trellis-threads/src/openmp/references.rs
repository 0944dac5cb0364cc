//! Which functions the program and its libraries refer to.
//!
//! Promises: every node gets the same answer, because every node has the same files.

use std::ffi::{CStr, c_char, c_int, c_void};

/// Entries of the dynamic section (elf(5)).
const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;

/// The functions that make tasks, by the beginnings of their names.
const TASKS: [&[u8]; 3] = [b"GOMP_task", b"__kmpc_omp_task", b"__kmpc_taskloop"];

/// Whether the program, or a library that is not of a compiler, makes tasks.
pub(super) fn has_tasks() -> bool {
    let mut found = false;
    // SAFETY: the function is called for each object before this returns, with the pointer given here.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description; the second pointer is the one of `has_tasks`.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<bool>()) };
    // SAFETY: the loader gives the address and the number of the headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_DYNAMIC) {
        let base = info.dlpi_addr as usize;
        // SAFETY: the dynamic section of an object that is loaded.
        *found |= unsafe { refers_to_tasks(base, (base + header.p_vaddr as usize) as *const [i64; 2]) };
    }
    0
}

/// # Safety
/// It is the dynamic section of an object that is loaded at `base`.
unsafe fn refers_to_tasks(base: usize, mut entry: *const [i64; 2]) -> bool {
    let (mut names, mut symbols) = (0, 0);
    let (mut calls, mut data) = ((0, 0), (0, 0));
    // SAFETY: the caller's section, which ends with `DT_NULL`.
    unsafe {
        while (*entry)[0] != DT_NULL {
            let value = (*entry)[1] as usize;
            // The loader has made addresses of these, except in the object that the kernel maps.
            let address = if value < base { base + value } else { value };
            match (*entry)[0] {
                DT_STRTAB => names = address,
                DT_SYMTAB => symbols = address,
                DT_JMPREL => calls.0 = address,
                DT_PLTRELSZ => calls.1 = value,
                DT_RELA => data.0 = address,
                DT_RELASZ => data.1 = value,
                _ => {}
            }
            entry = entry.add(1);
        }
        if names == 0 || symbols == 0 {
            return false;
        }
        let relocations =
            [calls, data].into_iter().filter(|(address, _)| *address != 0).flat_map(|(address, bytes)| {
                std::slice::from_raw_parts(address as *const libc::Elf64_Rela, bytes / size_of::<libc::Elf64_Rela>())
            });
        relocations.map(|relocation| (relocation.r_info >> 32) as usize).filter(|number| *number != 0).any(|number| {
            let symbol = &*(symbols as *const libc::Elf64_Sym).add(number);
            let name = CStr::from_ptr((names + symbol.st_name as usize) as *const c_char).to_bytes();
            symbol.st_shndx == 0 && TASKS.iter().any(|prefix| name.starts_with(prefix))
        })
    }
}
