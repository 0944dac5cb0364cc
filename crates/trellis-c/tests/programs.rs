//! Programs in C and C++ on clusters of processes: the examples, and every function of the two interfaces.

mod support;

use std::path::Path;
use std::process::Command;

use trellis_testing::{Need, skip};

use support::{C, CPP};

#[test]
fn hello_in_c_and_cpp_comes_from_every_node() {
    for (language, source) in [(&C, "hello/hello.c"), (&CPP, "hello/hello.cpp")] {
        let test = source.replace('/', "-");
        let Some(program) = support::compile(&test, language, &support::example(source), &[]) else { continue };
        let printed = support::run_cluster(&test, &program, 4, &[], &[]);
        let mut lines: Vec<&str> = printed[0].lines().collect();
        lines.sort_unstable();
        assert_eq!(lines.len(), 4, "{printed:?}");
        for (node, line) in lines.iter().enumerate() {
            assert!(line.starts_with(&format!("hello from node {node}")), "{line}");
        }
        assert!(printed[1..].iter().all(String::is_empty), "{printed:?}");
        // Started by itself, the same program is a cluster of one.
        assert!(support::run_alone(&test, &program).contains("hello from node 0"));
    }
}

#[test]
fn a_sanitizer_of_addresses_finds_a_mistake_in_private_memory_of_a_node() {
    let test = "sanitized";
    let source = support::program("sanitized.c");
    let Some(program) = support::compile(test, &C, &source, &["-fsanitize=address", "-g"]) else { return };
    // The address of the region is that of a program that chooses none.
    let printed = support::run_cluster(test, &program, 2, &[], &[]);
    assert!(printed.iter().all(|text| text.contains("sees 7")), "{printed:?}");
    let folder = support::fresh_folder("sanitized-mistake");
    let mut alone = support::Node::start(&folder, "0", Command::new(&program).arg("10"), &[]);
    let status = alone.end();
    assert!(!status.success() && alone.complained().contains("heap-buffer-overflow"), "{}", alone.complained());
}

#[test]
fn a_product_of_matrices_is_right_in_every_order_and_on_any_number_of_nodes() {
    let Some(program) = support::compile("matmul", &CPP, &support::example("matmul/matmul.cpp"), &[]) else { return };
    let locking = [("TRELLIS_COHERENCE", "lock(dynamic)")];
    for (nodes, arguments, variables) in [
        (1, &["70", "ijk", "--verify"][..], &[][..]),
        (2, &["130", "kij", "--verify"], &[]),
        (3, &["64", "ijk", "--verify"], &[("TRELLIS_COHERENCE", "migrate")]),
        (2, &["520", "kij", "--lock", "--verify"], &locking),
        (3, &["100", "ijk", "--lock", "--verify"], &locking),
    ] {
        let printed = support::run_cluster("matmul", &program, nodes, arguments, variables);
        assert!(printed[0].ends_with("(verified)\n"), "{nodes} nodes, {arguments:?}: {}", printed[0]);
    }
}

#[test]
fn every_item_reaches_the_consumer_once_whatever_guards_the_buffer() {
    let source = support::example("producer-consumer/producer_consumer.cpp");
    let Some(program) = support::compile("producer-consumer", &CPP, &source, &[]) else { return };
    for (with, pages) in [("lock", "1"), ("lock", "3"), ("lock", "10"), ("test-and-set", "1"), ("test-and-set", "3")] {
        let arguments = ["--with", with, "--pages", pages, "--items", "40", "--work-microseconds", "1"];
        let printed = support::run_cluster("producer-consumer", &program, 2, &arguments, &[]);
        assert!(printed[1].ends_with("(verified)\n"), "{with}, {pages} pages: {printed:?}");
    }
}

#[test]
fn the_c_interface_on_one_and_three_nodes() {
    let Some(program) = support::compile("c-interface", &C, &support::program("interface.c"), &[]) else { return };
    for nodes in [1, 3] {
        for printed in support::run_cluster("c-interface", &program, nodes, &[], &[]) {
            assert_eq!(printed, "interface complete\n");
        }
    }
}

#[test]
fn the_cpp_interface_on_one_and_three_nodes() {
    let Some(program) = support::compile("cpp-interface", &CPP, &support::program("interface.cpp"), &[]) else {
        return;
    };
    for nodes in [1, 3] {
        assert_eq!(support::run_cluster("cpp-interface", &program, nodes, &[], &[])[0], "interface complete\n");
    }
}

#[test]
fn things_with_names_in_both_languages() {
    for (test, language, source) in [("c-names", &C, "named.c"), ("cpp-names", &CPP, "named.cpp")] {
        let Some(program) = support::compile(test, language, &support::program(source), &[]) else { return };
        for nodes in [1, 3] {
            for printed in support::run_cluster(test, &program, nodes, &[], &[]) {
                assert_eq!(printed, "names complete\n");
            }
        }
    }
}

#[test]
fn threads_wait_for_each_other_in_every_way_of_c() {
    let Some(program) = support::compile("c-waits", &C, &support::program("waits.c"), &[]) else { return };
    for nodes in [1, 3] {
        for printed in support::run_cluster("c-waits", &program, nodes, &[], &[]) {
            assert_eq!(printed, "waits complete\n");
        }
    }
}

#[test]
fn guards_and_conditions_of_the_standard_library_take_our_types() {
    let Some(program) = support::compile("cpp-waits", &CPP, &support::program("waits.cpp"), &[]) else { return };
    for nodes in [1, 2, 3] {
        for printed in support::run_cluster("cpp-waits", &program, nodes, &[], &[]) {
            assert_eq!(printed, "waits complete\n");
        }
    }
}

#[test]
fn a_node_that_fails_is_named_to_the_others() {
    let test = "gives-up";
    let Some(program) = support::compile(test, &CPP, &support::program("gives_up.cpp"), &[]) else { return };
    let folder = support::fresh_folder("gives-up-runs");
    let mut cluster = support::start_cluster(&folder, &program, 3, &[], &[]);
    for (number, node) in cluster.iter_mut().enumerate() {
        let status = node.end();
        let (expected, line) = if number == 1 { (3, "failed: out of ideas") } else { (0, "told: ") };
        let printed = node.printed();
        assert_eq!(status.code(), Some(expected), "node {number} printed {printed} and {}", node.complained());
        assert!(printed.starts_with(line), "node {number}: {printed}");
    }
}

#[test]
fn handlers_of_the_program_get_its_own_faults_with_every_catcher() {
    let Some(program) = support::compile("signals", &C, &support::program("signals.c"), &[]) else { return };
    for catcher in ["mprotect", "signal", "handler"] {
        let name = format!("signals-{catcher}");
        let folder = support::fresh_folder(&name);
        let variables = [("TRELLIS_CATCH", catcher)];
        let mut node = support::Node::start(&folder, "0", &mut Command::new(&program), &variables);
        let status = node.end();
        if !status.success() && catcher != "mprotect" && node.complained().contains("userfaultfd") {
            skip(name, Need::Kernel, node.complained());
            continue;
        }
        assert!(status.success(), "{name}: {status}: {}", node.complained());
        assert_eq!(node.printed(), "signals complete\n");
    }
}

#[test]
fn pdot_is_exact_on_any_number_of_nodes() {
    let Some(program) = support::compile("pdot", &CPP, &support::example("pdot/pdot.cpp"), &[]) else { return };
    for (nodes, elements) in [(1, "32768"), (3, "10007"), (4, "2")] {
        let printed = support::run_cluster("pdot", &program, nodes, &[elements], &[]);
        let expected = format!("dot product of {elements} elements on {nodes} nodes in ");
        assert!(printed[0].starts_with(&expected) && printed[0].contains("(verified)"), "{printed:?}");
    }
}

#[test]
fn psort_sorts_random_integers() {
    let Some(program) = support::compile("psort", &CPP, &support::example("psort/psort.cpp"), &[]) else { return };
    for (nodes, count) in [(1, "0"), (1, "1"), (2, "100000"), (3, "12345"), (4, "3")] {
        let printed = support::run_cluster("psort", &program, nodes, &[count, "--seed", "5"], &[]);
        assert!(printed[0].starts_with(&format!("sorted {count} integers on {nodes} nodes in ")), "{printed:?}");
    }
}

#[test]
fn psort_sorts_files_of_both_kinds() {
    let Some(program) = support::compile("psort-files", &CPP, &support::example("psort/psort.cpp"), &[]) else {
        return;
    };
    let folder = support::fresh_folder("psort-inputs");
    let mut numbers: Vec<i64> = (0..40_001i64).map(|i| (i * 7_919_777_777 % 1_000_003 - 500_000) << (i % 20)).collect();
    numbers.extend([i64::MIN, i64::MAX, 0, -1]);
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    let bytes = |list: &[i64]| list.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<u8>>();
    let lines = |list: &[i64]| list.iter().map(|number| format!("{number}\n")).collect::<String>().into_bytes();
    sorts_file(&program, &folder, &bytes(&numbers), &bytes(&sorted), &[]);
    sorts_file(&program, &folder, &lines(&numbers), &lines(&sorted), &["--text"]);
}

/// Sorts a file that is read into shared memory and written from it, with the default catcher of a user.
fn sorts_file(program: &Path, folder: &Path, input: &[u8], expected: &[u8], kind: &[&str]) {
    let (from, to) = (folder.join("input"), folder.join("output"));
    std::fs::write(&from, input).unwrap();
    for nodes in [1, 3] {
        let _ = std::fs::remove_file(&to);
        let mut arguments = vec!["--input", from.to_str().unwrap(), "--output", to.to_str().unwrap()];
        arguments.extend_from_slice(kind);
        support::run_cluster("psort-files", program, nodes, &arguments, &[]);
        assert!(std::fs::read(&to).unwrap() == expected, "{nodes} nodes, {kind:?}: the file is sorted");
    }
}

#[test]
fn psort_says_what_is_wrong() {
    let Some(program) = support::compile("psort-wrong", &CPP, &support::example("psort/psort.cpp"), &[]) else {
        return;
    };
    let folder = support::fresh_folder("psort-wrong-inputs");
    std::fs::write(folder.join("odd"), b"123456789").unwrap();
    std::fs::write(folder.join("words"), b"1 2 three").unwrap();
    let cases: [(&[&str], &str); 6] = [
        (&["--input", "missing"], "missing: No such file"),
        (&["--input", "odd"], "not a whole number"),
        (&["--input", "words", "--text"], "integer 3 is not"),
        (&["--count", "3"], "usage"),
        (&["many"], "many is not a number"),
        (&["100000000"], "region_bytes"),
    ];
    for (number, (arguments, expected)) in cases.iter().enumerate() {
        let mut command = Command::new(&program);
        let mut node =
            support::Node::start(&folder, &number.to_string(), command.args(*arguments).current_dir(&folder), &[]);
        assert_eq!(node.end().code(), Some(1), "{arguments:?}");
        assert!(node.complained().contains(expected), "{arguments:?}: {}", node.complained());
    }
}
