//! The shared heap for C and C++: programs on clusters of processes, and the layout of its counts.

mod support;

use std::mem::offset_of;
use std::process::Command;

use support::{C, CPP};
use trellis_c::heap::{self, HeapCounts};

#[test]
fn the_heap_in_c_on_one_and_three_nodes() {
    let Some(program) = support::compile("c-heap", &C, &support::program("heap.c"), &[]) else { return };
    for (nodes, coherence) in [(1, "ivy"), (3, "ivy"), (3, "hlrc")] {
        for printed in support::run_cluster("c-heap", &program, nodes, &[], &[("TRELLIS_COHERENCE", coherence)]) {
            assert_eq!(printed, "heap complete\n");
        }
    }
}

#[test]
fn standard_containers_lie_in_the_region_and_are_read_and_destroyed_elsewhere() {
    let Some(program) = support::compile("cpp-heap", &CPP, &support::program("heap.cpp"), &[]) else { return };
    for (nodes, catch, coherence) in [
        (1, "auto", "ivy"),
        (2, "auto", "ivy"),
        (3, "signal", "ivy"),
        (2, "auto", "hlrc"),
        (3, "signal", "hlrc(update)"),
    ] {
        let variables = [("TRELLIS_CATCH", catch), ("TRELLIS_COHERENCE", coherence)];
        for printed in support::run_cluster("cpp-heap", &program, nodes, &[], &variables) {
            assert_eq!(printed, "heap complete\n");
        }
    }
}

#[test]
fn a_container_that_frees_what_is_no_block_ends_the_program_with_a_sentence() {
    let Some(program) = support::compile("cpp-heap-wrong", &CPP, &support::program("heap.cpp"), &[]) else { return };
    let folder = support::fresh_folder("cpp-heap-wrong-runs");
    let mut node = support::Node::start(&folder, "0", Command::new(&program).arg("free-twice"), &[]);
    assert!(!node.end().success());
    assert!(node.complained().contains("it was freed before"), "{}", node.complained());
}

#[test]
fn numbers_and_layouts_of_the_heap_are_those_of_the_library() {
    let mut text = String::from("#include <trellis.h>\n");
    let mut same = |what: &str, number: usize| {
        text.push_str(&format!("_Static_assert(({what}) == {number}u, \"{what}\");\n"));
    };
    same("TRELLIS_HOME_UNSPECIFIED", heap::HOME_UNSPECIFIED);
    same("TRELLIS_HOME_HERE", heap::HOME_HERE);
    same("TRELLIS_HOME_INTERLEAVED", heap::HOME_INTERLEAVED);
    same("TRELLIS_PACKED", heap::PACKED as usize);
    same("TRELLIS_PER_CACHE_LINE", heap::PER_CACHE_LINE as usize);
    same("TRELLIS_PER_PAGE", heap::PER_PAGE as usize);
    same("TRELLIS_PER_PAGE_WHILE_FEW", heap::PER_PAGE_WHILE_FEW as usize);
    same("sizeof(trellis_heap_counts)", size_of::<HeapCounts>());
    macro_rules! fields {
        ($($field:ident)+) => {
            $(same(concat!("offsetof(trellis_heap_counts, ", stringify!($field), ")"), offset_of!(HeapCounts, $field));)+
            assert_eq!([$(stringify!($field)),+].len() * 8, size_of::<HeapCounts>(), "every field is compared");
        };
    }
    fields!(blocks block_bytes span_bytes allocations frees_by_others free_bytes);
    let source = support::fresh_folder("heap-layout").join("layout.c");
    std::fs::write(&source, text).unwrap();
    for compiler in support::compilers("heap-layout", &C) {
        let include = support::crate_folder().join("include");
        let mut command = Command::new(compiler);
        command.arg("-std=c11").arg("-fsyntax-only").arg("-I").arg(include).arg(&source);
        support::succeed(&mut command);
    }
}
