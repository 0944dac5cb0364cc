//! Tests that a switch that is used over a socket is the same switch.

mod conformance;

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use conformance::{Context, READ};
use trellis_switch::control::{At, Remote};
use trellis_switch::{Faults, HotPage, Redirect, Switch};

#[test]
fn a_switch_behind_a_socket_is_a_switch() {
    if conformance::is_possible("a_switch_behind_a_socket_is_a_switch") {
        conformance::run_prepared("user", &Context::tell_over_a_socket);
    }
}

#[test]
fn everybody_gets_all_counts_of_pages() {
    if !conformance::is_possible("everybody_gets_all_counts_of_pages") {
        return;
    }
    let mut context = Context::new("user", "counts");
    let control = context.lab.control();
    let open = || {
        let (mine, its) = UnixStream::pair().unwrap();
        control.serve(its).unwrap();
        Remote::open(At::Given(mine.into())).unwrap()
    };
    let (one, other) = (open(), open());
    assert_eq!((one.hot_pages(9).unwrap(), other.hot_pages(9).unwrap()), (vec![], vec![]));
    let page = context.page("s1", 5);
    let ports = [context.port("c1"), context.port("c2")];
    let hot =
        |requests, ports: &[u16]| HotPage { page, requests, by_port: ports.iter().map(|&port| (port, 1)).collect() };
    context.goes("c1", context.pointer("s1", READ, 5), "s1");
    assert_eq!(one.hot_pages(9).unwrap(), [hot(1, &ports[..1])]);
    context.goes("c2", context.pointer("s1", READ, 5), "s1");
    assert_eq!(one.hot_pages(9).unwrap(), [hot(1, &ports[1..])]);
    assert_eq!(other.hot_pages(9).unwrap(), [hot(2, &ports)]);
}

#[test]
fn refusals_come_across_with_their_sentences() {
    if !conformance::is_possible("refusals_come_across_with_their_sentences") {
        return;
    }
    let mut context = Context::new("user", "refusals");
    context.tell_over_a_socket();
    let switch = context.switch();
    let refused = switch.set_side(77, 1).unwrap_err();
    assert_eq!(refused.to_string(), context.lab.switch().set_side(77, 1).unwrap_err().to_string());
    assert!(!refused.is_full());
    let redirect = Redirect { port: context.port("c1"), epoch: 1, until: None };
    let full = (0..).find_map(|number| switch.set_redirect(context.page("s1", number), redirect).err()).unwrap();
    assert!(full.is_full(), "{full}");
    switch.set_faults(&"drop=1.5%,delay=3us,seed=9".parse::<Faults>().unwrap()).unwrap();
}

#[test]
fn a_switch_that_was_started_again_is_found_again() {
    if !conformance::is_possible("a_switch_that_was_started_again_is_found_again") {
        return;
    }
    let mut context = Context::new("user", "again");
    let folder = trellis_testing::Folder::new();
    let path = folder.file("switch");
    let listener = UnixListener::bind(&path).unwrap();
    let control = Arc::clone(context.lab.control());
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| control.serve(stream).unwrap()));
    let remote = Remote::open(At::Path(path.clone())).unwrap();
    let page = context.page("s1", 5);
    assert!(remote.set_redirect(page, Redirect { port: context.port("c2"), epoch: 9, until: None }).unwrap());
    context.goes("c1", context.pointer("s1", READ, 5), "c2");
    context.lab.restart_switch().unwrap();
    let gone = remote.redirect(page).unwrap_err().to_string();
    assert!(gone.contains("the switch at"), "{gone}");
    assert_eq!((remote.redirect(page).unwrap(), remote.boot_id()), (None, 2));
    context.goes("c1", context.pointer("s1", READ, 5), "s1");
    drop(folder);
    let nobody = Remote::open(At::Path(path)).unwrap_err().to_string();
    assert!(nobody.contains("look whether it runs") || nobody.contains("trellis switch run"), "{nobody}");
}

#[test]
fn a_connection_that_was_given_outlives_the_switch() {
    if !conformance::is_possible("a_connection_that_was_given_outlives_the_switch") {
        return;
    }
    let mut context = Context::new("user", "outlives");
    let (mine, its) = UnixStream::pair().unwrap();
    context.lab.control().serve(its).unwrap();
    let remote = Remote::open(At::Given(mine.into())).unwrap();
    let page = context.page("s1", 5);
    let redirect = Redirect { port: context.port("c2"), epoch: 9, until: None };
    assert!(remote.set_redirect(page, redirect).unwrap());
    assert_eq!((remote.events().unwrap(), remote.boot_id()), (vec![], 1));
    context.lab.control().stop();
    let away = remote.set_redirect(page, redirect).unwrap_err().to_string();
    assert!(away.contains("is being started again"), "{away}");
    context.lab.restart_switch().unwrap();
    // The first request is not carried out: the client does not know yet that the switch has no state.
    let other = Redirect { port: context.port("c3"), ..redirect };
    let began = remote.set_redirect(page, other).unwrap_err().to_string();
    assert!(began.contains("tell it everything again"), "{began}");
    assert_eq!((remote.boot_id(), remote.redirect(page).unwrap()), (2, None));
    assert!(remote.set_redirect(page, redirect).unwrap());
    context.goes("c1", context.pointer("s1", READ, 5), "c2");
}
