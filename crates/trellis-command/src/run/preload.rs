//! The library that is loaded first into a node's program: the one that lets the program's threads serve their own
//! faults, or the one that lets its threads run on several nodes.
//!
//! Promises: a program that would not start with the first one, or that makes its system calls past it, does not get
//! it. The user gets one sentence with the reason. A program that cannot have the second one is refused with the
//! reason, before it starts.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use object::elf::{DT_NEEDED, DT_STRTAB, FileHeader64, PT_INTERP, PT_NOTE};
use object::endian::Endianness;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use serde::{Deserialize, Serialize};
use trellis::config::{Catch, Config};
use trellis_output::programs;

use crate::exit::{self, Failure};
use crate::installed;

/// The number of processors that a program with threads on several nodes sees; the library reads it.
const PROCESSORS_VARIABLE: &str = "TRELLIS_THREADS_PROCESSORS";
/// The kernel must not write the area of restartable sequences, which would lie in the region: a thread that holds a lock
/// of Trellis might have to wait for its page.
const TUNABLE: &str = "glibc.pthread.rseq=0";

/// The library that the program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Preload {
    /// None.
    Nothing,
    /// The one that makes calls of the C library whole, if it helps the program.
    Calls {
        /// Whether the user gets the reason if it does not.
        says: bool,
    },
    /// The one that lets its threads run on several nodes.
    Threads {
        /// The number of processors that the program sees.
        processors: u32,
    },
}

impl Preload {
    /// The library for the nodes of a cluster.
    pub(super) fn for_nodes(config: &Config, processors: Option<u32>) -> Preload {
        match processors {
            Some(processors) => Preload::Threads { processors },
            None if config.catch == Catch::Handler || config.is_leased() => Preload::Nothing,
            None => Preload::Calls { says: config.catch == Catch::Auto },
        }
    }

    /// Whether the program and its libraries must be at the same addresses on every node.
    pub(super) fn fixes_addresses(self) -> bool {
        matches!(self, Preload::Threads { .. })
    }

    /// Adds the library to a node's environment; returns the sentence for the user, if it would have helped another
    /// program.
    ///
    /// # Errors
    ///
    /// The threads of this program cannot run on several nodes.
    pub(super) fn add(
        self,
        program: &OsStr,
        environment: &mut Vec<(String, OsString)>,
    ) -> Result<Option<String>, Failure> {
        let of_node = environment.iter().rfind(|(name, _)| name == "PATH").map(|(_, path)| path.clone());
        let path = of_node.or_else(|| std::env::var_os("PATH"));
        let name = match self {
            Preload::Nothing => return Ok(None),
            Preload::Calls { .. } => installed::CALLS,
            Preload::Threads { .. } => installed::THREADS,
        };
        let shown = Path::new(program).display();
        match (library(name, program, path.as_deref()), self) {
            (Ok(library), _) => {
                let others = value_of(environment, "LD_PRELOAD");
                environment.push(("LD_PRELOAD".to_owned(), installed::preloaded(&[library], others)));
            }
            (Err(why), Preload::Threads { .. }) => {
                let sentence = format!("{shown} cannot run on several nodes: {why}");
                return Err(Failure::new(exit::NOT_EXECUTABLE, sentence));
            }
            (Err(why), Preload::Calls { says: true }) => {
                return Ok(Some(format!(
                    "faults of {shown} are served by another thread, which is slower (catch = \"handler\"): {why}"
                )));
            }
            (Err(_), _) => {}
        }
        if let Preload::Threads { processors } = self {
            let tunables = value_of(environment, "GLIBC_TUNABLES").filter(|given| !given.is_empty());
            let mut tunables = tunables.map_or(OsString::new(), |mut given| {
                given.push(":");
                given
            });
            tunables.push(TUNABLE);
            environment.push(("GLIBC_TUNABLES".to_owned(), tunables));
            // Addresses that the loader finds later would be written to pages that all nodes share.
            environment.push(("LD_BIND_NOW".to_owned(), "1".into()));
            environment.push((PROCESSORS_VARIABLE.to_owned(), processors.to_string().into()));
        }
        Ok(None)
    }
}

/// The value of a variable for a node.
fn value_of(environment: &[(String, OsString)], name: &str) -> Option<OsString> {
    let given = environment.iter().rfind(|(other, _)| other == name).map(|(_, value)| value.clone());
    given.or_else(|| std::env::var_os(name))
}

/// The library; the error says why this program does not get it.
fn library(name: &str, program: &OsStr, path: Option<&OsStr>) -> Result<std::path::PathBuf, String> {
    let file = programs::find_in(program, path).and_then(File::open).ok();
    if let Some(about) = file.as_ref().and_then(|file| file.metadata().ok())
        && about.permissions().mode() & (libc::S_ISUID | libc::S_ISGID) != 0
        && !rustix::process::geteuid().is_root()
    {
        return Err(
            "it runs with the rights of another user (set-user-ID), and no library can be loaded into it".to_owned()
        );
    }
    // Only the parts that are needed are read, because most of a large program is debug symbols.
    let contents = file.map(ReadCache::new);
    // A file of another kind is a script, whose interpreter gets the library, or fails when it is started.
    if let Some(why) = contents.as_ref().and_then(|contents| reason(contents)) {
        return Err(why.to_owned());
    }
    let library = installed::loaded_first(name)
        .ok_or_else(|| format!("{name} is not beside the command or in ../lib; `cargo xtask install` puts it there"))?;
    if library.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
        // ld.so(8) takes them as the end of a name.
        return Err(format!("the path {} has a space or a colon; install Trellis elsewhere", library.display()));
    }
    Ok(library)
}

/// The reason why a program does not get the library, as far as its file shows it.
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
    let libraries = needed(header, endian, contents).unwrap_or_default();
    let needs = |name: &[u8]| libraries.iter().any(|library| library.starts_with(name));
    if needs(b"libtsan.so") {
        return Some(
            "it is linked with ThreadSanitizer, which has to be the first library that is loaded, and which accepts a region \
             only at few addresses: add --set base_address=0x7e8000000000",
        );
    }
    let is_first = [&b"libasan.so"[..], b"libhwasan.so", b"liblsan.so"].into_iter().any(needs);
    is_first.then_some("it is linked with a sanitizer, which has to be the first library that is loaded")
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
