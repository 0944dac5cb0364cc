//! Installs the library, the headers and the files for pkg-config and CMake under a prefix.
//!
//! Promises: the installed tree can be moved, because nothing in it names the prefix. Installing twice gives the same
//! tree. It needs only the standard library, so that other programs can include this file. It must never remove a
//! file that it would not write itself.
//!
//! ```text
//! PREFIX/lib/libtrellis.so.0.1.0            the library
//! PREFIX/lib/libtrellis.so.0                what a program asks for when it starts
//! PREFIX/lib/libtrellis.so                  what -ltrellis finds
//! PREFIX/lib/libivy.so                      what -livy finds
//! PREFIX/lib/libtrellis_calls.so            what `trellis run` loads first
//! PREFIX/lib/libtrellis_threads.so          what `trellis threads` loads first
//! PREFIX/lib/pkgconfig/{trellis,libivy}.pc
//! PREFIX/lib/cmake/Trellis/TrellisConfig.cmake, TrellisConfigVersion.cmake
//! PREFIX/include/{trellis.h,trellis.hpp,ivy.hh,libivy.hh}, PREFIX/include/libivy/*.hh
//! PREFIX/include/trellis/*.hpp, PREFIX/include/trellis/{parmacs.h,remote.h,stored.h,stored_synchronisation.h}
//! PREFIX/share/trellis/c.m4.{trellis,pthreads,null}
//! PREFIX/share/trellis/parmacs/                 the programs that `trellis reproduce vismi` builds
//! ```

use std::io;
use std::path::{Path, PathBuf};

/// The library that makes calls of the C library whole.
pub(crate) const CALLS: &str = "libtrellis_calls.so";

/// The library that lets the threads of a program run on several nodes.
pub(crate) const THREADS: &str = "libtrellis_threads.so";

/// Headers, relative to `include/` at the source and at the target.
const HEADERS: [&str; 19] = [
    "trellis.h",
    "trellis.hpp",
    "trellis/array.hpp",
    "trellis/heap.hpp",
    "trellis/standard.hpp",
    "trellis/synchronisation.hpp",
    "trellis/parmacs.h",
    "trellis/remote.h",
    "trellis/remote.hpp",
    "trellis/remote_memory.hpp",
    "trellis/stored.h",
    "trellis/stored_synchronisation.h",
    "trellis/stored_synchronisation.hpp",
    "ivy.hh",
    "libivy.hh",
    "libivy/common.hh",
    "libivy/error.hh",
    "libivy/ivy.hh",
    "libivy/libivy.hh",
];

/// The macros of PARMACS programs: in the repository's `parmacs/`, and in `share/trellis/` below the prefix.
const MACROS: [&str; 3] = ["c.m4.trellis", "c.m4.pthreads", "c.m4.null"];

/// The PARMACS programs, in `examples/parmacs/` and in `share/trellis/parmacs/`.
const PROGRAMS: [&str; 14] = [
    "program.h",
    "product.h",
    "barnes/barnes.c.in",
    "barnes/barnes_kernel.h",
    "fft/fft.c.in",
    "fft/fft_kernel.h",
    "lu/lu.c.in",
    "lu/lu_kernel.h",
    "matmul/matmul.c.in",
    "matmul/matmul_kernel.h",
    "ocean/ocean.c.in",
    "ocean/ocean_kernel.h",
    "radix/radix.c.in",
    "radix/radix_kernel.h",
];

/// Templates in `cmake/` and their targets; `@VERSION@` in them is replaced by the version.
const TEMPLATES: [(&str, &str); 4] = [
    ("trellis.pc.in", "lib/pkgconfig/trellis.pc"),
    ("libivy.pc.in", "lib/pkgconfig/libivy.pc"),
    ("TrellisConfig.cmake.in", "lib/cmake/Trellis/TrellisConfig.cmake"),
    ("TrellisConfigVersion.cmake.in", "lib/cmake/Trellis/TrellisConfigVersion.cmake"),
];

/// Installs everything and returns every path that it wrote. `source` is the folder of the crate `trellis-c`;
/// `library` is the shared library as cargo built it (`target/release/libtrellis_c.so`, or the one in `deps` there);
/// `version` is the workspace's, such as "0.1.0".
pub(crate) fn install(source: &Path, library: &Path, prefix: &Path, version: &str) -> io::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    let major = version.split('.').next().unwrap_or(version);
    let full_name = format!("libtrellis.so.{version}");
    let lib = prefix.join("lib");
    copy(library, &lib.join(&full_name), &mut written)?;
    for name in [&format!("libtrellis.so.{major}"), "libtrellis.so", "libivy.so"] {
        link(&full_name, &lib.join(name), &mut written)?;
    }
    // Cargo puts the libraries on which one depends into `deps`.
    for name in [CALLS, THREADS] {
        let among_dependencies = library.with_file_name("deps").join(name);
        let built = if among_dependencies.exists() { among_dependencies } else { library.with_file_name(name) };
        copy(&built, &lib.join(name), &mut written)?;
    }
    for header in HEADERS {
        copy(&source.join("include").join(header), &prefix.join("include").join(header), &mut written)?;
    }
    for file in MACROS {
        copy(&source.join("../../parmacs").join(file), &prefix.join("share/trellis").join(file), &mut written)?;
    }
    for file in PROGRAMS {
        let to = prefix.join("share/trellis/parmacs").join(file);
        copy(&source.join("../../examples/parmacs").join(file), &to, &mut written)?;
    }
    for (template, target) in TEMPLATES {
        let from = source.join("cmake").join(template);
        let text = std::fs::read_to_string(&from).map_err(|error| named(error, "read", &from))?;
        let to = prefix.join(target);
        make_parent(&to)?;
        std::fs::write(&to, text.replace("@VERSION@", version)).map_err(|error| named(error, "write", &to))?;
        written.push(to);
    }
    Ok(written)
}

/// Copies to a file beside the target and renames it, so that a running program keeps the library it has mapped.
fn copy(from: &Path, to: &Path, written: &mut Vec<PathBuf>) -> io::Result<()> {
    make_parent(to)?;
    let beside = to.with_added_extension("new");
    std::fs::copy(from, &beside).map_err(|error| named(error, "copy", from))?;
    std::fs::rename(&beside, to).map_err(|error| named(error, "write", to))?;
    written.push(to.to_owned());
    Ok(())
}

fn link(points_to: &str, at: &Path, written: &mut Vec<PathBuf>) -> io::Result<()> {
    let beside = at.with_added_extension("new");
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(error, "replace", &beside)),
        _ => {}
    }
    std::os::unix::fs::symlink(points_to, &beside).map_err(|error| named(error, "make", &beside))?;
    // A program that starts meanwhile finds the old link or the new one.
    std::fs::rename(&beside, at).map_err(|error| named(error, "replace", at))?;
    written.push(at.to_owned());
    Ok(())
}

fn make_parent(of: &Path) -> io::Result<()> {
    let folder = of.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(|error| named(error, "make the folder", folder))
}

fn named(error: io::Error, verb: &str, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {verb} {}: {error}", path.display()))
}
