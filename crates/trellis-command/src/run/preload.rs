//! The library that is loaded first into a node's program, so that the program's faults may be served in its threads.
//!
//! Promises: a program that would not start with it, or that makes its system calls past it, does not get it; the user
//! is told once, with the reason. It must never refuse a program.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use object::elf::{DT_NEEDED, DT_STRTAB, FileHeader64, PT_INTERP, PT_NOTE};
use object::endian::Endianness;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use trellis::config::{Catch, Config};
use trellis_output::programs;

use crate::installed;

/// Whether the nodes of a cluster get the library, if it helps their program: then, whether the user hears of it if it
/// does not.
pub(super) fn wanted(config: &Config) -> Option<bool> {
    let is_wanted = config.catch != Catch::Handler && !config.is_leased();
    is_wanted.then_some(config.catch == Catch::Auto)
}

/// Adds the library to a node's environment, if it helps the program; returns the sentence for the user, if it would
/// have helped another.
pub(super) fn add(says: bool, program: &OsStr, environment: &mut Vec<(String, OsString)>) -> Option<String> {
    let of_node = environment.iter().rfind(|(name, _)| name == "PATH").map(|(_, path)| path.clone());
    let path = of_node.or_else(|| std::env::var_os("PATH"));
    match library(program, path.as_deref()) {
        Ok(library) => {
            let given = environment.iter().rfind(|(name, _)| name == "LD_PRELOAD").map(|(_, value)| value.clone());
            let others = given.or_else(|| std::env::var_os("LD_PRELOAD"));
            environment.push(("LD_PRELOAD".to_owned(), installed::preloaded(&[library], others)));
            None
        }
        Err(why) => says.then(|| {
            let program = Path::new(program).display();
            format!("faults of {program} are served by another thread, which is slower (catch = \"handler\"): {why}")
        }),
    }
}

/// The library; the error says why this program does not get it.
fn library(program: &OsStr, path: Option<&OsStr>) -> Result<std::path::PathBuf, String> {
    let file = programs::find_in(program, path).and_then(File::open).ok();
    // Only the parts that are looked at are read: most of a large program is debug symbols.
    let contents = file.map(ReadCache::new);
    // What is no program of this kind is a script, whose interpreter gets the library, or fails when it is started.
    if let Some(why) = contents.as_ref().and_then(|contents| reason(contents)) {
        return Err(why.to_owned());
    }
    let library = installed::calls_library().ok_or_else(|| {
        format!("{} is not beside the command or in ../lib; `cargo xtask install` puts it there", installed::CALLS)
    })?;
    if library.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
        // ld.so(8) takes them as the end of a name.
        return Err(format!("the path {} has a space or a colon; install Trellis elsewhere", library.display()));
    }
    Ok(library)
}

/// Why a program does not get the library, as far as its file tells.
fn reason<'data>(contents: impl ReadRef<'data>) -> Option<&'static str> {
    let header = FileHeader64::<Endianness>::parse(contents).ok()?;
    let endian = header.endian().ok()?;
    let parts = header.program_headers(endian, contents).ok()?;
    let Some(loader) = parts.iter().find(|part| part.p_type(endian) == PT_INTERP) else {
        return Some("it is linked statically, and no library can be loaded into it");
    };
    let of_glibc = b"/ld-linux";
    if !loader.data(endian, contents).is_ok_and(|name| name.windows(of_glibc.len()).any(|part| part == of_glibc)) {
        return Some("it is not linked with the C library of GNU, which the library replaces parts of");
    }
    let mut notes = parts.iter().filter(|part| part.p_type(endian) == PT_NOTE);
    // A note has its owner's name at a whole word.
    let is_of_go = |part: &<FileHeader64<Endianness> as FileHeader>::ProgramHeader| {
        part.data(endian, contents).is_ok_and(|notes| notes.chunks_exact(4).any(|word| word == b"Go\0\0"))
    };
    if notes.any(is_of_go) {
        return Some("it is written in Go, which makes system calls without the C library");
    }
    let sanitizer = needed(header, endian, contents).into_iter().flatten().any(|library| {
        [&b"libasan.so"[..], b"libtsan.so", b"libhwasan.so", b"liblsan.so"].iter().any(|name| library.starts_with(name))
    });
    sanitizer.then_some("it is linked with a sanitizer, which has to be the first library that is loaded")
}

/// The libraries that a program names, whose contents these are; none if it is a script.
pub(super) fn libraries(contents: &[u8]) -> Vec<&[u8]> {
    let named = || {
        let header = FileHeader64::<Endianness>::parse(contents).ok()?;
        needed(header, header.endian().ok()?, contents)
    };
    let names = named().unwrap_or_default();
    // Each name ends with a zero.
    names.into_iter().filter_map(|name| name.split(|byte| *byte == 0).next()).collect()
}

/// The libraries that a program names.
fn needed<'data>(
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    contents: impl ReadRef<'data>,
) -> Option<Vec<&'data [u8]>> {
    let parts = header.program_headers(endian, contents).ok()?;
    let entries = parts.iter().find_map(|part| part.dynamic(endian, contents).ok().flatten())?;
    let texts = entries.iter().find(|entry| entry.d_tag(endian) == DT_STRTAB)?.d_val(endian);
    let texts = parts.iter().find_map(|part| {
        let offset = usize::try_from(texts.checked_sub(part.p_vaddr(endian))?).ok()?;
        part.data(endian, contents).ok()?.get(offset..)
    })?;
    let names = entries.iter().filter(|entry| entry.d_tag(endian) == DT_NEEDED);
    Some(names.filter_map(|entry| texts.get(entry.d_val(endian) as usize..)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_program_gets_the_library_and_so_does_a_script() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(reason(&own[..]), None);
        assert_eq!(reason(&b"#!/bin/sh\n"[..]), None);
        let header = FileHeader64::<Endianness>::parse(&*own).unwrap();
        let endian = header.endian().unwrap();
        let names = needed(header, endian, &own[..]).expect("it is linked dynamically");
        assert!(names.iter().any(|name| name.starts_with(b"libc.so")), "it names the C library");
    }

    #[test]
    fn programs_of_go_and_static_ones_do_not_get_it() {
        let mut own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let (note, interpreter) = {
            let header = FileHeader64::<Endianness>::parse(&*own).unwrap();
            let endian = header.endian().unwrap();
            let parts = header.program_headers(endian, &*own).unwrap();
            let at = |kind| parts.iter().position(|part| part.p_type(endian) == kind).expect("it has one");
            let note = parts[at(PT_NOTE)].p_offset(endian) as usize;
            (note, header.e_phoff.get(endian) as usize + 56 * at(PT_INTERP))
        };
        let owner = own[note + 12..note + 16].to_owned();
        own[note + 12..note + 16].copy_from_slice(b"Go\0\0");
        assert!(reason(&own[..]).is_some_and(|why| why.contains("written in Go")));
        own[note + 12..note + 16].copy_from_slice(&owner);
        own[interpreter..interpreter + 4].fill(0);
        assert!(reason(&own[..]).is_some_and(|why| why.contains("linked statically")));
    }
}
