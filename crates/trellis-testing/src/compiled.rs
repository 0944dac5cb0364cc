//! C and C++ programs of tests, each compiled once.

use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use trellis_output::programs;

/// The program that a compiler makes from a source with these arguments.
///
/// It is compiled only if there is none yet, or if the source, a header or the compiler changed since. It lies below
/// the target folder, and has the name of its source. Test programs share it: they must not write to its folder. A
/// library that is linked at run time may change without a new compilation, because no part of it lies in the program.
///
/// # Panics
///
/// If the compiler cannot be started, or refuses the source.
pub fn compiled<A: AsRef<OsStr>>(compiler: &str, source: &Path, arguments: &[A]) -> PathBuf {
    let source = source.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let mut command = Command::new(compiler);
    command.arg(&source).args(arguments);

    let mut key = DefaultHasher::new();
    command.get_program().hash(&mut key);
    command.get_args().for_each(|argument| argument.hash(&mut key));
    let test = std::env::current_exe().expect("a test knows where it is");
    // Cargo puts test programs into TARGET/PROFILE/deps.
    let target = test.ancestors().nth(3).expect("it lies in the target folder");
    let folder = target.join("tmp/compiled").join(format!("{:016x}", key.finish()));
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    // One test compiles; others with the same program wait for it.
    let lock = File::create(folder.join("lock")).expect("a file in a folder of ours");
    lock.lock().expect("it can be locked");

    let program = folder.join(source.file_stem().expect("a file has a name"));
    let (made_from, dependencies) = (folder.join("made-from"), folder.join("dependencies"));
    let is_current =
        || std::fs::read_to_string(&made_from).is_ok_and(|state| state == state_of(compiler, &dependencies));
    if !program.is_file() || !is_current() {
        // A program that runs keeps its file.
        let unfinished = folder.join("unfinished");
        command.args(["-MD", "-MF"]).arg(&dependencies).arg("-o").arg(&unfinished);
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(&unfinished, &program).expect("both are in one folder");
        std::fs::write(&made_from, state_of(compiler, &dependencies)).expect("a file in a folder of ours");
    }
    program
}

/// A number for the compiler and the contents of all files that a compilation read, of which the compiler made a list
/// for `make` (GCC manual, section 3.13, option `-MD`).
fn state_of(compiler: &str, dependencies: &Path) -> String {
    let mut state = DefaultHasher::new();
    if let Some(found) = programs::find(compiler).and_then(|file| file.canonicalize().ok()) {
        found.hash(&mut state);
        found.metadata().and_then(|metadata| metadata.modified()).ok().hash(&mut state);
    }
    let list = std::fs::read_to_string(dependencies).unwrap_or_default();
    let files = list.split_once(": ").map_or("", |(_, files)| files);
    for file in files.split_whitespace().filter(|part| *part != "\\") {
        file.hash(&mut state);
        std::fs::read(file).ok().hash(&mut state);
    }
    format!("{:016x}", state.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Folder, are_installed};

    #[test]
    fn a_program_is_compiled_again_only_after_a_change() {
        if !are_installed("a_program_is_compiled_again_only_after_a_change", &["cc"]) {
            return;
        }
        let folder = Folder::new();
        let source = folder.write("answer.c", "#include \"answer.h\"\nint main(void) { return ANSWER; }\n");
        let answer = |number: i32| {
            folder.write("answer.h", format!("#define ANSWER {number}\n"));
            let program = compiled("cc", &source, &["-O0"]);
            let status = Command::new(&program).status().unwrap();
            (status.code(), program.metadata().unwrap().modified().unwrap())
        };
        let first = answer(3);
        assert_eq!(first.0, Some(3));
        assert_eq!(answer(3), first);
        assert_eq!(answer(4).0, Some(4));
        let program = compiled("cc", &source, &["-O0"]);
        std::fs::remove_dir_all(program.parent().unwrap()).unwrap();
    }
}
