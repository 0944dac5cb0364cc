//! Tests of the hand-over: descriptors in the environment, and the status page seen from two sides.

use std::os::fd::IntoRawFd;

use super::*;
use trellis_record::Counters;

/// The same page, as the other side sees it.
fn other_side(page: &StatusPage) -> StatusPage {
    // SAFETY: dup of an open descriptor; the new one is ours.
    let copy = unsafe { OwnedFd::from_raw_fd(libc::dup(page.descriptor())) };
    StatusPage::open(copy).unwrap()
}

#[test]
fn the_launcher_sees_what_the_node_does() {
    let launcher = StatusPage::create().unwrap();
    assert_eq!((launcher.pid(), launcher.activity(), launcher.failure()), (0, None, None));
    let node = other_side(&launcher);
    assert_eq!(launcher.pid(), std::process::id());
    assert_eq!(node.enter(Activity::Waiting(Wait::Start), 5), None);
    assert_eq!(node.enter(Activity::Waiting(Wait::Barrier(3)), 7), Some(Activity::Waiting(Wait::Start)));
    assert_eq!(launcher.activity(), Some((Activity::Waiting(Wait::Barrier(3)), 7)));
    assert_eq!(Activity::Waiting(Wait::Barrier(3)).to_string(), "waiting in barrier 3");
    LiveCounters::add(&node.counters().barriers, 1);
    assert_eq!(launcher.counters().load(), Counters { barriers: 1, ..Counters::default() });
    drop(node);
    assert_eq!(launcher.activity(), Some((Activity::Waiting(Wait::Barrier(3)), 7)), "the page outlives the node");
}

#[test]
fn every_activity_survives_its_word() {
    let largest = (1 << DETAIL_BITS) - 1;
    let waits = Wait::ALL.into_iter().map(Activity::Waiting);
    for activity in waits.chain([Activity::Computing, Activity::Left, Activity::Waiting(Wait::Condition(largest))]) {
        assert_eq!(Activity::from_word(activity.to_word()), Some(activity));
    }
    assert_eq!(Activity::from_word(0), None);
    assert_eq!(
        Activity::from_word(Activity::Waiting(Wait::Lock(u64::MAX)).to_word()),
        Some(Activity::Waiting(Wait::Lock(largest)))
    );
}

#[test]
fn the_first_failure_stays_and_is_cut_between_letters() {
    let page = StatusPage::create().unwrap();
    page.set_failure(2, "node 2 was killed");
    page.set_failure(1, "node 1 was lost");
    assert_eq!((page.failure().as_deref(), page.culprit()), (Some("node 2 was killed"), Some(2)));
    let page = StatusPage::create().unwrap();
    page.set_failure(0, &"ä".repeat(300));
    assert_eq!(page.failure().unwrap(), "ä".repeat(256));
    let page = StatusPage::create().unwrap();
    page.set_failure(0, &format!("x{}", "ä".repeat(300)));
    assert_eq!(page.failure().unwrap(), format!("x{}", "ä".repeat(255)));
}

#[test]
fn a_node_cannot_make_the_page_shorter() {
    let page = StatusPage::create().unwrap();
    // SAFETY: a system call on an open descriptor.
    assert_eq!(unsafe { libc::ftruncate(page.descriptor(), 0) }, -1);
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
}

#[test]
fn another_file_is_no_status_page() {
    let short = File::open("/dev/null").unwrap();
    assert!(StatusPage::open(OwnedFd::from(short)).unwrap_err().to_string().contains("shorter than a page"));
    // SAFETY: the name ends with a zero byte, and the descriptor is new.
    let blank = unsafe { File::from_raw_fd(libc::memfd_create(c"blank".as_ptr(), libc::MFD_CLOEXEC)) };
    blank.set_len(PAGE_BYTES as u64).unwrap();
    assert!(StatusPage::open(OwnedFd::from(blank)).unwrap_err().to_string().contains("does not begin as"));
}

/// This is one test for everything that touches the environment, because tests share it.
#[test]
fn descriptors_are_taken_once_and_checked() {
    let set = |variable: &str, value: String| {
        // SAFETY: no other test of this crate touches these variables or reads the environment from C.
        unsafe { std::env::set_var(variable, value) };
    };
    assert!(Inherited::take().unwrap().listener.is_none());

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    set(LISTEN_FD_VARIABLE, listener.into_raw_fd().to_string());
    let page = StatusPage::create().unwrap();
    // SAFETY: dup of an open descriptor.
    set(STATUS_FD_VARIABLE, unsafe { libc::dup(page.descriptor()) }.to_string());
    let inherited = Inherited::take().unwrap();
    assert_eq!(inherited.listener.as_ref().unwrap().local_addr().unwrap(), address);
    assert!(inherited.secret.is_none());
    assert_eq!(page.pid(), std::process::id());
    let again = Inherited::take().unwrap();
    assert!(again.listener.is_none() && again.status.is_none(), "the variables are gone");

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    set(LISTEN_FD_VARIABLE, socket.into_raw_fd().to_string());
    let inherited = Inherited::take().unwrap();
    assert_eq!(inherited.datagrams.unwrap().local_addr().unwrap(), address);
    assert!(inherited.listener.is_none());

    let refusal = |variable: &'static str, value: String| {
        set(variable, value);
        let sentence = Inherited::take().unwrap_err().to_string();
        assert!(std::env::var_os(variable).is_none(), "a refused variable is gone as well");
        sentence
    };
    assert!(
        refusal(LISTEN_FD_VARIABLE, "seven".to_owned()).starts_with("TRELLIS_LISTEN_FD=seven: this is no descriptor")
    );
    assert!(refusal(LISTEN_FD_VARIABLE, "1".to_owned()).contains("no descriptor above 2"));
    assert!(refusal(STATUS_FD_VARIABLE, "99999".to_owned()).contains("the descriptor is not open here"));
    let no_socket = File::open("/dev/null").unwrap().into_raw_fd().to_string();
    assert!(refusal(LISTEN_FD_VARIABLE, no_socket).contains("the descriptor is not a listening socket"));
    let no_pipe = File::open("/dev/null").unwrap().into_raw_fd().to_string();
    assert!(refusal(SECRET_FD_VARIABLE, no_pipe).starts_with("TRELLIS_SECRET_FD: the descriptor is not a pipe"));
}
