//! The interface between a memory server and its lease server: what is asked, handed over, decided and then done.

#[allow(dead_code, reason = "every test program uses a part of it")]
mod served;

use served::{Caller, HOME, SECOND, Served, answered, cluster, datagram, decoded, refused, started};
use trellis_fabric_protocol::memory_server::{Admission, Decision, Input};
use trellis_fabric_protocol::wire::address::{Arguments, Host, PAGE_BYTES, Pointer};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Body, Extent, Operation, Request, Status};

#[test]
fn whoever_keeps_leases_is_asked_first() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 3 * PAGE_BYTES);
    let inside = pointer.plus(PAGE_BYTES - 1).expect("an offset");
    let owner = Pointer::to_host(cluster(), Host(5)).encode();
    served.leases.refuses = Some(Admission::Moved(owner, 77));
    let answer = caller.read(&mut served, inside, 2);
    assert_eq!((answer.status, answer.epoch, answer.body), (Status::Moved, 77, Body::Moved(owner)));
    let asked = served.leases.asked.pop().expect("it was asked");
    assert_eq!((asked.first_page, asked.pages, asked.client), (inside.page(), 2, caller.client));
    served.leases.refuses = Some(Admission::Refused(Status::Restarting));
    for answer in [
        caller.write(&mut served, pointer, b"x"),
        caller.add(&mut served, pointer, 1),
        caller.plain(&mut served, Command::Delete, pointer),
    ] {
        assert!(refused(Status::Restarting)(&answer));
    }
    assert_eq!(caller.plain(&mut served, Command::Inquire, pointer).status, Status::Ok, "nothing is accessed");
    served.leases.refuses = None;
    assert_eq!(caller.read(&mut served, pointer, 1).data, [0], "nothing was written");
    assert_eq!(caller.plain(&mut served, Command::Delete, pointer).status, Status::Ok);
    assert_eq!(served.leases.forgotten, [(pointer.page(), 3)]);
    let count = served.leases.asked.len();
    caller.read(&mut served, pointer, 1);
    assert_eq!(served.leases.asked.len(), count, "not about objects that are gone");
}

#[test]
fn requests_about_leases_are_handed_over_and_decided() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, PAGE_BYTES + 50).plus(PAGE_BYTES + 8).expect("an offset");
    let ask = |caller: &mut Caller, served: &mut Served, command, epoch| {
        let request = caller.request(pointer.request(command, Arguments::NONE), Operation::Plain);
        assert_eq!(served.deliver(&datagram(&Request { epoch, ..request }, &[])), []);
        served.handed.pop().expect("it was handed over")
    };
    let update = ask(&mut caller, &mut served, Command::Update, 0);
    assert_eq!((update.page(), update.client(), update.staged), (pointer.page(), caller.client, None));
    let granted = answered(&served.decide(update, Decision::Granted { epoch: 9, term: SECOND, is_known: false })[0]);
    assert_eq!((granted.epoch, granted.body), (9, Body::Leased { term: SECOND, bytes: 50 }));
    assert_eq!(granted.data, [0; 50], "the bytes of the page that the object has");
    let renew = ask(&mut caller, &mut served, Command::Renew, 9);
    assert_eq!(renew.request.epoch, 9);
    let renewed = answered(&served.decide(renew, Decision::Granted { epoch: 9, term: SECOND, is_known: false })[0]);
    assert_eq!(renewed.body, Body::Leased { term: SECOND, bytes: 0 });
    let release = ask(&mut caller, &mut served, Command::Release, 9);
    assert_eq!(answered(&served.decide(release, Decision::Done { epoch: 9 })[0]).status, Status::Ok);
    let late = ask(&mut caller, &mut served, Command::Renew, 9);
    let answer = answered(&served.decide(late, Decision::Refused { status: Status::Fenced, epoch: 12 })[0]);
    assert_eq!((answer.status, answer.epoch), (Status::Fenced, 12));
    let wrong = Pointer::new(cluster(), HOME, 1, pointer.offset()).expect("an offset");
    assert!(refused(Status::Stale)(&caller.plain(&mut served, Command::Update, wrong)), "not even asked");
    assert!(served.handed.is_empty());
}

#[test]
fn a_commit_is_written_when_it_is_accepted_and_not_before() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 2 * PAGE_BYTES);
    let commit = |caller: &mut Caller, served: &mut Served, at: u64, data: &[u8]| {
        let destination = pointer.plus(at).expect("an offset").request(Command::Commit, Arguments::NONE);
        let request = caller.request(destination, Operation::Bytes(Extent::whole(data.len() as u32)));
        served.deliver(&datagram(&Request { epoch: 5, is_release: true, ..request }, data))
    };
    assert_eq!(commit(&mut caller, &mut served, 0, &[1; 4096]), []);
    let lease = served.handed.pop().expect("it was handed over");
    assert!(lease.request.is_release && lease.request.epoch == 5);
    // The lease may wait, for replicas for instance, while other datagrams arrive.
    caller.write(&mut served, pointer, &[2; 4096]);
    assert_eq!(commit(&mut caller, &mut served, 4096, &[3; 100]), []);
    let other = served.handed.pop().expect("it was handed over");
    let done = served.decide(lease, Decision::Done { epoch: 6 });
    assert_eq!((answered(&done[0]).status, answered(&done[0]).epoch), (Status::Ok, 6));
    assert_eq!(caller.read(&mut served, pointer, 4096).data, [1; 4096]);
    assert_eq!(served.decide(lease, Decision::Done { epoch: 6 }), [], "decided once");
    let fenced = served.decide(other, Decision::Refused { status: Status::Fenced, epoch: 8 });
    assert!(refused(Status::Fenced)(&answered(&fenced[0])));
    assert_eq!(caller.read(&mut served, pointer.plus(4096).expect("an offset"), 100).data, [0; 100]);
    assert_eq!(served.server.statistics().slots_used, 0);
    let across = commit(&mut caller, &mut served, 4095, &[1; 2]);
    assert!(refused(Status::Bounds)(&answered(&across[0])), "a lease is of a page");
}

#[test]
fn a_commit_that_outlives_its_object_is_stale() {
    let (mut served, mut caller) = started();
    for is_remade in [false, true] {
        let pointer = caller.object(&mut served, PAGE_BYTES);
        let destination = pointer.request(Command::Commit, Arguments::NONE);
        let request = caller.request(destination, Operation::Bytes(Extent::whole(3)));
        assert_eq!(served.deliver(&datagram(&request, b"abc")), []);
        let lease = served.handed.pop().expect("it was handed over");
        caller.plain(&mut served, Command::Delete, pointer);
        if is_remade {
            assert_eq!(caller.object(&mut served, PAGE_BYTES).offset(), pointer.offset());
        }
        let answer = served.decide(lease, Decision::Done { epoch: 1 });
        assert!(refused(Status::Stale)(&answered(&answer[0])));
        assert_eq!(served.server.statistics().slots_used, 0);
    }
}

#[test]
fn a_commit_of_several_datagrams_that_comes_again_is_decided_once() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, PAGE_BYTES);
    let request = caller.request(pointer.request(Command::Commit, Arguments::NONE), Operation::Plain);
    let part = |position: u32| {
        let operation = Operation::Bytes(Extent::part(position, 2048, 4096));
        datagram(&Request { operation, ..request }, &vec![position as u8 + 1; 2048])
    };
    let half = Body::Taken { position: 2048, received: 2048 };
    assert_eq!(answered(&served.deliver(&part(2048))[0]).body, half);
    assert_eq!(served.deliver(&part(0)), []);
    assert_eq!(served.deliver(&part(0)), [], "somebody decides about it");
    let [lease] = served.handed[..] else { panic!("{:?}", served.handed) };
    served.now += 1000 * SECOND;
    served.step(Input::Tick, &[]);
    served.step(Input::Gone(caller.client), &[]);
    let done = served.decide(lease, Decision::Done { epoch: 2 });
    assert!(decoded(&done[0]).is_last && answered(&done[0]).status == Status::Ok, "its bytes waited");
    assert_eq!(caller.read(&mut served, pointer, 4096).data, [[1; 2048], [1; 2048]].concat());
}

#[test]
fn guarded_pages_are_published() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 2 * PAGE_BYTES);
    let guard = |served: &mut Served, is_guarded| {
        served.step(Input::Guard { first_page: pointer.page() + 1, pages: 1, is_guarded }, &[]);
        [0, 1, 2].map(|page| served.published[(pointer.page() + page) as usize].flags)
    };
    assert_eq!(guard(&mut served, true), [1, 2, 0]);
    assert_eq!(guard(&mut served, false), [1, 0, 0]);
    served.check_published();
}
