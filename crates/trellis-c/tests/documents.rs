//! The C and C++ blocks of the documents: every block compiles, by itself if it is a program, otherwise with the
//! context that its text assumes.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{C, CPP, Language};

/// The mark of blocks that are C only after m4; `parmacs_programs.rs` has such programs.
const OF_M4: &str = "MAIN_ENV";

/// Parts of programs, by one of their lines: the text before them, outside a function and inside it.
const PARTS: &[(&str, &str, &str)] = &[
    (
        "trellis::remote_memory memory(",
        "#include <memory_resource>\n#include <trellis/remote_memory.hpp>\n#include <vector>",
        "",
    ),
    (
        "trellis::remote::client client(",
        "#include <chrono>\n#include <iostream>\n#include <trellis/remote.hpp>\n#include <vector>",
        "using namespace std::chrono_literals;",
    ),
    (
        "trellis::atomic_word ready = ",
        "#include <trellis/synchronisation.hpp>\nvoid use(int);",
        "trellis::cluster cluster; const auto node = cluster.node(); auto data = cluster.view<int>(0, 1);",
    ),
    ("constexpr std::size_t pitch = 1024;", "#include <cstddef>", ""),
    ("cluster.phase(\"solve\");", "#include <trellis.hpp>", "trellis::cluster cluster;"),
    (
        "using numbers = std::vector<int, trellis::allocator<int>>;",
        "#include <trellis/heap.hpp>\n#include <vector>",
        "trellis::cluster cluster;",
    ),
    ("auto now = cluster.grid<double>(", "#include <trellis.hpp>", "trellis::cluster cluster;"),
    ("double *u = trellis_array(", "#include <trellis.h>", "trellis_cluster *cluster = trellis_current();"),
    ("trellis::stored::mutex jobs(", "#include <mutex>\n#include <trellis/stored_synchronisation.hpp>", ""),
];

/// A block of a document.
struct Block {
    /// The document, and the line at which the block begins.
    place: String,
    is_cpp: bool,
    text: String,
}

/// All pages below a folder.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

fn blocks() -> Vec<Block> {
    let root = support::crate_folder().join("../..");
    let mut paths = vec![root.join("README.md")];
    pages(&root.join("docs"), &mut paths);
    paths.sort();
    let mut blocks = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a page");
        let name = path.file_name().expect("it has one").to_string_lossy().into_owned();
        let mut lines = text.lines().enumerate();
        while let Some((at, line)) = lines.next() {
            let Some(language) = line.trim_start().strip_prefix("```") else { continue };
            let block: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| !line.trim_start().starts_with("```")).collect();
            if ["c", "cpp"].contains(&language) {
                let place = format!("{name}:{}", at + 1);
                blocks.push(Block { place, is_cpp: language == "cpp", text: block.join("\n") });
            }
        }
    }
    blocks
}

/// Compiles without linking.
fn compiles(block: &Block, text: &str, extra: &[&str]) {
    let language: &Language = if block.is_cpp { &CPP } else { &C };
    let name = block.place.replace([':', '.'], "-");
    let folder = support::fresh_folder(&format!("documents-{name}"));
    let source = folder.join(format!("{name}.{}", language.extension));
    std::fs::write(&source, text).expect("a file");
    // One compiler is enough: differences between compilers are tested with the headers.
    if let Some(compiler) = support::compilers(&format!("document {name}"), language).first() {
        let mut command = Command::new(compiler);
        command.args(language.flags).arg("-I").arg(support::crate_folder().join("include"));
        support::succeed(command.args(extra).arg("-fsyntax-only").arg(&source));
    }
    std::fs::remove_dir_all(&folder).expect("it is this test's");
}

#[test]
fn what_the_documents_show_compiles() {
    let blocks = blocks();
    assert!(blocks.len() > 10, "{} blocks", blocks.len());
    let mut parts: Vec<&str> = PARTS.iter().map(|(line, ..)| *line).collect();
    for block in blocks.iter().filter(|block| !block.text.contains(OF_M4)) {
        if block.text.contains("int main(") {
            let extra: &[&str] = if block.text.contains("#pragma omp") { &["-fopenmp"] } else { &[] };
            compiles(block, &block.text, extra);
            continue;
        }
        let part = PARTS.iter().find(|(line, ..)| block.text.contains(line));
        let Some((line, before, within)) = part else {
            panic!("{}: nobody says what stands before `{}`", block.place, block.text)
        };
        parts.retain(|known| known != line);
        let text = format!("{before}\nvoid part();\nvoid part() {{\n{within}\n{}\n}}\n", block.text);
        // A part does not always use what it shows.
        compiles(block, &text, &["-Wno-unused"]);
    }
    assert!(parts.is_empty(), "no document has {parts:?} any more");
}
