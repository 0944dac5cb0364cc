//! Proof that the protocols need no operating system: a program without `std`, libc and loader links them, runs
//! protocols of a cluster through a fault, a reply and a grant, has a memory server grant a lease, and exits by a
//! bare system call.
//!
//! The linker provides the proof: it searches only these crates, `core` and `alloc`, so any call into an operating
//! system would stay undefined. Then the file itself is checked: no interpreter, no shared library.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::step;
use crate::workspace::Workspace;

/// Builds, inspects and runs the program.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        bail!("the program has no system call for this processor; add one to crates/xtask/assets/pure.rs");
    }
    let folder = workspace.target.join("pure");
    std::fs::create_dir_all(&folder)?;
    let program = folder.join("pure");
    let library = |name: &str| folder.join(format!("lib{}.rlib", name.replace('-', "_")));
    for (name, below) in CRATES {
        let mut build = workspace.command("rustc");
        build.args([&format!("crates/{name}/src/lib.rs"), "--crate-type", "rlib", "--crate-name"]);
        build.arg(name.replace('-', "_")).args(FLAGS).arg("-o").arg(library(name));
        for below in below {
            build.arg("--extern").arg(format!("{}={}", below.replace('-', "_"), library(below).display()));
        }
        step::run(&mut build)?;
    }
    let mut link = workspace.command("rustc");
    link.arg("crates/xtask/assets/pure.rs").args(FLAGS).arg("-L").arg(&folder);
    for (name, _) in CRATES {
        link.arg("--extern").arg(format!("{}={}", name.replace('-', "_"), library(name).display()));
    }
    link.args(["-C", "link-args=-nostartfiles -nostdlib -static", "-C", "relocation-model=static"]);
    link.arg("-o").arg(&program);
    step::run(&mut link)?;
    inspect(&program)?;
    let undefined = step::output(workspace.command("nm").arg("--undefined-only").arg(&program))?;
    if !undefined.trim().is_empty() {
        bail!("the program still needs:\n{undefined}");
    }
    step::run(&mut workspace.command(&program))
        .context("the program must end with 0; pure.rs says what other numbers mean")
}

/// The crates, and the dependencies of each.
const CRATES: [(&str, &[&str]); 3] = [
    ("trellis-base", &[]),
    ("trellis-cluster-protocol", &["trellis-base"]),
    ("trellis-fabric-protocol", &["trellis-base"]),
];
const FLAGS: [&str; 5] = ["--edition=2024", "-Cpanic=abort", "-Copt-level=2", "-Cdebuginfo=0", "-Dwarnings"];

/// Inspects the file: a program that needs an interpreter or dynamic linking needs an operating system's library.
fn inspect(program: &Path) -> Result<()> {
    const INTERPRETER: u32 = 3;
    const DYNAMIC: u32 = 2;
    let bytes = std::fs::read(program).with_context(|| format!("{} cannot be read", program.display()))?;
    let kinds = segment_kinds(&bytes).context("the program is not a 64-bit little-endian ELF file")?;
    if kinds.iter().any(|kind| matches!(*kind, INTERPRETER | DYNAMIC)) {
        bail!("the program is linked dynamically, so it needs an operating system's loader");
    }
    Ok(())
}

/// The kinds of the segments of an ELF file (elf(5): `e_phoff`, `e_phentsize`, `e_phnum`, `p_type`).
fn segment_kinds(bytes: &[u8]) -> Option<Vec<u32>> {
    let number = |at: usize, length: usize| -> Option<u64> {
        let field = bytes.get(at..at.checked_add(length)?)?;
        Some(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let is_64_bit_little_endian = bytes.get(..6)? == [0x7f, b'E', b'L', b'F', 2, 1];
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let kinds = (0..count).map(|index| Some(number(usize::try_from(table + index * size).ok()?, 4)? as u32));
    kinds.collect::<Option<Vec<u32>>>().filter(|_| is_64_bit_little_endian)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_program_would_be_refused() {
        let own = std::env::current_exe().unwrap();
        assert!(inspect(&own).unwrap_err().to_string().contains("linked dynamically"));
        assert!(inspect(Path::new("/etc/passwd")).unwrap_err().to_string().contains("not a 64-bit"));
    }

    #[test]
    fn a_cut_file_is_no_program() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(segment_kinds(&own).is_some());
        assert_eq!(segment_kinds(&own[..60]), None);
        assert_eq!(segment_kinds(&[]), None);
    }
}
