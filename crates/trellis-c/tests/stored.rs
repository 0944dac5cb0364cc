//! `trellis/compiled.h` and `trellis/stored.h`, called by a C program as the compiler pass and programmers call them.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{C, Node};
use trellis_testing::{Need, redis_server::RedisServer, skip};

fn program(test: &str) -> Option<PathBuf> {
    let include = format!("-I{}", support::crate_folder().join("../../compiler/include").display());
    support::compile(test, &C, &support::program("stored.c"), &[&include])
}

fn cannot_catch(test: &str) -> bool {
    let missing = trellis::memory::choose(Some(trellis::memory::Catcher::Handler), &trellis::memory::probe()).err();
    if let Some(why) = &missing {
        skip(test, Need::Kernel, why);
    }
    missing.is_some()
}

fn start(folder: &Path, program: &Path, role: &[&str], variables: &[(&str, &str)]) -> Node {
    Node::start(folder, role[0], Command::new(program).args(role), variables)
}

#[test]
fn words_and_pages_do_what_the_headers_say() {
    let test = "c-stored";
    let Some(program) = program(test) else { return };
    let folder = support::fresh_folder("c-stored-run");
    for role in ["words", "full"] {
        let mut node = start(&folder, &program, &[role], &[("TRELLIS_STORE_STATISTICS", "1")]);
        assert_eq!(node.succeed(), "done\n");
        let said = node.complained();
        assert!(said.starts_with("trellis: store embedded: ") && said.contains(" calls (get "), "{role}: {said}");
    }
    if !cannot_catch(test) {
        for role in ["line", "page"] {
            assert_eq!(start(&folder, &program, &[role], &[]).succeed(), "done\n", "{role}");
        }
    }
}

#[test]
fn a_forked_child_is_told_that_it_has_no_memory() {
    let test = "c-stored-fork";
    let Some(program) = program(test) else { return };
    let folder = support::fresh_folder("c-stored-fork-run");
    let mut node = start(&folder, &program, &["fork-words"], &[]);
    assert_eq!(node.succeed(), "done\n");
    assert!(node.complained().contains("a forked child touched memory that is in a store"), "{}", node.complained());
    if !cannot_catch(test) {
        let mut node = start(&folder, &program, &["fork-pages"], &[]);
        assert_eq!(node.succeed(), "done\n");
        assert!(node.complained().contains("fork"), "{}", node.complained());
    }
}

#[test]
fn a_setting_that_makes_no_sense_ends_the_program_with_a_sentence() {
    let Some(program) = program("c-stored-setting") else { return };
    let folder = support::fresh_folder("c-stored-setting-run");
    for (name, value, says) in [
        ("TRELLIS_STORE", "nowhere", "accepted"),
        ("TRELLIS_STORE_CACHE_BYTES_MAX", "lots", "TRELLIS_STORE_CACHE_BYTES_MAX=lots"),
        ("TRELLIS_STORE", "redis://127.0.0.1:1", "is it running"),
    ] {
        let mut node = start(&folder, &program, &["words"], &[(name, value)]);
        assert_eq!(node.end().code(), Some(70), "{name}={value}");
        let said = node.complained();
        assert!(said.starts_with("trellis: ") && said.contains(says) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn a_store_that_goes_ends_who_needs_a_page() {
    let test = "c-stored-lost";
    let Some(program) = program(test) else { return };
    if cannot_catch(test) {
        return;
    }
    let Some(mut server) = RedisServer::start(test, &[]) else { return };
    let folder = support::fresh_folder("c-stored-lost-run");
    let (url, process) = (server.url(), server.process().to_string());
    let variables = [("TRELLIS_STORE", url.as_str()), ("TRELLIS_STORE_REGION", "lost")];
    let mut node = start(&folder, &program, &["lost", &process], &variables);
    let status = node.end();
    server.kill();
    assert_eq!((status.code(), node.printed().as_str()), (Some(70), "asked\n"), "{}", node.complained());
    assert!(node.complained().contains("a page of the region could not be had: store redis"), "{}", node.complained());
}
