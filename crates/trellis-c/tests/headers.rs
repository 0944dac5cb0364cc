//! The headers by themselves: each compiles alone and twice, without warnings, in its language; and its numbers and
//! layouts are the library's.

mod support;

use std::collections::{BTreeSet, HashMap};
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use support::{C, CPP, Language};
use trellis_c::counters::Counters;
use trellis_c::remote::{self, batch};
use trellis_c::{cluster, named, status, synchronisation};
use trellis_fabric_protocol::wire::datagram::Status;
use trellis_testing::are_installed;

/// Compiles `text` without linking, with every compiler of the language.
fn compiles(test: &str, language: &Language, text: &str, extra: &[&str]) {
    let source = support::fresh_folder(test).join(format!("source.{}", language.extension));
    std::fs::write(&source, text).unwrap();
    let include = support::crate_folder().join("include");
    for compiler in support::compilers(test, language) {
        let mut command = Command::new(compiler);
        command.args(language.flags).arg("-I").arg(&include).args(extra).args(["-fsyntax-only"]).arg(&source);
        support::succeed(&mut command);
    }
}

/// The functions that a part of a header declares, without this prefix.
fn declared<'a>(part: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let lines = part.lines().filter(|line| line.starts_with("int ") && line.contains('('));
    lines.filter_map(|line| line.strip_prefix("int ")?.split_once('(')?.0.strip_prefix(prefix)).collect()
}

#[test]
fn clusters_and_stores_have_the_same_words() {
    let read = |name: &str| std::fs::read_to_string(support::crate_folder().join("include").join(name)).unwrap();
    let (cluster, store) = (read("trellis.h"), read("trellis/stored_synchronisation.h"));
    let begin = cluster.find("- waiting together -").expect("a heading");
    let end = begin + cluster[begin..].find("_once_failed(").expect("the last of them");
    let of_cluster = declared(&cluster[begin..end + 40], "trellis_");
    let of_store = declared(&store, "trellis_store_");
    let only = |one: &BTreeSet<&str>, other: &BTreeSet<&str>| -> Vec<String> {
        one.difference(other).map(|name| (*name).to_owned()).collect()
    };
    // Only a cluster has barriers of all its nodes, which may reduce a value.
    assert_eq!(
        only(&of_cluster, &of_store),
        ["barrier", "barrier_reduce_double", "barrier_reduce_i64", "barrier_reduce_u64", "broadcast", "once"]
    );
    // Only a store has initial values, tokens, and a release together with a notification.
    assert_eq!(
        only(&of_store, &of_cluster),
        ["lock_token", "semaphore_begin", "semaphore_set", "unlock_and_notify_all"]
    );
}

fn twice(header: &str) -> String {
    format!("#include \"{header}\"\n#include \"{header}\"\nint main(void) {{ return 0; }}\n")
}

#[test]
fn the_c_header_stands_alone_in_every_c() {
    for standard in ["-std=c11", "-std=c17", "-std=gnu11"] {
        compiles(&format!("c-header{standard}"), &C, &twice("trellis.h"), &[standard, "-Wstrict-prototypes"]);
    }
    compiles("c-header-in-cpp", &CPP, &twice("trellis.h"), &[]);
    compiles("remote-header", &C, &twice("trellis/remote.h"), &["-Wstrict-prototypes"]);
    compiles("remote-header-in-cpp", &CPP, &twice("trellis/remote.h"), &[]);
}

#[test]
fn the_cpp_headers_stand_alone() {
    let headers = [
        "trellis.hpp",
        "trellis/array.hpp",
        "trellis/heap.hpp",
        "trellis/standard.hpp",
        "trellis/synchronisation.hpp",
        "trellis/remote.hpp",
        "trellis/remote_memory.hpp",
        "trellis/stored_synchronisation.hpp",
        "ivy.hh",
        "libivy.hh",
        "libivy/libivy.hh",
        "libivy/common.hh",
        "libivy/error.hh",
        "libivy/ivy.hh",
    ];
    for header in headers {
        compiles(&header.replace('/', "-"), &CPP, &twice(header), &["-Wshadow"]);
    }
    compiles("ivy-release", &CPP, &twice("ivy.hh"), &["-DRELEASE"]);
}

#[test]
fn the_headers_compile_for_aarch64() {
    let c = Language { compilers: &["aarch64-linux-gnu-gcc"], ..C };
    let cpp = Language { compilers: &["aarch64-linux-gnu-g++"], ..CPP };
    for header in ["trellis.h", "trellis/remote.h", "trellis/stored.h", "trellis/stored_synchronisation.h"] {
        compiles(&format!("aarch64-{}", header.replace('/', "-")), &c, &twice(header), &[]);
    }
    for header in ["trellis.hpp", "trellis/remote_memory.hpp", "trellis/stored_synchronisation.hpp", "ivy.hh"] {
        compiles(&format!("aarch64-{}", header.replace('/', "-")), &cpp, &twice(header), &[]);
    }
}

#[test]
fn all_headers_go_together_in_one_program() {
    let text = "#include \"libivy.hh\"\n#include <trellis.hpp>\n#include <trellis.h>\n#include \"libivy/common.hh\"\n\
                using namespace libivy;\nint main() { return static_cast<int>(trellis_nodes(nullptr)); }\n";
    compiles("all-headers", &CPP, text, &[]);
}

#[test]
fn short_macros_are_the_programs_own_if_it_says_so() {
    let text = "#define P 3\n#include \"ivy.hh\"\nstatic_assert(P == 3);\n#ifndef DBGH\n#error DBGH is missing\n#endif\nint main() {}\n";
    compiles("own-macro", &CPP, text, &[]);
    let text = "#include \"ivy.hh\"\n#if defined(P) || defined(ERROR) || defined(DBGH)\n#error a macro is left\n#endif\nint main() {}\n";
    compiles("no-macros", &CPP, text, &["-DTRELLIS_IVY_NO_MACROS"]);
}

/// A silenced message must not touch what it would have printed: that could fetch a page.
#[test]
fn silenced_messages_are_not_evaluated() {
    let text = "#include \"ivy.hh\"\nint main() { int calls = 0; DBGH << ++calls << std::endl; \
                if (calls) DBG << calls; else DBGW << ++calls; return calls; }\n";
    let folder = support::fresh_folder("silenced-source");
    let source = folder.join("silenced.cc");
    std::fs::write(&source, text).unwrap();
    if let Some(program) = support::compile("silenced", &CPP, &source, &["-DRELEASE"]) {
        support::succeed(&mut Command::new(program));
    }
}

#[test]
fn numbers_and_layouts_are_those_of_the_library() {
    let Some(program) = support::compile("layout", &C, &support::program("layout.c"), &[]) else { return };
    let printed = support::succeed(&mut Command::new(program));
    let header: HashMap<&str, i64> = printed
        .lines()
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, number)| (name, number.parse().unwrap()))
        .collect();
    let mut library = HashMap::from([
        ("TRELLIS_OK", i64::from(status::OK)),
        ("TRELLIS_ERROR_ARGUMENT", i64::from(status::ARGUMENT)),
        ("TRELLIS_ERROR_CONFIGURATION", i64::from(status::CONFIGURATION)),
        ("TRELLIS_ERROR_JOIN", i64::from(status::JOIN)),
        ("TRELLIS_ERROR_DEADLINE", i64::from(status::DEADLINE)),
        ("TRELLIS_ERROR_NODE_LOST", i64::from(status::NODE_LOST)),
        ("TRELLIS_ERROR_STATE", i64::from(status::STATE)),
        ("TRELLIS_ERROR_INTERNAL", i64::from(status::INTERNAL)),
        ("TRELLIS_READ", i64::from(cluster::READ)),
        ("TRELLIS_WRITE", i64::from(cluster::WRITE)),
        ("TRELLIS_OTHER", i64::from(named::OTHER)),
        ("TRELLIS_UNSIGNED", i64::from(named::UNSIGNED)),
        ("TRELLIS_SIGNED", i64::from(named::SIGNED)),
        ("TRELLIS_FLOAT", i64::from(named::FLOAT)),
        ("TRELLIS_SUM", i64::from(synchronisation::SUM)),
        ("TRELLIS_LEAST", i64::from(synchronisation::LEAST)),
        ("TRELLIS_GREATEST", i64::from(synchronisation::GREATEST)),
        ("TRELLIS_AND", i64::from(synchronisation::AND)),
        ("TRELLIS_OR", i64::from(synchronisation::OR)),
        ("TRELLIS_XOR", i64::from(synchronisation::XOR)),
        ("sizeof(trellis_counters)", size_of::<Counters>() as i64),
    ]);
    macro_rules! fields {
        ($($field:ident)+) => { $(library.insert(stringify!($field), offset_of!(Counters, $field) as i64);)+ };
    }
    fields!(read_faults write_faults upgrade_faults local_faults prefetched_pages pages_in pages_out bytes_in bytes_out
        messages_in messages_out invalidations lock_acquires lock_acquires_local barriers atomics fault_wait_ns
        lock_wait_ns barrier_wait_ns unauthenticated_refused nodes_refused packets_refused frames_refused upgrade_owner_faults retries redirects packets_in
        packets_out overhead_ns diffs_out diffs_in handler_ns program_ns program_threads
        pages_piggybacked_out pages_piggybacked_in pages_evicted pages_written_back recalls);
    assert_eq!(library.len(), 21 + size_of::<Counters>() / 8, "every field is compared");
    assert_eq!(header, library);
}

#[test]
fn numbers_and_layouts_of_remote_memory_are_those_of_the_library() {
    let source = support::program("remote_layout.c");
    let Some(program) = support::compile("remote-layout", &C, &source, &[]) else { return };
    let printed = support::succeed(&mut Command::new(program));
    let mut library: Vec<(String, i64)> = Vec::new();
    // On the wire a refusal is a small number; messages give its name.
    for status in Status::ALL.into_iter().filter(|it| !matches!(it, Status::Ok | Status::Mismatch)) {
        let letters: Vec<char> = format!("{status:?}").chars().collect();
        let name: String = letters
            .iter()
            .enumerate()
            .flat_map(|(at, letter)| {
                [(at > 0 && letter.is_uppercase()).then_some('_'), Some(letter.to_ascii_uppercase())]
            })
            .flatten()
            .collect();
        library.push((format!("TRELLIS_REMOTE_{name}"), i64::from(remote::client::NO_ROUTE) - i64::from(status as u8)));
    }
    let mut add = |name: &str, number: i64| library.push((name.to_owned(), number));
    add("TRELLIS_REMOTE_NO_ROUTE", remote::client::NO_ROUTE.into());
    for (name, kind) in [
        ("READ", batch::READ),
        ("WRITE", batch::WRITE),
        ("WRITE_WHOLE", batch::WRITE_WHOLE),
        ("FETCH_ADD", batch::FETCH_ADD),
        ("COMPARE_SWAP", batch::COMPARE_SWAP),
        ("CREATE", batch::CREATE),
        ("CREATE_WITH", batch::CREATE_WITH),
        ("DELETE", batch::DELETE),
        ("INQUIRE", batch::INQUIRE),
    ] {
        add(&format!("TRELLIS_REMOTE_{name}"), kind.into());
    }
    add("TRELLIS_REMOTE_TEXT_BYTES", remote::pointer::TEXT_BYTES as i64);
    add("sizeof(trellis_remote_pointer)", size_of::<remote::pointer::Pointer>() as i64);
    add("sizeof(trellis_remote_options)", size_of::<remote::client::Options>() as i64);
    add("sizeof(trellis_remote_welcome)", size_of::<remote::client::Welcome>() as i64);
    add("sizeof(trellis_remote_call)", size_of::<batch::Entry>() as i64);
    for (name, at) in [
        ("kind", offset_of!(batch::Entry, kind)),
        ("status", offset_of!(batch::Entry, status)),
        ("pointer", offset_of!(batch::Entry, pointer)),
        ("into", offset_of!(batch::Entry, memory)),
        ("from", offset_of!(batch::Entry, memory)),
        ("bytes", offset_of!(batch::Entry, bytes)),
        ("value", offset_of!(batch::Entry, value)),
        ("desired", offset_of!(batch::Entry, desired)),
        ("server", offset_of!(batch::Entry, server)),
    ] {
        add(&format!("offsetof(trellis_remote_call, {name})"), at as i64);
    }
    for (name, at) in [
        ("prefix", offset_of!(remote::client::Options, prefix)),
        ("deadline_ms", offset_of!(remote::client::Options, deadline_ms)),
        ("piece_bytes", offset_of!(remote::client::Options, piece_bytes)),
        ("port", offset_of!(remote::client::Options, port)),
    ] {
        add(&format!("offsetof(trellis_remote_options, {name})"), at as i64);
    }
    let mut header: Vec<(String, i64)> = printed
        .lines()
        .map(|line| line.rsplit_once(' ').expect("a name and a number"))
        .map(|(name, number)| (name.to_owned(), number.parse().expect("a number")))
        .collect();
    header.sort();
    library.sort();
    assert_eq!(header, library);
}

/// The library has everything that the headers declare, and exports no function that no header declares.
#[test]
fn every_declared_function_is_exported() {
    if !are_installed("every_declared_function_is_exported", &["nm"]) {
        return;
    }
    let library = support::prefix().join("lib/libtrellis.so");
    let listed = support::succeed(Command::new("nm").args(["-D", "--defined-only", "-f", "posix"]).arg(&library));
    let mut exported: Vec<&str> =
        listed.lines().filter_map(|line| line.split(' ').next()).filter(|name| name.starts_with("trellis_")).collect();
    // They are for `libtrellis_threads.so` alone, which is of the same version.
    exported.retain(|name| !name.starts_with("trellis_threads_"));
    exported.sort_unstable();
    let headers =
        ["trellis.h", "trellis/parmacs.h", "trellis/remote.h", "trellis/stored.h", "trellis/stored_synchronisation.h"]
            .map(|header| std::fs::read_to_string(support::crate_folder().join("include").join(header)).unwrap());
    let mut declared: Vec<&str> = headers.iter().flat_map(|header| declared_functions(header)).collect();
    declared.sort_unstable();
    assert_eq!(exported, declared);
    for name in ["sigaction", "signal", "__sysv_signal"] {
        assert!(listed.lines().any(|line| line.split(' ').next() == Some(name)), "{name} is exported");
    }
}

/// Names before a parenthesis on declaring lines: those that begin with a type, not a comment or a macro.
fn declared_functions(header: &str) -> Vec<&str> {
    let kinds =
        ["int ", "size_t ", "void ", "const void ", "long ", "uint64_t ", "char ", "const char ", "trellis_cluster "];
    header
        .lines()
        .filter(|line| kinds.iter().any(|kind| line.starts_with(kind)))
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .collect()
}

#[test]
fn the_library_has_its_public_name() {
    if !are_installed("the_library_has_its_public_name", &["readelf"]) {
        return;
    }
    let library: &Path = &support::prefix().join("lib/libivy.so");
    let dynamic = support::succeed(Command::new("readelf").arg("-d").arg(library));
    assert!(dynamic.contains("soname: [libtrellis.so.0]"), "{dynamic}");
}
