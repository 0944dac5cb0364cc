//! The promises of a memory server, one at a time, in datagrams.

#[allow(dead_code, reason = "every test program uses a part of it")]
mod served;

use served::{
    Caller, HOME, SECOND, Served, answered, at_home, cluster, datagram, decoded, pointer_of, refused, settings, started,
};
use trellis_fabric_protocol::memory_server::{Admission, Effect, Input, MemoryServer, NoTable, Settings, WINDOW};
use trellis_fabric_protocol::wire::address::{Arguments, Host, PAGE_BYTES, Pointer};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Body, Extent, Operation, Request, Status};

#[test]
fn an_object_is_made_read_written_and_deleted() {
    let (mut served, mut caller) = started();
    let bytes = PAGE_BYTES + 100;
    let pointer = caller.object(&mut served, bytes);
    assert_eq!((pointer.home(), pointer.offset() % PAGE_BYTES), (HOME, 0));
    assert_eq!(caller.read(&mut served, pointer, bytes as u32).data, vec![0; bytes as usize], "it is zero");
    let inside = pointer.plus(PAGE_BYTES - 2).expect("an offset");
    assert_eq!(caller.write(&mut served, inside, b"abcd").status, Status::Ok);
    assert_eq!(caller.read(&mut served, inside, 4).data, b"abcd");
    let asked = caller.plain(&mut served, Command::Inquire, inside);
    assert_eq!(asked.body, Body::Object { pointer, bytes });
    let any = Pointer::new(cluster(), HOME, 0, inside.offset()).expect("an offset");
    assert_eq!(caller.plain(&mut served, Command::Inquire, any).body, asked.body, "whatever is there");
    assert!(refused(Status::Bounds)(&caller.plain(&mut served, Command::Delete, inside)), "not its first byte");
    assert_eq!(caller.plain(&mut served, Command::Delete, pointer).status, Status::Ok);
    assert!(refused(Status::Stale)(&caller.plain(&mut served, Command::Delete, pointer)));
    assert!(refused(Status::Stale)(&caller.read(&mut served, pointer, 1)));
    assert!(refused(Status::Stale)(&caller.write(&mut served, pointer, b"x")));
    assert!(refused(Status::Stale)(&caller.add(&mut served, pointer, 1)));
    assert!(refused(Status::Stale)(&caller.plain(&mut served, Command::Inquire, pointer)));
    assert!(refused(Status::Bounds)(&caller.plain(&mut served, Command::Inquire, any)));
    let again = caller.object(&mut served, bytes);
    assert_eq!(again.offset(), pointer.offset());
    assert_ne!(again.generation(), pointer.generation());
    assert_eq!(caller.read(&mut served, again, bytes as u32).data, vec![0; bytes as usize], "nothing of the first");
    assert!(refused(Status::Stale)(&caller.read(&mut served, pointer, 1)));
    served.check_published();
}

#[test]
fn a_read_is_a_datagram_without_payload() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 8192);
    caller.write(&mut served, pointer, &[7; 5000]);
    let arguments = Arguments::of_length(12).expect("below 16");
    let destination = pointer.request(Command::Read, arguments);
    let request = caller.request(destination, Operation::Read { bytes: 4096 });
    let mut bare = datagram(&request, &[]);
    bare.payload.clear();
    let answers = served.deliver(&bare);
    assert_eq!(answered(&answers[0]).data, vec![7; 4096]);
    assert_eq!(decoded(&answers[0]).to, request.source, "told by its source alone");
}

#[test]
fn nothing_is_accessed_past_an_object() {
    let (mut served, mut caller) = started();
    let first = caller.object(&mut served, PAGE_BYTES);
    let second = caller.object(&mut served, 100);
    assert_eq!(second.offset(), first.offset() + PAGE_BYTES, "beside it");
    let last = first.plus(PAGE_BYTES - 4).expect("an offset");
    assert!(refused(Status::Bounds)(&caller.read(&mut served, last, 5)));
    assert!(refused(Status::Bounds)(&caller.write(&mut served, last, &[1; 5])));
    let end = second.plus(96).expect("an offset");
    assert!(refused(Status::Bounds)(&caller.add(&mut served, end, 1)), "4 of its 8 bytes are outside");
    assert_eq!(caller.add(&mut served, second.plus(88).expect("an offset"), 1).status, Status::Ok);
    let past = Pointer::new(cluster(), HOME, first.generation(), 64 * PAGE_BYTES).expect("an offset");
    assert!(refused(Status::Bounds)(&caller.read(&mut served, past, 1)), "past the memory");
    assert!(refused(Status::Bounds)(&caller.plain(&mut served, Command::Inquire, past)));
    let free = Pointer::new(cluster(), HOME, 100, 10 * PAGE_BYTES).expect("an offset");
    assert!(refused(Status::Bounds)(&caller.read(&mut served, free, 1)), "no object is there yet");
}

#[test]
fn an_object_is_made_of_what_comes_along() {
    let (mut served, mut caller) = started();
    let destination = at_home().request(Command::CreateWrite, Arguments::NONE);
    let data: Vec<u8> = (0..5000).map(|byte| byte as u8).collect();
    let operation = Operation::Bytes(Extent::whole(5000));
    let made = caller.call(&mut served, destination, operation, &data);
    let Body::Object { pointer, bytes: 5000 } = made.body else { panic!("{made:?}") };
    assert_eq!(caller.read(&mut served, pointer, 5000).data, data);
    // The same in three datagrams, the last one first.
    let request = caller.request(destination, Operation::Bytes(Extent::part(0, 2000, 5000)));
    let part = |position: usize, bytes: usize| {
        let operation = Operation::Bytes(Extent::part(position as u32, bytes as u32, 5000));
        datagram(&Request { operation, ..request }, &data[position..position + bytes])
    };
    let taken = |position, received| Body::Taken { position, received };
    assert_eq!(answered(&served.deliver(&part(4000, 1000))[0]).body, taken(4000, 1000));
    assert_eq!(answered(&served.deliver(&part(0, 2000))[0]).body, taken(0, 3000));
    assert_eq!(answered(&served.deliver(&part(0, 2000))[0]).body, taken(0, 3000));
    let whole = served.deliver(&part(2000, 2000));
    let second = pointer_of(&answered(&whole[0]));
    assert!(decoded(&whole[0]).is_last);
    assert_eq!(caller.read(&mut served, second, 5000).data, data);
    // A late datagram is answered, and creates nothing.
    assert_eq!(served.deliver(&part(4000, 1000)), whole);
    let now = served.server.statistics();
    assert_eq!((now.objects, now.slots_used, now.repeated), (2, 0, 1));
    served.check_published();
}

#[test]
fn a_write_of_several_datagrams_happens_at_once() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 10_000);
    let destination = pointer.plus(8).expect("an offset").request(Command::Write, Arguments::NONE);
    let request = caller.request(destination, Operation::Plain);
    let part = |position: u32, bytes: u32| {
        let operation = Operation::Bytes(Extent::part(position, bytes, 9000));
        datagram(&Request { operation, ..request }, &vec![position as u8; bytes as usize])
    };
    served.deliver(&part(100, 8900));
    assert_eq!(caller.read(&mut served, pointer, 10_000).data, vec![0; 10_000], "not a byte before all are there");
    let whole = served.deliver(&part(0, 100));
    assert_eq!((answered(&whole[0]).status, decoded(&whole[0]).is_last), (Status::Ok, true));
    let expected = [vec![0; 108], vec![100; 8900], vec![0; 992]].concat();
    assert_eq!(caller.read(&mut served, pointer, 10_000).data, expected);
    caller.write(&mut served, pointer, &[9; 200]);
    let late = served.deliver(&part(0, 100));
    assert_eq!((answered(&late[0]).body, decoded(&late[0]).is_last), (Body::Nothing, true), "it was done");
    assert_eq!(caller.read(&mut served, pointer, 200).data, vec![9; 200], "and is not done again");
    let outside = pointer.plus(1001).expect("an offset").request(Command::Write, Arguments::NONE);
    let request = caller.request(outside, Operation::Bytes(Extent::part(0, 10, 9000)));
    let answer = answered(&served.deliver(&datagram(&request, &[1; 10]))[0]);
    assert!(refused(Status::Bounds)(&answer), "all of it must fit before any of it is kept");
}

#[test]
fn additions_and_exchanges_say_what_was_there() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 64).plus(16).expect("an offset");
    assert_eq!(caller.add(&mut served, pointer, 5).body, Body::Value(0));
    assert_eq!(caller.add(&mut served, pointer, u64::MAX).body, Body::Value(5));
    let destination = pointer.request(Command::CompareSwap, Arguments::NONE);
    let swap = |caller: &mut Caller, served: &mut Served, expected, new| {
        let answer = caller.call(served, destination, Operation::CompareSwap { expected, new }, &[]);
        (answer.status, answer.body)
    };
    assert_eq!(swap(&mut caller, &mut served, 4, 100), (Status::Ok, Body::Value(4)));
    assert_eq!(swap(&mut caller, &mut served, 4, 200), (Status::Mismatch, Body::Value(100)));
    assert_eq!(caller.read(&mut served, pointer, 8).data, 100u64.to_le_bytes());
}

#[test]
fn what_is_done_once_is_done_once_however_often_it_comes() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 64);
    let destination = pointer.request(Command::FetchAdd, Arguments::NONE);
    let request = caller.request(destination, Operation::FetchAdd { addend: 3 });
    let sent = datagram(&request, &[]);
    served.is_slow = true;
    assert_eq!(served.deliver(&sent), [], "it is being carried out");
    assert_eq!(served.deliver(&sent), [], "and not begun again");
    let [effect] = served.waiting[..] else { panic!("{:?}", served.waiting) };
    let first = served.exchange(effect);
    assert_eq!(answered(&first[0]).body, Body::Value(0));
    served.is_slow = false;
    for _ in 0..3 {
        assert_eq!(served.deliver(&sent), first);
    }
    assert_eq!(caller.read(&mut served, pointer, 8).data, 3u64.to_le_bytes());
    assert_eq!(served.server.statistics().repeated, 4);
    // A request with the same id and another address is not a repetition.
    let elsewhere = pointer.plus(8).expect("an offset").request(Command::FetchAdd, Arguments::NONE);
    let other = Request { destination: elsewhere, ..request };
    assert!(refused(Status::Malformed)(&answered(&served.deliver(&datagram(&other, &[]))[0])));
    // The same holds for a deletion and a creation.
    let request = caller.request(pointer.request(Command::Delete, Arguments::NONE), Operation::Plain);
    let gone = served.deliver(&datagram(&request, &[]));
    assert_eq!(served.deliver(&datagram(&request, &[])), gone, "not that it is stale");
    let destination = at_home().request(Command::Create, Arguments::NONE);
    let request = caller.request(destination, Operation::Create { bytes: 1 });
    let made = served.deliver(&datagram(&request, &[]));
    assert_eq!(served.deliver(&datagram(&request, &[])), made);
    assert_eq!(served.server.statistics().objects, 1);
}

#[test]
fn a_refusal_is_an_answer_and_stays_one() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 64);
    let destination = pointer.request(Command::FetchAdd, Arguments::NONE);
    let request = caller.request(destination, Operation::FetchAdd { addend: 1 });
    let sent = datagram(&request, &[]);
    served.leases.refuses = Some(Admission::Refused(Status::Busy));
    let busy = served.deliver(&sent);
    assert!(refused(Status::Busy)(&answered(&busy[0])));
    served.leases.refuses = None;
    assert_eq!(served.deliver(&sent), busy, "whoever was told so may have given up");
    assert_eq!(caller.add(&mut served, pointer, 1).body, Body::Value(0), "another id is another request");
}

#[test]
fn a_blind_write_comes_again_unless_it_asks_for_once() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 64);
    let destination = pointer.request(Command::Write, Arguments::NONE);
    for is_once in [false, true] {
        let request = caller.request(destination, Operation::Bytes(Extent::whole(4)));
        let sent = datagram(&Request { is_once, ..request }, b"old!");
        assert_eq!(answered(&served.deliver(&sent)[0]).status, Status::Ok);
        assert_eq!(caller.write(&mut served, pointer, b"new!").status, Status::Ok);
        assert_eq!(answered(&served.deliver(&sent)[0]).status, Status::Ok);
        let expected = if is_once { b"new!" } else { b"old!" };
        assert_eq!(caller.read(&mut served, pointer, 4).data, expected, "once: {is_once}");
    }
}

#[test]
fn the_window_bounds_what_is_kept_and_what_fell_out_is_fenced() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 64);
    let destination = pointer.request(Command::FetchAdd, Arguments::NONE);
    let first = caller.request(destination, Operation::FetchAdd { addend: 1 });
    served.deliver(&datagram(&first, &[]));
    for _ in 0..2 * WINDOW {
        caller.add(&mut served, pointer, 1);
    }
    assert_eq!(served.server.statistics().answers_kept, WINDOW);
    assert!(refused(Status::Fenced)(&answered(&served.deliver(&datagram(&first, &[]))[0])));
    assert_eq!(caller.read(&mut served, pointer, 8).data, (2 * WINDOW + 1).to_le_bytes(), "not done again");
}

#[test]
fn a_session_that_is_over_is_fenced() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 64);
    let destination = pointer.request(Command::FetchAdd, Arguments::NONE);
    let request = caller.request(destination, Operation::FetchAdd { addend: 1 });
    let sent = datagram(&request, &[]);
    served.deliver(&sent);
    served.step(Input::Gone(caller.client), &[]);
    assert_eq!(served.server.statistics().answers_kept, 0, "dropped when the client is gone");
    assert!(refused(Status::Fenced)(&answered(&served.deliver(&sent)[0])));
    let epoch = caller.epoch;
    caller.epoch = caller.hello(&mut served).epoch;
    assert!(caller.epoch > epoch);
    assert!(refused(Status::Fenced)(&answered(&served.deliver(&sent)[0])), "late, from the session before");
    assert_eq!(caller.add(&mut served, pointer, 1).body, Body::Value(1), "its objects stay");
    served.now += 31 * SECOND;
    assert!(refused(Status::Fenced)(&caller.add(&mut served, pointer, 1)), "silence ends a session");
    served.step(Input::Tick, &[]);
    assert_eq!((served.server.statistics().sessions, served.server.statistics().sessions_ended), (0, 2));
    assert_eq!(caller.read(&mut served, pointer, 8).status, Status::Ok, "a READ needs none");
    let unknown = Caller::new(4, 1).create(&mut served, 1);
    assert!(refused(Status::Fenced)(&unknown));
}

#[test]
fn an_object_of_a_session_goes_with_it_and_with_no_other() {
    let (mut served, mut caller) = started();
    let mut other = Caller::with_session(&mut served, 4, 1);
    let of_session = |caller: &mut Caller, served: &mut Served| {
        let destination = at_home().request(Command::Create, Arguments::OF_SESSION);
        let request = caller.request(destination, Operation::Create { bytes: 2 * PAGE_BYTES });
        match answered(&served.deliver(&datagram(&request, &[]))[0]).body {
            Body::Object { pointer, .. } => pointer,
            body => panic!("it was not made: {body:?}"),
        }
    };
    let (mine, others) = (of_session(&mut caller, &mut served), of_session(&mut other, &mut served));
    let kept = caller.object(&mut served, 64);
    // The other session sends something now and then.
    for _ in 0..2 {
        served.now += 16 * SECOND;
        other.epoch = other.hello(&mut served).epoch;
        served.step(Input::Tick, &[]);
    }
    assert!(refused(Status::Stale)(&caller.read(&mut served, mine, 8)), "its session is over");
    assert_eq!(served.server.quota(caller.client.host).1, PAGE_BYTES, "nor does it count any more");
    assert_eq!(caller.read(&mut served, others, 8).status, Status::Ok);
    assert_eq!(caller.read(&mut served, kept, 8).status, Status::Ok, "it was not made for a session");
    // A client that comes back has another session, and nothing of the previous one.
    caller.epoch = caller.hello(&mut served).epoch;
    let again = of_session(&mut caller, &mut served);
    served.step(Input::Gone(other.client), &[]);
    assert!(refused(Status::Stale)(&other.read(&mut served, others, 8)), "somebody knew that it is gone");
    assert_eq!(caller.read(&mut served, again, 8).status, Status::Ok);
    assert_eq!(served.server.statistics().objects, 2);
}

#[test]
fn hello_says_what_there_is_to_have() {
    let mut served = Served::new(Settings { quota_bytes: 3 * PAGE_BYTES, ..settings(64) });
    let mut caller = Caller::with_session(&mut served, 3, 1);
    caller.create(&mut served, 1);
    let expected = Body::Welcome {
        quota_bytes: 3 * PAGE_BYTES,
        used_bytes: PAGE_BYTES,
        window: WINDOW as u32,
        silence_ms: 30_000,
    };
    assert_eq!(caller.hello(&mut served).body, expected);
    let mut twin = Caller { identity: 99, ..caller.clone() };
    assert!(refused(Status::Denied)(&twin.hello(&mut served)), "two drew the same incarnation");
    let answer = caller.plain(&mut served, Command::Ping, at_home());
    let (free_bytes, memory_bytes) = (63 * PAGE_BYTES, 64 * PAGE_BYTES);
    assert_eq!(answer.body, Body::Present { host: at_home(), free_bytes, memory_bytes });
    for random_number in 2..=8 {
        Caller::with_session(&mut served, 3, random_number);
    }
    assert!(refused(Status::Busy)(&Caller::new(3, 9).hello(&mut served)), "a host has so many sessions");
}

#[test]
fn a_host_has_no_more_than_its_quota() {
    let mut served = Served::new(Settings { quota_bytes: 4 * PAGE_BYTES, ..settings(64) });
    let mut caller = Caller::with_session(&mut served, 3, 1);
    let mut neighbour = Caller::with_session(&mut served, 3, 2);
    let mut other = Caller::with_session(&mut served, 4, 1);
    let pointer = caller.object(&mut served, 2 * PAGE_BYTES + 1);
    assert!(refused(Status::Quota)(&neighbour.create(&mut served, PAGE_BYTES + 1)), "the host, not the process");
    assert_eq!(neighbour.create(&mut served, PAGE_BYTES).status, Status::Ok);
    assert_eq!(served.server.quota(Host(3)), (4 * PAGE_BYTES, 4 * PAGE_BYTES));
    // A deletion by any client reduces the use of the object's creator.
    assert_eq!(other.plain(&mut served, Command::Delete, pointer).status, Status::Ok);
    assert_eq!((served.server.quota(Host(3)).1, served.server.quota(Host(4)).1), (PAGE_BYTES, 0));
    assert_eq!(caller.create(&mut served, 3 * PAGE_BYTES).status, Status::Ok);
    assert!(refused(Status::Quota)(&caller.create(&mut served, 1)), "whole pages count");
}

#[test]
fn an_object_needs_free_memory_in_one_run() {
    let mut served = Served::new(Settings { quota_bytes: 128 * PAGE_BYTES, ..settings(64) });
    let mut other = Caller::with_session(&mut served, 4, 1);
    other.object(&mut served, PAGE_BYTES);
    assert!(refused(Status::NoMemory)(&other.create(&mut served, 65 * PAGE_BYTES)));
    assert!(refused(Status::NoMemory)(&other.create(&mut served, u64::MAX)));
    assert_eq!(other.create(&mut served, 60 * PAGE_BYTES).status, Status::Ok);
    assert!(refused(Status::NoMemory)(&other.create(&mut served, 4 * PAGE_BYTES)), "no run is that long");
    assert!(refused(Status::Malformed)(&other.create(&mut served, 0)), "an object has a byte");
}

#[test]
fn requests_about_other_homes_are_sent_on() {
    let (mut served, mut caller) = started();
    let elsewhere = Pointer::new(cluster(), Host(8), 1, 4096).expect("an offset");
    assert_eq!(caller.read(&mut served, elsewhere, 1).body, Body::Moved(elsewhere.encode()));
    let anywhere = Pointer::to_host(cluster(), Host::ANYWHERE);
    let create = anywhere.request(Command::Create, Arguments::NONE);
    for _ in 0..2 {
        let answer = caller.call(&mut served, create, Operation::Create { bytes: 1 }, &[]);
        assert_eq!((answer.status, answer.body), (Status::Moved, Body::Moved(at_home().encode())));
    }
    assert_eq!(served.server.statistics().objects, 0, "a second try may be delivered to another server");
    assert!(refused(Status::Malformed)(&caller.read(&mut served, anywhere, 1)));
    let all = Pointer::to_host(cluster(), Host::ALL);
    assert!(matches!(caller.plain(&mut served, Command::Ping, all).body, Body::Present { .. }));
    assert!(refused(Status::UnknownCommand)(&caller.plain(&mut served, Command::Delete, all)));
    for command in [Command::Recall, Command::Invalidate, Command::Invalidated] {
        assert!(refused(Status::UnknownCommand)(&caller.plain(&mut served, command, at_home())), "{command}");
    }
}

#[test]
fn nobody_hears_what_nobody_waits_for() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 64);
    let destination = pointer.request(Command::Write, Arguments::NO_REPLY);
    let request = caller.request(destination, Operation::Bytes(Extent::whole(3)));
    assert_eq!(served.deliver(&datagram(&request, b"abc")), []);
    assert_eq!(caller.read(&mut served, pointer, 3).data, b"abc");
    let request = caller.request(pointer.request(Command::Delete, Arguments::NO_REPLY), Operation::Plain);
    assert_eq!(served.deliver(&datagram(&request, &[])), []);
    assert_eq!(served.server.statistics().objects, 0);
}

#[test]
fn slots_are_bounded_and_the_rest_is_told_to_wait() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 10_000);
    let destination = pointer.request(Command::Write, Arguments::NONE);
    let begin = |caller: &mut Caller, served: &mut Served| {
        let operation = Operation::Bytes(Extent::part(0, 10, 9000));
        caller.call(served, destination, operation, &[1; 10]).status
    };
    let begun: Vec<Status> = (0..5).map(|_| begin(&mut caller, &mut served)).collect();
    assert_eq!(begun, [Status::Ok, Status::Ok, Status::Ok, Status::Ok, Status::Busy]);
    served.now += 6 * SECOND;
    served.step(Input::Tick, &[]);
    assert_eq!((served.server.statistics().slots_used, served.server.statistics().writes_dropped), (0, 4));
    assert_eq!(begin(&mut caller, &mut served), Status::Ok);
}

#[test]
fn whatever_arrives_is_counted() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 5000);
    caller.read(&mut served, pointer, 1);
    caller.read(&mut served, pointer, 6000);
    let now = served.server.statistics();
    assert_eq!((now.requests, now.objects, now.pages_used, now.pages_free), (4, 1, 2, 62));
    assert_eq!(now.answers[Status::Ok as usize], 3);
    assert_eq!(now.answers[Status::Bounds as usize], 1);
    assert_eq!((now.sessions, now.longest_free_run_pages), (1, 62));
}

#[test]
fn effects_come_in_the_order_that_keeps_secrets() {
    let (mut served, mut caller) = started();
    let destination = at_home().request(Command::Create, Arguments::NONE);
    let request = caller.request(destination, Operation::Create { bytes: 5000 });
    let mut effects = Vec::new();
    served.server.step(0, Input::Request(request), &mut served.leases, &mut effects);
    let [Effect::Zero { bytes: 8192, .. }, Effect::Publish { pages: 2, .. }, Effect::Reply { reply, .. }] = effects[..]
    else {
        panic!("{effects:?}");
    };
    let Body::Object { pointer, .. } = reply.body else { panic!("{reply:?}") };
    let request = caller.request(pointer.request(Command::Delete, Arguments::NONE), Operation::Plain);
    effects.clear();
    served.server.step(0, Input::Request(request), &mut served.leases, &mut effects);
    assert!(matches!(effects[..], [Effect::Publish { pages: 2, .. }, Effect::Reply { .. }]), "{effects:?}");
}

#[test]
fn a_server_that_kept_its_memory_goes_on() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 5000);
    let gone = caller.object(&mut served, 1);
    caller.write(&mut served, pointer, b"kept");
    caller.plain(&mut served, Command::Delete, gone);
    let settings = Settings { incarnation: 2, ..settings(64) };
    let refused_table = MemoryServer::restored(settings, &served.published[1..], |_| Host(3)).unwrap_err();
    assert_eq!(refused_table, NoTable { pages: 64, page: 63 });
    assert!(refused_table.to_string().contains("64 pages"));
    served.server = MemoryServer::restored(settings, &served.published, |_| Host(3)).expect("its own table");
    assert!(refused(Status::Fenced)(&caller.add(&mut served, pointer, 1)), "its sessions are gone");
    assert_eq!(caller.read(&mut served, pointer, 4).data, b"kept");
    assert!(refused(Status::Stale)(&caller.read(&mut served, gone, 1)));
    assert_eq!(served.server.quota(Host(3)).1, 2 * PAGE_BYTES);
    caller.epoch = caller.hello(&mut served).epoch;
    let again = caller.object(&mut served, 1);
    assert_eq!(again.offset(), gone.offset());
    assert_ne!(again.generation(), gone.generation(), "generations go on");
}

#[test]
fn a_damaged_request_is_answered_and_not_carried_out() {
    let (mut served, mut caller) = started();
    let pointer = caller.object(&mut served, 64);
    let destination = pointer.request(Command::Write, Arguments::NONE);
    let request = caller.request(destination, Operation::Bytes(Extent::whole(4)));
    let mut damaged = datagram(&request, b"good");
    *damaged.payload.last_mut().expect("bytes") ^= 1;
    assert!(refused(Status::BadTag)(&answered(&served.deliver(&damaged)[0])));
    damaged.payload.pop();
    assert!(refused(Status::Malformed)(&answered(&served.deliver(&damaged)[0])), "truncated");
    assert_eq!(caller.read(&mut served, pointer, 4).data, [0; 4]);
    assert_eq!(served.server.statistics().requests, 3, "they never came to the server");
}

#[test]
fn what_is_elsewhere_is_given_to_nobody_and_not_deleted() {
    let (mut served, mut caller) = started();
    let object = caller.object(&mut served, 10 * PAGE_BYTES);
    served.server.lend(object.page() + 8, 40);
    let delete = caller.plain(&mut served, Command::Delete, object);
    assert!(refused(Status::Busy)(&delete));
    assert_eq!(served.server.wants_back(), Some(object.page() + 8));
    let asked = caller.plain(&mut served, Command::Inquire, object);
    assert_eq!(asked.body, Body::Object { pointer: object, bytes: 10 * PAGE_BYTES }, "it is whole as before");
    let after = caller.object(&mut served, PAGE_BYTES);
    assert_eq!(after.page(), object.page() + 48, "behind what is elsewhere");
    served.server.take_back(object.page() + 8, 40);
    assert_eq!(served.server.wants_back(), None);
    assert_eq!(caller.plain(&mut served, Command::Delete, object).status, Status::Ok);
    served.check_published();
}
