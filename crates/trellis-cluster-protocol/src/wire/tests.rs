//! Every message survives encoding and decoding, and no bytes, however corrupted, make the decoder panic or accept a
//! node number outside the cluster.

use super::*;
use crate::sync::{Contribution, Demand, Kind, Operation, Outcome, Reduction, Refusal, SemaphoreDemand, Subject};
use crate::{coherence, heap, membership, sync};
use alloc::vec::Vec;
use trellis_base::Random;

const LIMITS: Limits = Limits { pages: 1000, page_bytes: 4096, nodes: 5, epoch: 7 };

fn every_message() -> Vec<Message> {
    let demand = PageIndex(12);
    let range = PageRange::new(PageIndex(10), 9).unwrap();
    let mut messages = Vec::new();
    for write in [false, true] {
        let requester = NodeId(4);
        let (after, sequence) = (0xdead_beef, 0xfeed_f00d);
        messages.extend(
            [
                coherence::Message::Request { demand, range, write, announced: false, requester, hops: 0 },
                coherence::Message::Request { demand, range, write, announced: true, requester, hops: u16::MAX },
                coherence::Message::Forward { demand, range, write, requester, after, sequence },
            ]
            .map(Message::Coherence),
        );
        for content in [Content::Kept, Content::Zero, Content::Bytes] {
            let grant = coherence::Message::Grant { demand, range, write, content, sequence };
            messages.push(Message::Coherence(grant));
        }
    }
    messages.extend(
        [
            coherence::Message::Confirm { demand, range },
            coherence::Message::Invalidate { page: demand, owner: NodeId(1) },
            coherence::Message::Redirect { page: demand, owner: NodeId(2) },
            coherence::Message::Retry { page: demand },
            coherence::Message::Again { page: demand },
            coherence::Message::Invalidated { page: demand },
            coherence::Message::Diff {
                pages: PageSet::new(PageIndex(64), 0b1101).unwrap(),
                writer: NodeId(3),
                number: u32::MAX,
                hops: 7,
                piggybacked: 0b1001,
                stamp: 0x0123_4567_89ab_cdef,
            },
        ]
        .map(Message::Coherence),
    );
    let id = 0x0123_4567_89ab_cdef;
    messages.extend(
        [
            sync::Message::LockRequest(id, false),
            sync::Message::LockRequest(id, true),
            sync::Message::LockForward(id, NodeId(3), false),
            sync::Message::LockForward(id, NodeId(3), true),
            sync::Message::LockBusy(id),
            sync::Message::LockToken(id),
            sync::Message::LockReturn(id),
            sync::Message::BarrierArrive(id, 9, Contribution::Nothing),
            sync::Message::BarrierArrive(id, 9, Contribution::Value(Reduction::Broadcast(NodeId(4)), 8)),
            sync::Message::BarrierRelease(id, u32::MAX, Contribution::Nothing),
            sync::Message::BarrierRelease(id, u32::MAX, Contribution::Mixed),
            sync::Message::AtomicRequest(id, Operation::Load, 1),
            sync::Message::AtomicRequest(id, Operation::Exchange(u64::MAX), 2),
            sync::Message::AtomicRequest(id, Operation::FetchAdd(5), 3),
            sync::Message::AtomicRequest(id, Operation::CompareExchange(6, u64::MAX - 1), 4),
            sync::Message::AtomicReply(id, 4, 77),
        ]
        .map(Message::Sync),
    );
    messages.extend(every_demand().map(|demand| Message::Sync(sync::Message::ObjectRequest(id, demand, u32::MAX))));
    messages.extend(every_outcome().map(|outcome| Message::Sync(sync::Message::ObjectReply(id, 3, outcome))));
    for kind in Kind::ALL {
        messages.push(Message::Sync(sync::Message::ObjectAbandon(id, kind, 3)));
        messages.push(Message::Sync(sync::Message::Inquiry(Subject { kind, id }, u32::MAX, 5)));
    }
    for reduction in Reduction::ALL {
        let value = Contribution::Value(reduction, u64::MAX - 1);
        messages.push(Message::Sync(sync::Message::BarrierArrive(id, 1, value)));
    }
    let undone = Demand::Semaphore(SemaphoreDemand::Acquire);
    messages.push(Message::Sync(sync::Message::ObjectUndo(id, undone, 7, u64::MAX)));
    messages.push(Message::Sync(sync::Message::Standing(7, sync::Standing { holds: 1, waits: u32::MAX })));
    messages.extend(
        [
            membership::Message::Alive,
            membership::Message::Leave,
            membership::Message::Fail(NodeId(2)),
            membership::Message::Join,
            membership::Message::Present(NodeId(2)),
            membership::Message::Welcome(1023),
            membership::Message::Joined,
            membership::Message::Depart,
            membership::Message::Turn,
            membership::Message::Behind(range),
            membership::Message::Handed(7),
            membership::Message::Taken,
            membership::Message::Going,
            membership::Message::Farewell,
        ]
        .map(Message::Membership),
    );
    messages.extend(every_message_of_the_heap().map(Message::Heap));
    messages
}

fn every_message_of_the_heap() -> [heap::Message; 11] {
    use heap::{Message, Operation, Outcome};
    let run = heap::Run { first: 700, pages: 300 };
    let (waiter, requester) = (u32::MAX, NodeId(4));
    let ask = |operation, is_routed| Message::Ask { offset: 4_095_999, operation, requester, waiter, is_routed };
    [
        Message::Request { waiter, pages: 1000, align_shift: 31, zone: heap::Zone::Upper },
        Message::Grant { waiter, run, is_fresh: false },
        Message::Grant { waiter, run, is_fresh: true },
        Message::NoRoom { waiter, longest: u32::MAX },
        Message::Return { run, requester, waiter },
        ask(Operation::Free, false),
        ask(Operation::Free, true),
        ask(Operation::Measure, true),
        Message::Reply { waiter, outcome: Outcome::Freed, owner: NodeId(2) },
        Message::Reply { waiter, outcome: Outcome::Bytes(4_096_000), owner: NodeId(3) },
        Message::Reply { waiter, outcome: Outcome::NoBlock, owner: NodeId(0) },
    ]
}

fn every_demand() -> impl Iterator<Item = Demand> {
    use sync::{ConditionDemand, EventDemand, OnceDemand, ReadWriteDemand};
    let locks = [
        ReadWriteDemand::Read,
        ReadWriteDemand::TryRead,
        ReadWriteDemand::Write,
        ReadWriteDemand::TryWrite,
        ReadWriteDemand::EndRead,
        ReadWriteDemand::EndWrite,
    ];
    let semaphores = [
        SemaphoreDemand::Acquire,
        SemaphoreDemand::TryAcquire,
        SemaphoreDemand::Release(u64::MAX),
        SemaphoreDemand::Post(u64::MAX),
        SemaphoreDemand::Value,
    ];
    let events = [EventDemand::Set, EventDemand::Clear, EventDemand::Wait, EventDemand::IsSet];
    let onces = [OnceDemand::Begin, OnceDemand::Done, OnceDemand::Failed, OnceDemand::IsDone];
    let conditions = [
        ConditionDemand::Wait,
        ConditionDemand::NotifyOne,
        ConditionDemand::NotifyAll,
        ConditionDemand::WakeOne,
        ConditionDemand::WakeAll,
    ];
    let all = locks.map(Demand::ReadWriteLock).into_iter().chain(semaphores.map(Demand::Semaphore));
    let all = all.chain(events.map(Demand::Event)).chain(onces.map(Demand::Once));
    all.chain(conditions.map(Demand::Condition)).chain([Demand::CountingBarrier(u32::MAX)])
}

fn every_outcome() -> impl Iterator<Item = Outcome> {
    let plain = [Outcome::Done(0), Outcome::Done(u64::MAX), Outcome::Enrolled, Outcome::Forgotten];
    plain.into_iter().chain(Refusal::ALL.map(Outcome::Refused))
}

#[test]
fn every_message_survives_the_wire() {
    for message in every_message() {
        let encoded = encode(&message, LIMITS.epoch);
        assert_eq!(decode(&encoded.header, encoded.body(), &LIMITS), Ok(message));
        let expected = match message {
            Message::Coherence(message) if message.bytes().is_some() => BodyKind::Pages(message.bytes().unwrap()),
            _ if encoded.body().is_empty() => BodyKind::Nothing,
            _ => BodyKind::Small(encoded.body().len()),
        };
        assert_eq!(body_of(&encoded.header, &LIMITS), Ok(expected), "{message:?}");
    }
}

#[test]
fn a_carried_page_has_the_bytes_of_a_page_and_no_others() {
    let piggybacked = coherence::Message::Piggybacked { page: PageIndex(999), stamp: 0x0123_4567_89ab_cdef };
    let message = Message::Coherence(piggybacked);
    let encoded = encode_with(&message, LIMITS.epoch, LIMITS.page_bytes);
    assert!(encoded.body().is_empty());
    assert_eq!(body_of(&encoded.header, &LIMITS), Ok(BodyKind::Attached(4096)));
    let body = [7; 4096];
    assert_eq!(decode(&encoded.header, &body, &LIMITS), Ok(message));
    assert_eq!(attached(&encoded.header, &body), body);
    for bytes in [0, 1, 4095, 4097] {
        let encoded = encode_with(&message, LIMITS.epoch, bytes);
        assert_eq!(body_of(&encoded.header, &LIMITS), Err(Malformed::Body), "{bytes} bytes");
    }
    let outside = Message::Coherence(coherence::Message::Piggybacked { page: PageIndex(1000), stamp: 1 });
    let encoded = encode_with(&outside, LIMITS.epoch, LIMITS.page_bytes);
    assert_eq!(decode(&encoded.header, &body, &LIMITS), Err(Malformed::Pages));
}

#[test]
fn a_header_is_what_the_table_says() {
    let range = PageRange::new(PageIndex(0x0102), 3).unwrap();
    let message = coherence::Message::Grant {
        demand: PageIndex(0x0104),
        range,
        write: true,
        content: Content::Bytes,
        sequence: 0x0a0b_0c0d,
    };
    let header = encode(&Message::Coherence(message), 7).header;
    #[rustfmt::skip]
    let expected = [
        0x54, 0x52, 5, 3, 7, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0,
        3, 0, 0, 0, 2, 0, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a, 0, 0, 5, 0,
    ];
    assert_eq!(header, expected);
}

#[test]
fn numbers_past_the_cluster_are_refused() {
    let change = |message: Message, at: usize, value: u8| {
        let mut encoded = encode(&message, LIMITS.epoch);
        encoded.header[at] = value;
        decode(&encoded.header, encoded.body(), &LIMITS)
    };
    let range = PageRange::new(PageIndex(10), 9).unwrap();
    let request = Message::Coherence(coherence::Message::Request {
        demand: PageIndex(12),
        range,
        write: true,
        announced: true,
        requester: NodeId(4),
        hops: 0,
    });
    let forward = Message::Sync(sync::Message::LockForward(1, NodeId(0), false));
    assert_eq!(change(request, 0, 0), Err(Malformed::Magic));
    assert_eq!(change(request, 2, 9), Err(Malformed::Version(9)));
    assert_eq!(change(request, 3, 99), Err(Malformed::Kind(99)));
    assert_eq!(change(request, 4, 8), Err(Malformed::Epoch(8)));
    assert_eq!(change(request, 9, 4), Err(Malformed::Pages), "page 1034 of 1000");
    assert_eq!(change(request, 12, 1), Err(Malformed::Pages), "page number over 32 bits");
    assert_eq!(change(request, 16, 0), Err(Malformed::Pages), "an empty run");
    assert_eq!(change(request, 19, 255), Err(Malformed::Pages), "a run past every chunk");
    assert_eq!(change(request, 20, 9), Err(Malformed::Pages), "demand outside the run");
    assert_eq!(change(request, 30, 16), Err(Malformed::Field));
    assert_eq!(change(request, 31, 1), Err(Malformed::Field));
    assert_eq!(change(forward, 28, 5), Err(Malformed::Node(5)));
    let operation = Message::Sync(sync::Message::AtomicRequest(1, Operation::Load, 1));
    assert_eq!(change(operation, 20, 4), Err(Malformed::Field));
    assert_eq!(change(forward, 20, 2), Err(Malformed::Field), "neither tried nor not");
    let demand = Message::Sync(sync::Message::ObjectRequest(1, Demand::CountingBarrier(3), 1));
    assert_eq!(change(demand, 20, 25), Err(Malformed::Field), "a demand that does not exist");
    let reply = Message::Sync(sync::Message::ObjectReply(1, 1, Outcome::Done(3)));
    assert_eq!(change(reply, 20, 6), Err(Malformed::Field), "an outcome that does not exist");
    let brought = Contribution::Value(Reduction::Broadcast(NodeId(4)), 1);
    let arrival = Message::Sync(sync::Message::BarrierArrive(1, 1, brought));
    assert_eq!(change(arrival, 28, 5), Err(Malformed::Node(5)), "the value of a node that does not exist");
    assert_eq!(change(arrival, 20, 14), Err(Malformed::Field), "a reduction that does not exist");
}

#[test]
fn numbers_past_the_heap_are_refused() {
    let change = |message: heap::Message, at: usize, value: u8| {
        let mut encoded = encode(&Message::Heap(message), LIMITS.epoch);
        encoded.header[at] = value;
        decode(&encoded.header, encoded.body(), &LIMITS)
    };
    let [request, grant, _, _, giving_back, ask, _, _, _, bytes, _] = every_message_of_the_heap();
    assert_eq!(change(request, 8, 32), Err(Malformed::Field), "an alignment of more than 2^31 pages");
    assert_eq!(change(request, 21, 4), Err(Malformed::Pages), "1256 pages of 1000");
    assert_eq!(change(grant, 20, 45), Err(Malformed::Pages), "pages 700 to 1001");
    assert_eq!(change(grant, 12, 1), Err(Malformed::Pages), "a page number over 32 bits");
    assert_eq!(change(grant, 30, 2), Err(Malformed::Field));
    assert_eq!(change(giving_back, 28, 5), Err(Malformed::Node(5)));
    assert_eq!(change(ask, 10, 0x7f), Err(Malformed::Pages), "an offset past the region");
    assert_eq!(change(ask, 20, 2), Err(Malformed::Field));
    assert_eq!(change(bytes, 11, 1), Err(Malformed::Field), "a block larger than the region");
    let empty = heap::Message::Return { run: heap::Run { first: 3, pages: 0 }, requester: NodeId(0), waiter: 0 };
    assert_eq!(change(empty, 0, b'T'), Err(Malformed::Pages));
}

#[test]
fn any_bytes_are_decoded_or_refused_without_a_panic() {
    let mut random = Random::new(1);
    let mut accepted = 0;
    let messages = every_message();
    for round in 0..200_000usize {
        let mut encoded = encode(&messages[round % messages.len()], LIMITS.epoch);
        for _ in 0..random.below(4) {
            encoded.header[random.index(32)] = random.draw() as u8;
        }
        let length = random.index(17);
        let body = [random.draw() as u8; 16];
        let decoded = decode(&encoded.header, &body[..length], &LIMITS);
        let follows = body_of(&encoded.header, &LIMITS);
        if let (Ok(Message::Coherence(message)), Ok(_)) = (decoded, follows) {
            assert!(message.page().0 < LIMITS.pages);
            accepted += 1;
        }
    }
    assert!(accepted > 1000, "the mutations must leave some frames whole");
}
