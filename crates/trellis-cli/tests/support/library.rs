//! The library of this build, for C and C++ programs of tests.

use std::io::ErrorKind;
use std::path::Path;

use trellis_testing::{Need, skip};

/// The compiler's arguments for the headers and the library; `None` if the library is not built, which is then printed.
pub(crate) fn of_this_build(test: &str) -> Option<Vec<String>> {
    let library = Path::new(env!("CARGO_BIN_EXE_trellis")).parent().expect("a folder").join("libtrellis_c.so");
    if !library.is_file() {
        skip(test, Need::Part, format_args!("{} is not built (cargo build -p trellis-c)", library.display()));
        return None;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("library");
    std::fs::create_dir_all(&folder).expect("a folder below the target folder");
    // The names that a linker and a starting program look for.
    for name in ["libtrellis.so", "libtrellis.so.0"] {
        match std::os::unix::fs::symlink(&library, folder.join(name)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => panic!("{name} in {}: {error}", folder.display()),
            _ => {}
        }
    }
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trellis-c/include");
    let folder = folder.display();
    Some(vec![
        format!("-I{}", headers.display()),
        format!("-L{folder}"),
        format!("-Wl,-rpath,{folder}"),
        "-ltrellis".to_owned(),
        "-pthread".to_owned(),
    ])
}
