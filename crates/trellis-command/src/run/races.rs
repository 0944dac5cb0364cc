//! `--races`: whether a program is free of data races, as far as its code shows.
//!
//! Release consistency orders what threads store only by calls that Trellis sees. Atomic instructions, fences and waits
//! in a loop show that threads order their accesses by themselves. Some compilers make a reduction of OpenMP out of an
//! atomic instruction after the loop; it changes one variable, which is small or lies on a stack, so it is no relaxed
//! memory.
//!
//! Promises: the program is examined, and those libraries whose variables the program's threads share. A file that
//! cannot be read counts as not free of data races. A flag that is set by a plain store leaves no trace in the code.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use object::elf::{FileHeader64, PT_INTERP};
use object::endian::Endianness;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionKind, SymbolKind};
use trellis_base::is_c_library;
use trellis_output::programs;

/// Libraries that are not examined, such as those of C. Their atomic instructions change small blocks, which stay
/// sequentially consistent, or memory that they have from the kernel.
const OF_LANGUAGES: &[&str] = &[
    "linux-vdso",
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
    /// The first of these instructions, and its place.
    instruction: &'static str,
    place: String,
    file: PathBuf,
    /// The number of further ones.
    more: usize,
}

impl fmt::Display for Ordering {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ordering { instruction, place, file, more } = self;
        write!(formatter, "{} orders threads by `{instruction}` in {place}", file.display())?;
        match *more {
            0 => Ok(()),
            1 => formatter.write_str(", and in another place"),
            more => write!(formatter, ", and in {more} other places"),
        }
    }
}

/// Looks for such code in a program and its libraries. The nodes run in `directory`, if that is not this process's, and look
/// for the program with this path.
///
/// # Errors
///
/// Why the program cannot be read.
pub(super) fn ordering(
    program: &OsStr,
    path: Option<&OsStr>,
    directory: Option<&Path>,
) -> Result<Option<Ordering>, String> {
    let own = std::env::var_os("PATH");
    let from = |directory: &Path| directory.join(program).into_os_string();
    let has_folder = program.as_encoded_bytes().contains(&b'/');
    let named = directory.filter(|_| has_folder).map_or_else(|| program.to_owned(), from);
    let program = programs::find_in(&named, path.or(own.as_deref()))
        .map_err(|error| format!("{} cannot be read here: {error}", Path::new(&named).display()))?;
    let mut found: Option<Ordering> = None;
    for file in std::iter::once(program.clone()).chain(libraries(&program)?) {
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

/// The libraries that are loaded with a program, as its loader says (ld.so(8)), without those of the system. The program does
/// not run.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, String> {
    let unknown = |why: String| format!("the libraries of {} are not known: {why}", program.display());
    let bytes = std::fs::read(program).map_err(|error| unknown(error.to_string()))?;
    let loader = loader_of(&bytes).ok_or_else(|| unknown("it has no loader".to_owned()))?;
    let listed = Command::new(loader).arg("--list").arg(program).stdin(Stdio::null()).output();
    let listed = listed.map_err(|error| unknown(error.to_string()))?;
    if !listed.status.success() {
        return Err(unknown(String::from_utf8_lossy(&listed.stderr).trim().to_owned()));
    }
    let text = String::from_utf8_lossy(&listed.stdout);
    let of_line = |line: &str| {
        let (name, rest) = line.trim().split_once(" => ")?;
        let is_of_system = is_c_library(name) || OF_LANGUAGES.iter().any(|start| name.starts_with(start));
        let file = PathBuf::from(rest.split(" (0x").next().unwrap_or(rest));
        let missing = || unknown(format!("{name} is not found"));
        (!is_of_system).then(|| if file.is_absolute() { Ok(file) } else { Err(missing()) })
    };
    text.lines().filter_map(of_line).collect()
}

/// The loader that a program names.
fn loader_of(program: &[u8]) -> Option<PathBuf> {
    let header = FileHeader64::<Endianness>::parse(program).ok()?;
    let endian = header.endian().ok()?;
    let parts = header.program_headers(endian, program).ok()?;
    let name = parts.iter().find(|part| part.p_type(endian) == PT_INTERP)?.data(endian, program).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(name.split(|byte| *byte == 0).next()?)))
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
        let Section { ordering, loops } = in_section(code, section.address());
        for instruction in ordering {
            let address = instruction.ip();
            let function = function_at(address);
            let is_of_region = function.is_some_and(|name| OF_REGIONS.iter().any(|part| name.contains(part)));
            if is_of_region && is_reduction(&instruction) && !loops.iter().any(|range| range.contains(&address)) {
                continue;
            }
            match &mut found {
                Some(found) => found.more += 1,
                None => {
                    let place = match function {
                        Some(function) => format!("the function {function}"),
                        None => format!("the code at {address:#x}"),
                    };
                    let file = file.to_owned();
                    found = Some(Ordering { instruction: kind_of(&instruction), place, file, more: 0 });
                }
            }
        }
    }
    Ok(found)
}

/// The findings in a section.
struct Section {
    /// The instructions that order threads.
    ordering: Vec<Instruction>,
    /// The loops that contain one, by addresses. A short loop around an atomic instruction alone repeats it until it has
    /// succeeded, and does not count.
    loops: Vec<Range<u64>>,
}

/// The largest distance of a jump back that repeats one atomic instruction.
const REPEATS_BYTES_MAX: u64 = 64;

fn in_section(code: &[u8], address: u64) -> Section {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut section = Section { ordering: Vec::new(), loops: Vec::new() };
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if orders(&instruction) {
            section.ordering.push(instruction);
        }
        let is_branch = instruction.op_count() == 1 && instruction.op0_kind() == OpKind::NearBranch64;
        let is_jump = is_branch && instruction.mnemonic() != Mnemonic::Call;
        let target = instruction.near_branch_target();
        let is_back = is_jump && target != 0 && target < instruction.ip();
        if is_back {
            let inside = section.ordering.iter().rev().take_while(|before| before.ip() >= target).count();
            let repeats_one =
                inside == 1 && instruction.ip() - target <= REPEATS_BYTES_MAX && repeats(&section, &instruction);
            if inside > 0 && !repeats_one {
                section.loops.push(target..instruction.ip());
            }
        }
    }
    section
}

/// Whether a jump back follows at once after a comparison and exchange, whose outcome it looks at.
fn repeats(section: &Section, jump: &Instruction) -> bool {
    section.ordering.last().is_some_and(|last| {
        last.mnemonic() == Mnemonic::Cmpxchg && jump.mnemonic() == Mnemonic::Jne && jump.ip() - last.next_ip() <= 16
    })
}

/// Whether an instruction is atomic, a fence, or a part of a loop that waits (Intel 64 and IA-32 Architectures Software
/// Developer's Manual, volume 3, 10.1.2.2 and 10.2.5; volume 2, PAUSE).
fn orders(instruction: &Instruction) -> bool {
    let has_memory = (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
    instruction.has_lock_prefix()
        || instruction.mnemonic() == Mnemonic::Xchg && has_memory
        || matches!(instruction.mnemonic(), Mnemonic::Mfence | Mnemonic::Pause | Mnemonic::Tpause | Mnemonic::Umwait)
}

/// The name of such an instruction, or its prefix. The names of all instructions would be a hundredth of the command.
fn kind_of(instruction: &Instruction) -> &'static str {
    match instruction.mnemonic() {
        Mnemonic::Mfence => "mfence",
        Mnemonic::Pause => "pause",
        Mnemonic::Tpause => "tpause",
        Mnemonic::Umwait => "umwait",
        Mnemonic::Xchg => "xchg",
        Mnemonic::Cmpxchg => "lock cmpxchg",
        Mnemonic::Xadd => "lock xadd",
        _ => "lock",
    }
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
    fn an_atomic_instruction_in_a_loop_is_no_reduction() {
        // Repeats a comparison and exchange until it succeeds; then adds in a loop of its own.
        const RETRY: &[u8] = &[0x48, 0x8b, 0x03, 0xf0, 0x48, 0x0f, 0xb1, 0x0b, 0x75, 0xf6];
        const LOOP: &[u8] = &[0xf0, 0x48, 0x83, 0x01, 0x01, 0x83, 0xea, 0x01, 0x75, 0xf6];
        assert!(in_section(RETRY, 0x1000).loops.is_empty());
        assert_eq!(in_section(LOOP, 0x1000).loops, vec![0x1000..0x1008]);
        assert_eq!(in_section(&[RETRY, LOOP].concat(), 0x1000).ordering.len(), 2);
    }

    #[test]
    fn a_script_is_not_taken_for_free_of_races() {
        let error = in_file(Path::new("x"), b"#!/bin/sh\n").expect_err("it has no code");
        assert!(error.contains("script"), "{error}");
    }
}
