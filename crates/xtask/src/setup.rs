//! The system packages that are needed beside Rust, and their installation on Debian.
//!
//! It must never run a package manager if nothing is missing, and never as another user: without the right to install
//! it prints the command.

use std::process::Command;

use anyhow::{Context, Result, bail};
use trellis_output::programs;

use crate::{instructions, kubernetes, package, site, spelling, step};

/// A program, a library that pkg-config knows, a file or a Python module, and the Debian package that provides it.
#[derive(Clone, Copy)]
pub(crate) struct Needed {
    program: &'static str,
    package: &'static str,
}

/// The prefix of a name that pkg-config knows.
const LIBRARY: &str = "pkg-config:";
/// The prefix of the path of a file.
const FILE: &str = "file:";
/// The prefix of the name of a Python module.
const MODULE: &str = "python:";

impl Needed {
    pub(crate) const fn new(program: &'static str, package: &'static str) -> Needed {
        Needed { program, package }
    }

    /// Whether it is installed.
    pub(crate) fn is_here(&self) -> bool {
        if let Some(file) = self.program.strip_prefix(FILE) {
            return std::path::Path::new(file).is_file();
        }
        if let Some(module) = self.program.strip_prefix(MODULE) {
            let mut python = Command::new("python3");
            return python.args(["-c", &format!("import {module}")]).status().is_ok_and(|status| status.success());
        }
        match self.program.strip_prefix(LIBRARY) {
            Some(library) => {
                Command::new("pkg-config").args(["--exists", library]).status().is_ok_and(|status| status.success())
            }
            None => programs::find(self.program).is_some(),
        }
    }
}

/// Everything that any task needs, with what only all checks need.
pub(crate) fn everything() -> Vec<Needed> {
    [NEEDED, FOR_ALL_CHECKS].concat()
}

/// What `cargo xtask ci --full` needs beside what every change needs.
pub(crate) const FOR_ALL_CHECKS: &[Needed] = &[kubernetes::CONTAINERS, package::SYSTEM, site::BROWSER];

/// Everything that the checks of every change need.
pub(crate) const NEEDED: &[Needed] = &[
    COMPILER,
    Needed { program: "cc", package: "gcc" },
    // Compiles the headers for the other architecture.
    Needed { program: "aarch64-linux-gnu-g++", package: "g++-aarch64-linux-gnu" },
    Needed { program: "cmake", package: "cmake" },
    Needed { program: "make", package: "make" },
    MACRO_PROCESSOR,
    PACKAGE_FINDER,
    Needed { program: "nm", package: "binutils" },
    FABRIC,
    CLANG,
    LLVM,
    Needed { program: "FileCheck-19", package: "llvm-19-tools" },
    Needed { program: "redis-server", package: "redis-server" },
    Needed { program: "gfortran", package: "gfortran" },
    // The library of clang's OpenMP, with which its programs are linked.
    Needed { program: "file:/usr/lib/llvm-19/lib/libomp.so", package: "libomp-19-dev" },
    Needed { program: "pigz", package: "pigz" },
    Needed { program: "pbzip2", package: "pbzip2" },
    Needed { program: "zstd", package: "zstd" },
    Needed { program: "clustalo", package: "clustalo" },
    Needed { program: "etcd", package: "etcd-server" },
    Needed { program: "etcdctl", package: "etcd-client" },
    Needed { program: "java", package: "default-jdk-headless" },
    Needed { program: "mvn", package: "maven" },
    PROTOBUF,
    PROTOBUF_TYPES,
    instructions::COUNTER,
    Needed { program: "gdb", package: "gdb" },
    Needed { program: "ip", package: "iproute2" },
    Needed { program: "ssh", package: "openssh-client" },
    // It may be outside of PATH.
    Needed { program: "file:/usr/sbin/sshd", package: "openssh-server" },
    // The engines that start programs on several machines. Debian's Slurm opens the library of PMIx by the name that only
    // the package for developers has.
    Needed { program: "mpiexec.hydra", package: "mpich" },
    Needed { program: "ompi_info", package: "openmpi-bin" },
    Needed { program: "file:/usr/sbin/slurmctld", package: "slurm-wlm" },
    Needed { program: "file:/usr/sbin/munged", package: "munge" },
    Needed { program: "pkg-config:pmix", package: "libpmix-dev" },
    Needed { program: "file:/usr/sbin/ovs-vswitchd", package: "openvswitch-switch" },
    KERNEL_HEADERS,
    package::RPM,
    package::SHLIBDEPS,
    package::UNITS,
    package::MANUAL,
    spelling::PYTHON,
];

/// The programs among what tasks need, each with its package.
pub(crate) fn programs() -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_program = |needed: &&Needed| ![LIBRARY, FILE, MODULE].iter().any(|kind| needed.program.starts_with(kind));
    NEEDED.iter().filter(is_program).map(|needed| (needed.program, needed.package))
}

/// For the feature `fabric`: the checks build it, users need not.
pub(crate) const FABRIC: Needed = Needed { program: "pkg-config:libfabric >= 1.17", package: "libfabric-dev" };

/// For the feature `etcd`: the checks build it, users need not.
pub(crate) const PROTOBUF: Needed = Needed { program: "protoc", package: "protobuf-compiler" };
/// Google's types, which etcd's interface imports: Debian packages them apart from the compiler.
pub(crate) const PROTOBUF_TYPES: Needed =
    Needed { program: "file:/usr/include/google/protobuf/descriptor.proto", package: "libprotobuf-dev" };

/// For the feature `bpf`: the checks build it, users need not.
pub(crate) const BPF_COMPILER: Needed = CLANG;
/// The kernel's headers for programs, also for the feature `bpf`.
pub(crate) const KERNEL_HEADERS: Needed =
    Needed { program: "file:/usr/include/linux/bpf.h", package: "linux-libc-dev" };

/// Finds libraries.
pub(crate) const PACKAGE_FINDER: Needed = Needed { program: "pkg-config", package: "pkg-config" };

const CLANG: Needed = Needed { program: "clang-19", package: "clang-19" };
const LLVM: Needed = Needed { program: "llvm-config-19", package: "llvm-19-dev" };
/// The tools to build the compiler pass.
pub(crate) const PASS: &[Needed] = &[COMPILER, Needed { program: "cmake", package: "cmake" }, CLANG, LLVM];

/// The C++ compiler alone, which suffices for the demonstration.
pub(crate) const COMPILER: Needed = Needed { program: "c++", package: "g++" };
/// Expands the macros of PARMACS programs.
pub(crate) const MACRO_PROCESSOR: Needed = Needed { program: "m4", package: "m4" };

/// Ensures that the programs are installed; reports if there was nothing to do.
pub(crate) fn install(needed: &[Needed]) -> Result<()> {
    if missing(needed).is_empty() {
        eprintln!("==> setup: everything is there");
        return Ok(());
    }
    ensure(needed)
}

/// Ensures that the programs are installed, and is silent if they are.
pub(crate) fn ensure(needed: &[Needed]) -> Result<()> {
    let packages = missing(needed);
    if packages.is_empty() {
        return Ok(());
    }
    let by_hand = format!("apt-get install -y --no-install-recommends {}", packages.join(" "));
    if programs::find("apt-get").is_none() {
        bail!(
            "{} must be installed, and this is no Debian; install it with your system's package manager",
            packages.join(", ")
        );
    }
    if !is_root()? {
        bail!("{} must be installed, which only root may do; run `sudo {by_hand}`", packages.join(", "));
    }
    let name = format!("install {}", packages.join(", "));
    step::step(&name, || apt_get_install(&packages).with_context(|| format!("try it by hand: `{by_hand}`")))?;
    let still_missing = missing(needed);
    if !still_missing.is_empty() {
        bail!("{} was installed and its program is still not in PATH; check PATH", still_missing.join(", "));
    }
    Ok(())
}

fn apt_get_install(packages: &[&str]) -> Result<()> {
    let apt_get = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").stdin(std::process::Stdio::null()).arg("-q");
        // Standard output is for results.
        command.stdout(std::io::stderr());
        command
    };
    let install = || step::run(apt_get().args(["install", "-y", "--no-install-recommends"]).args(packages));
    // A fresh image has no package lists; a used one has, and needs no download.
    install().or_else(|_| step::run(apt_get().arg("update")).and_then(|()| install()))
}

fn missing(needed: &[Needed]) -> Vec<&'static str> {
    needed.iter().filter(|one| !one.is_here()).map(|one| one.package).collect()
}

/// Whether this process has root's rights, according to `id`.
pub(crate) fn is_root() -> Result<bool> {
    Ok(step::output(Command::new("id").arg("-u"))?.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_asked_for() {
        let shell = Needed { program: "sh", package: "dash" };
        let nothing = Needed { program: "no-such-program-anywhere", package: "nothing" };
        let library = Needed { program: "pkg-config:no-such-library-anywhere", package: "no library" };
        let file = Needed { program: "file:/no/such/file", package: "no file" };
        assert_eq!(missing(&[shell, nothing, library, file]), ["nothing", "no library", "no file"]);
        assert!(ensure(&[shell]).is_ok());
    }
}
