//! `--races`: whether a program is free of data races, as far as its code tells.
//!
//! Release consistency orders what threads store only by calls that Trellis sees. Instructions that are atomic, a fence,
//! or a wait in a loop show that threads order something by themselves. Some compilers make a reduction of OpenMP out of
//! atomic instructions; these change one variable, which is small or lies on a stack, so it is no relaxed memory.
//!
//! Promises: the program and those libraries are looked at whose variables the program's threads share. What cannot be
//! read counts as not free of data races. A flag that is set by a plain store leaves no trace in the code.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionKind, SymbolKind};
use trellis_output::programs;

/// Libraries that order their own threads' accesses by calls that Trellis answers, or have no part in them.
const OF_THE_SYSTEM: &[&str] = &[
    "ld-linux",
    "linux-vdso",
    "libc.so",
    "libpthread.so",
    "libdl.so",
    "librt.so",
    "libm.so",
    "libmvec.so",
    "libutil.so",
    "libresolv.so",
    "libgcc_s.so",
    "libgomp.so",
    "libomp.so",
    "libiomp5.so",
    "libstdc++.so",
    "libc++.so",
    "libc++abi.so",
    "libgfortran.so",
    "libquadmath.so",
];

/// The parts of names that compilers give to functions with the body of a parallel region.
const OF_REGIONS: &[&str] = &["._omp_fn", "omp_outlined"];

/// Code by which threads order their accesses.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ordering {
    /// The first of these instructions, and where it stands.
    instruction: String,
    place: String,
    file: PathBuf,
    /// How many more there are.
    more: usize,
}

impl fmt::Display for Ordering {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ordering { instruction, place, file, more } = self;
        write!(formatter, "{} orders threads by `{instruction}` in {place}", file.display())?;
        if *more > 0 { write!(formatter, ", and in {more} more places") } else { Ok(()) }
    }
}

/// Looks for such code in a program and its libraries, whose names the nodes find with this path.
///
/// # Errors
///
/// Why the program cannot be read.
pub(super) fn ordering(program: &OsStr, path: Option<&OsStr>) -> Result<Option<Ordering>, String> {
    let own = std::env::var_os("PATH");
    let program = programs::find_in(program, path.or(own.as_deref()))
        .map_err(|error| format!("{} cannot be read here: {error}", Path::new(program).display()))?;
    let mut found: Option<Ordering> = None;
    for file in std::iter::once(program.clone()).chain(libraries(&program)) {
        let bytes = std::fs::read(&file).map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
        let of_file = in_file(&file, &bytes).map_err(|why| format!("{}: {why}", file.display()))?;
        match (&mut found, of_file) {
            (Some(found), Some(other)) => found.more += 1 + other.more,
            (None, of_file) => found = of_file,
            _ => {}
        }
    }
    Ok(found)
}

/// The libraries that are loaded with a program, as the loader says (ld.so(8)), without those of the system.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = Command::new(program).env("LD_TRACE_LOADED_OBJECTS", "1").stdin(Stdio::null()).output();
    let text = listed.map(|listed| String::from_utf8_lossy(&listed.stdout).into_owned()).unwrap_or_default();
    let of_line = |line: &str| {
        let (name, rest) = line.trim().split_once(" => ")?;
        let is_of_system = OF_THE_SYSTEM.iter().any(|start| name.starts_with(start));
        (!is_of_system).then(|| PathBuf::from(rest.split(" (0x").next().unwrap_or(rest)))
    };
    text.lines().filter_map(of_line).filter(|file| file.is_absolute()).collect()
}

fn in_file(file: &Path, bytes: &[u8]) -> Result<Option<Ordering>, String> {
    let object = object::File::parse(bytes).map_err(|_| "it is no program, but perhaps a script".to_owned())?;
    if object.architecture() != object::Architecture::X86_64 {
        return Err("it is not for x86-64".to_owned());
    }
    let mut functions: Vec<(u64, u64, &str)> = object
        .symbols()
        .chain(object.dynamic_symbols())
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
        .filter_map(|symbol| Some((symbol.address(), symbol.size(), symbol.name().ok()?)))
        .collect();
    functions.sort_unstable();
    let function_at = |address: u64| {
        let last = functions.partition_point(|(start, ..)| *start <= address).checked_sub(1)?;
        let (start, size, name) = functions[last];
        (address < start + size).then_some(name)
    };
    let mut found: Option<Ordering> = None;
    for section in object.sections().filter(|section| section.kind() == SectionKind::Text) {
        let code = section.data().map_err(|error| error.to_string())?;
        let mut decoder = Decoder::with_ip(64, code, section.address(), DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if !orders(&instruction) {
                continue;
            }
            let function = function_at(instruction.ip());
            let is_of_region = function.is_some_and(|name| OF_REGIONS.iter().any(|part| name.contains(part)));
            if is_of_region && is_reduction(&instruction) {
                continue;
            }
            match &mut found {
                Some(found) => found.more += 1,
                None => {
                    let name = format!("{:?}", instruction.mnemonic()).to_lowercase();
                    let prefix = if instruction.has_lock_prefix() { "lock " } else { "" };
                    let place = match function {
                        Some(function) => format!("the function {function}"),
                        None => format!("the code at {:#x}", instruction.ip()),
                    };
                    let file = file.to_owned();
                    found = Some(Ordering { instruction: format!("{prefix}{name}"), place, file, more: 0 });
                }
            }
        }
    }
    Ok(found)
}

/// Whether an instruction is atomic, a fence, or a part of a loop that waits (Intel 64 and IA-32 Architectures Software
/// Developer's Manual, volume 3, 10.1.2.2 and 10.2.5; volume 2, PAUSE).
fn orders(instruction: &Instruction) -> bool {
    let has_memory = (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
    instruction.has_lock_prefix()
        || instruction.mnemonic() == Mnemonic::Xchg && has_memory
        || matches!(instruction.mnemonic(), Mnemonic::Mfence | Mnemonic::Pause | Mnemonic::Tpause | Mnemonic::Umwait)
}

/// Whether an atomic instruction changes one variable, as a reduction does, and not an element of an array; an addition of
/// zero to the stack is a fence.
fn is_reduction(instruction: &Instruction) -> bool {
    instruction.has_lock_prefix()
        && instruction.memory_index() == Register::None
        && !matches!(instruction.memory_base(), Register::RSP | Register::ESP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(code: &[u8]) -> Instruction {
        Decoder::new(64, code, DecoderOptions::NONE).decode()
    }

    #[test]
    fn atomic_instructions_fences_and_waits_order_threads() {
        for (code, expected, reduces) in [
            (&[0xf0, 0x48, 0x01, 0x03][..], true, true),    // lock add [rbx], rax
            (&[0xf0, 0x48, 0x0f, 0xb1, 0x0b], true, true),  // lock cmpxchg [rbx], rcx
            (&[0xf0, 0x48, 0x01, 0x04, 0xcb], true, false), // lock add [rbx+rcx*8], rax
            (&[0xf0, 0x83, 0x0c, 0x24, 0x00], true, false), // lock or dword [rsp], 0
            (&[0x48, 0x87, 0x03], true, false),             // xchg [rbx], rax
            (&[0x0f, 0xae, 0xf0], true, false),             // mfence
            (&[0xf3, 0x90], true, false),                   // pause
            (&[0x48, 0x93], false, false),                  // xchg rax, rbx
            (&[0x48, 0x01, 0x03], false, false),            // add [rbx], rax
            (&[0x90], false, false),                        // nop
        ] {
            let instruction = decoded(code);
            assert_eq!(orders(&instruction), expected, "{code:x?}");
            assert_eq!(is_reduction(&instruction), reduces, "{code:x?}");
        }
    }

    #[test]
    fn a_script_is_not_taken_for_free_of_races() {
        let error = in_file(Path::new("x"), b"#!/bin/sh\n").expect_err("it has no code");
        assert!(error.contains("script"), "{error}");
    }
}
