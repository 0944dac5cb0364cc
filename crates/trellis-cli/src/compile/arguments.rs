//! The command line of `trellis cc`: which words are ours, and what the rest asks clang to do.
//!
//! Promises: response files are read, and passed on as they are unless they contain one of our words. It must never
//! change the order of clang's arguments.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use trellis_command::exit::{self, Failure};

/// Which of clang's two drivers is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    /// `clang-19`
    C,
    /// `clang++-19`
    Cxx,
}

/// How a program is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Stack, globals and heap are words in the store.
    Full,
    /// The heap is words in the store.
    Heap,
    /// The heap is cached line by line.
    Line,
}

impl Mode {
    /// The word on command lines and in names of files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Full => "full",
            Mode::Heap => "heap",
            Mode::Line => "line",
        }
    }

    fn parse(word: &OsStr) -> Result<Mode, Failure> {
        [Mode::Full, Mode::Heap, Mode::Line].into_iter().find(|mode| word == mode.name()).ok_or_else(|| {
            Failure::new(exit::USAGE, format!("--mode {}: there is full, heap and line", word.to_string_lossy()))
        })
    }
}

/// What one call of the compiler asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invocation {
    pub(crate) mode: Mode,
    pub(crate) count: bool,
    pub(crate) json: bool,
    pub(crate) native_files: Vec<PathBuf>,
    /// clang's own arguments.
    pub(crate) passed_on: Vec<OsString>,
    /// Whether an executable or a shared library is made.
    pub(crate) links: bool,
    pub(crate) has_debug_option: bool,
}

/// Arguments with which clang stops before the linker.
const STOPS: [&str; 14] = [
    "-c",
    "-S",
    "-E",
    "-M",
    "-MM",
    "-fsyntax-only",
    "-r",
    "-###",
    "--version",
    "-dumpversion",
    "-dumpmachine",
    "--precompile",
    "--analyze",
    "-help",
];
/// Arguments of clang whose value is the next word, which is therefore no input.
const TAKE_NEXT: [&str; 24] = [
    "-o",
    "-I",
    "-L",
    "-D",
    "-U",
    "-x",
    "-include",
    "-imacros",
    "-isystem",
    "-iquote",
    "-idirafter",
    "-MF",
    "-MT",
    "-MQ",
    "-Xlinker",
    "-Xclang",
    "-Xassembler",
    "-Xpreprocessor",
    "-l",
    "-T",
    "-u",
    "-z",
    "-mllvm",
    "-target",
];

impl Invocation {
    /// Parses the words of a command line.
    pub(crate) fn parse(words: &[OsString]) -> Result<Invocation, Failure> {
        let mut invocation = Invocation {
            mode: Mode::Line,
            count: false,
            json: false,
            native_files: Vec::new(),
            passed_on: Vec::new(),
            links: false,
            has_debug_option: false,
        };
        let mut look = Look::default();
        invocation.take(words, &mut look, 0)?;
        if invocation.json && !invocation.count {
            return Err(Failure::new(exit::USAGE, "--json says how --count prints; use both"));
        }
        invocation.links = look.has_input && !look.stops;
        invocation.has_debug_option = look.debug;
        Ok(invocation)
    }

    fn take(&mut self, words: &[OsString], look: &mut Look, depth: usize) -> Result<(), Failure> {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let text = word.to_string_lossy();
            let mut next = |name: &str| {
                let sentence = format!("{name} needs a word after it");
                words.next().cloned().ok_or_else(|| Failure::new(exit::USAGE, sentence))
            };
            match text.as_ref() {
                "--mode" => self.mode = Mode::parse(&next("--mode")?)?,
                "--count" => self.count = true,
                "--json" => self.json = true,
                "--assume-native" => self.native_files.push(absolute(next("--assume-native")?)?),
                name if name.starts_with("--mode=") => self.mode = Mode::parse(OsStr::new(&name["--mode=".len()..]))?,
                name if name.starts_with("--assume-native=") => {
                    self.native_files.push(absolute(name["--assume-native=".len()..].into())?);
                }
                name if name.starts_with('@') && name.len() > 1 => self.take_file(word, look, depth)?,
                name if TAKE_NEXT.contains(&name) => {
                    self.passed_on.push(word.clone());
                    self.passed_on.extend(words.next().cloned());
                }
                name => {
                    look.at(name)?;
                    self.passed_on.push(word.clone());
                }
            }
        }
        Ok(())
    }

    /// A response file that cannot be read is a plain argument, as for clang.
    fn take_file(&mut self, word: &OsString, look: &mut Look, depth: usize) -> Result<(), Failure> {
        const DEPTH_MAX: usize = 16;
        let path = PathBuf::from(&word.to_string_lossy()[1..]);
        let Some(text) = (depth < DEPTH_MAX).then(|| std::fs::read_to_string(path).ok()).flatten() else {
            self.passed_on.push(word.clone());
            return Ok(());
        };
        let (before, ours) = (self.passed_on.len(), self.ours());
        self.take(&split(&text), look, depth + 1)?;
        if self.ours() == ours {
            self.passed_on.truncate(before);
            self.passed_on.push(word.clone());
        }
        Ok(())
    }

    fn ours(&self) -> (Mode, bool, bool, usize) {
        (self.mode, self.count, self.json, self.native_files.len())
    }
}

/// The compiler may run in another directory than the one to which the path is relative (`-working-directory`).
fn absolute(path: OsString) -> Result<PathBuf, Failure> {
    let path = PathBuf::from(path);
    std::fs::canonicalize(&path)
        .map_err(|error| Failure::new(exit::FILE, format!("--assume-native: cannot read {}: {error}", path.display())))
}

/// What the words for clang say about the work.
#[derive(Default)]
struct Look {
    stops: bool,
    has_input: bool,
    debug: bool,
}

impl Look {
    fn at(&mut self, name: &str) -> Result<(), Failure> {
        if name.starts_with("-flto") {
            return Err(Failure::new(
                exit::USAGE,
                format!(
                    "{name}: the translation comes before linking, so trellis cc has no link-time optimisation; leave it out"
                ),
            ));
        }
        self.stops |= STOPS.contains(&name) || name.starts_with("-print-") || name.starts_with("--print-");
        self.debug |= name.starts_with("-g") && !name.starts_with("-gcc") && name != "-gline-tables-only";
        self.has_input |= name == "-" || !name.starts_with('-') || name.starts_with("-l");
        Ok(())
    }
}

/// The words of a response file, by the rules of GNU tools: white space separates, quotes and backslashes protect.
fn split(text: &str) -> Vec<OsString> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (None, ' ' | '\t' | '\n' | '\r') => words.extend(word.take().map(OsString::from)),
            (None, '"' | '\'') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (Some(end), _) if character == end => quote = None,
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(characters.next()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word.map(OsString::from));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Invocation {
        Invocation::parse(&split(line)).expect("a command line that makes sense")
    }

    fn words(invocation: &Invocation) -> String {
        invocation.passed_on.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn clangs_words_pass_in_order_and_ours_do_not() {
        let invocation = parse("-O2 --mode heap -c x.c --count -o x.o --json");
        assert_eq!((invocation.mode, invocation.count, invocation.json), (Mode::Heap, true, true));
        assert_eq!(words(&invocation), "-O2 -c x.c -o x.o");
        assert!(!invocation.links);
        assert_eq!(parse("x.c").mode, Mode::Line);
        assert_eq!(parse("--mode=full x.c").mode, Mode::Full);
    }

    #[test]
    fn linking_is_what_makes_a_program_or_a_library() {
        for line in ["x.c", "x.o -o x", "-shared x.c -o x.so", "-x c -", "-O2 x.c y.o -lm", "-o -c x.c -lm"] {
            assert!(parse(line).links, "{line}");
        }
        for line in [
            "-c x.c",
            "-E x.c",
            "-S x.c",
            "-M x.c",
            "--version",
            "-v",
            "-print-search-dirs",
            "-fsyntax-only x.c",
            "-r x.o",
            "-O2",
            "-o x",
        ] {
            assert!(!parse(line).links, "{line}");
        }
    }

    #[test]
    fn debug_options_are_seen() {
        for (line, expected) in
            [("-g x.c", true), ("-ggdb3 x.c", true), ("x.c -O2", false), ("--gcc-toolchain=/x x.c", false)]
        {
            assert_eq!(parse(line).has_debug_option, expected, "{line}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_one_sentence() {
        for (line, part) in [
            ("--mode", "needs a word"),
            ("--mode fast x.c", "full, heap and line"),
            ("--json x.c", "use both"),
            ("-flto=thin x.c", "link-time"),
            ("--assume-native /nowhere x.c", "/nowhere"),
        ] {
            let failure = Invocation::parse(&split(line)).expect_err(line);
            assert!(failure.sentence.contains(part), "{line}: {failure}");
        }
    }

    #[test]
    fn response_files_are_read_and_kept() {
        let folder = trellis_testing::Folder::new();
        let path = folder.write("response", "-c \"a file.c\" -DX='1 2'\n");
        let plain = parse(&format!("@{}", path.display()));
        assert_eq!(words(&plain), format!("@{}", path.display()));
        assert!(!plain.links);
        folder.write("response", "--mode full\n-c a\\ file.c");
        let ours = parse(&format!("@{}", path.display()));
        assert_eq!((ours.mode, words(&ours)), (Mode::Full, "-c a file.c".to_owned()));
        std::fs::remove_file(&path).expect("the file is there");
        assert_eq!(words(&parse(&format!("@{}", path.display()))), format!("@{}", path.display()));
    }
}
