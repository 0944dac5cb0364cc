//! Checks whether a program's heap can be in a store, as far as its file tells.
//!
//! Promises: a program that is known to crash, or to run on without the store, is refused before it starts, with an
//! alternative. It must never refuse a program that would work, and never run anything.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use object::elf::{FileHeader64, PT_INTERP};
use object::endian::Endianness;
use object::read::elf::{FileHeader, ProgramHeader};

use trellis::stored::launched::is_shell;

use trellis_command::exit::{self, Failure};
use trellis_output::programs;

/// Refuses a program whose heap cannot be in a store. A missing program is left to the attempt to start it.
pub(super) fn check(name: &OsStr) -> Result<(), Failure> {
    let Some(path) = programs::find(name) else { return Ok(()) };
    // The link `sh` tells less than its target.
    let Ok(file) = path.canonicalize() else { return Ok(()) };
    // Reading a pipe would block.
    let Some(Ok(contents)) = file.is_file().then(|| fs::read(&file)) else { return Ok(()) };
    let shown = match path.as_os_str() == name {
        true => path.display().to_string(),
        false => format!("{} ({})", name.display(), path.display()),
    };
    let reason = reason(&path, &file, &contents).or_else(|| privileged(&file));
    reason.map_or(Ok(()), |reason| Err(Failure::new(exit::NOT_EXECUTABLE, format!("{shown} {reason}"))))
}

/// Why a file is refused; `None` if it is not.
fn reason(path: &Path, file: &Path, contents: &[u8]) -> Option<String> {
    if let Some(interpreter) = interpreter(contents) {
        let next = match is_shell(Path::new(&interpreter)) {
            true => "what a shell starts is a forked child, which has no part of the heap; name the program that the script \
                     starts (`pyenv which NAME` tells that of a program of pyenv)"
                .to_owned(),
            false => format!("name both: `{interpreter} {}`", path.display()),
        };
        return Some(format!("is a script, which {interpreter} runs: {next}"));
    }
    if is_shell(file) {
        return Some(
            "is a shell, and what it starts is a forked child, which has no part of the heap; name the program itself"
                .to_owned(),
        );
    }
    let Ok(header) = FileHeader64::<Endianness>::parse(contents) else { return Some(not_ours(contents)) };
    let endian = header.endian().ok()?;
    let mut parts = header.program_headers(endian, contents).ok()?.iter();
    if parts.any(|part| part.p_type(endian) == PT_INTERP) {
        return None;
    }
    Some(
        "is linked statically, so that its malloc stays its own and its heap would not lie in the store; link it dynamically \
         (without -static), or compile it with `trellis cc`"
            .to_owned(),
    )
}

/// A program for another kind of machine would run without the library that is loaded first. A file that is no
/// program would be run by a shell (exec(3), `ENOEXEC`).
fn not_ours(contents: &[u8]) -> String {
    if contents.starts_with(b"\x7fELF") {
        return "is a program of 32 bits, and a heap in a store needs 64; compile it for 64 bits".to_owned();
    }
    "is not a program, so that /bin/sh would run it as a script, and what a shell starts is a forked child, which has no part of the \
     heap; name the program that it starts"
        .to_owned()
}

/// The loader loads no library first into a program that gets rights its caller lacks (ld.so(8), "secure-execution
/// mode").
fn privileged(file: &Path) -> Option<String> {
    const SET_USER: u32 = 0o4000;
    // Without the right to execute for the group, the bit marks mandatory locking (inode(7)).
    const SET_GROUP: u32 = 0o2010;
    let about = fs::metadata(file).ok()?;
    // The owner of our entry in /proc is the user whose rights we have (proc(5)).
    let me = fs::metadata("/proc/self").ok()?;
    let gains = if about.mode() & SET_USER != 0 && about.uid() != me.uid() {
        "the rights of another user (set-user-ID)"
    } else if about.mode() & SET_GROUP == SET_GROUP && about.gid() != me.gid() {
        "the rights of another group (set-group-ID)"
    } else if me.uid() != 0 && has_capabilities(file) {
        "capabilities of its file (capabilities(7))"
    } else {
        return None;
    };
    Some(format!("runs with {gains}, and the system loads nothing into such a program; run a copy without that right"))
}

fn has_capabilities(file: &Path) -> bool {
    // With an empty buffer, only the length is returned (getxattr(2)).
    rustix::fs::getxattr(file, "security.capability", &mut [0_u8; 0][..]).is_ok_and(|bytes| bytes > 0)
}

/// The interpreter of a script, as a person would write it; `None` if the file is not a script.
fn interpreter(contents: &[u8]) -> Option<String> {
    let line = contents.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    let first = words.next()?;
    if Path::new(first).file_name() != Some(OsStr::new("env")) {
        return Some(first.to_owned());
    }
    // `env` takes the first word that is neither an option of its own nor a variable.
    let named = words.find(|word| !word.starts_with('-') && !word.contains('='));
    Some(named.unwrap_or(first).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_of_a_script_is_named_as_a_person_would() {
        let of = |text: &str| interpreter(text.as_bytes());
        assert_eq!(of("#!/bin/sh\nls\n").as_deref(), Some("/bin/sh"));
        assert_eq!(of("#! /usr/bin/perl -w\n").as_deref(), Some("/usr/bin/perl"));
        assert_eq!(of("#!/usr/bin/env python3\n").as_deref(), Some("python3"));
        assert_eq!(of("#!/usr/bin/env -S LANG=C python3 -u\n").as_deref(), Some("python3"));
        assert_eq!(of("#!"), None);
        assert_eq!(of("ls\n"), None);
    }

    #[test]
    fn what_gains_rights_is_refused() {
        use std::os::unix::fs::PermissionsExt;

        let folder = trellis_testing::Folder::new();
        let file = folder.write("program", "");
        let refusal = |mode| {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            privileged(&file)
        };
        assert_eq!(refusal(0o755), None);
        // Only root can give files to others.
        if std::os::unix::fs::chown(&file, Some(65534), Some(65534)).is_ok() {
            assert!(refusal(0o4755).is_some_and(|why| why.contains("set-user-ID")));
            assert!(refusal(0o2755).is_some_and(|why| why.contains("set-group-ID")));
            assert_eq!(refusal(0o2745), None, "nobody of the group executes it");
        }
    }

    #[test]
    fn a_program_that_works_is_not_refused() {
        assert_eq!(check(std::env::current_exe().unwrap().as_os_str()), Ok(()));
        assert_eq!(check(OsStr::new("no-program-of-this-name")), Ok(()), "the attempt to start it says so");
    }
}
