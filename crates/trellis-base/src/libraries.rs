//! Names of libraries that every program has.
//!
//! Promises: the same answer for every version of a library. It must never look at a file.

/// The beginnings of the names of the C library's files, of its loader, and of the compiler's support for it.
const OF_C: [&str; 12] = [
    "ld-linux",
    "libanl.so",
    "libc.so",
    "libdl.so",
    "libgcc_s.so",
    "libm.so",
    "libmvec.so",
    "libnss_",
    "libpthread.so",
    "libresolv.so",
    "librt.so",
    "libutil.so",
];

/// Whether a file with this name is a part of the C library, whose variables are those of a process: of threads, files and
/// memory as its kernel knows them.
pub fn is_c_library(name: &str) -> bool {
    OF_C.iter().any(|start| name.starts_with(start))
}
