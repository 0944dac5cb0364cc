//! A table page survives; what changed has a new epoch; half an object is none.

use super::super::{Input, NoLeases, SessionLimits, Settings, StagingLimits};
use super::*;
use crate::wire::address::{Arguments, Cluster, Destination, Incarnation, Pointer, Source};
use crate::wire::command::Command;
use crate::wire::datagram::{Body, Operation, Request, TagKind};
use trellis_base::Random;

const HOME: Host = Host(7);
const MAKER: Host = Host(3);
const PAGES: u64 = 300;

fn cluster() -> Cluster {
    Cluster::new(5).expect("24 bits")
}

fn settings() -> Settings {
    Settings {
        cluster: cluster(),
        home: HOME,
        memory_bytes: PAGES * PAGE_BYTES,
        generation: 9,
        incarnation: 1,
        quota_bytes: PAGES * PAGE_BYTES,
        objects_max: 100,
        sessions: SessionLimits { sessions_max: 4, sessions_per_host_max: 4, silence_max: u64::MAX },
        staging: StagingLimits { slots: 4, slots_per_host_max: 4, silence_max: u64::MAX },
    }
}

/// A server, and a client of it.
struct Served {
    server: MemoryServer,
    requests: u64,
    epoch: u64,
}

impl Served {
    fn new() -> Served {
        let mut served = Served { server: MemoryServer::new(settings()), requests: 0, epoch: 0 };
        let hello = Pointer::to_host(cluster(), HOME).request(Command::Hello, Arguments::NONE);
        let (epoch, _) = served.ask(hello, Operation::Hello { identity: 1 });
        served.epoch = epoch;
        served
    }

    fn ask(&mut self, destination: Destination, operation: Operation) -> (u64, Body) {
        self.requests += 1;
        let incarnation = Incarnation::new(1);
        let source = Source { cluster: cluster(), host: MAKER, incarnation, request: self.requests };
        let request = Request {
            source,
            destination,
            tag_kind: TagKind::Checksum,
            is_once: destination.command.is_once(),
            is_release: false,
            epoch: self.epoch,
            operation,
        };
        let mut effects = Vec::new();
        self.server.step(0, Input::Request(request), &mut NoLeases, &mut effects);
        match effects.last() {
            Some(super::super::Effect::Reply { reply, .. }) => (reply.epoch, reply.body),
            other => panic!("{other:?}"),
        }
    }

    fn create(&mut self, bytes: u64) -> Pointer {
        let destination = Pointer::to_host(cluster(), HOME).request(Command::Create, Arguments::NONE);
        match self.ask(destination, Operation::Create { bytes }) {
            (_, Body::Object { pointer, .. }) => pointer,
            other => panic!("{other:?}"),
        }
    }

    fn delete(&mut self, pointer: Pointer) {
        self.ask(pointer.request(Command::Delete, Arguments::NONE), Operation::Plain);
    }

    fn restored(table: &TablePages) -> MemoryServer {
        let (entries, makers) = table.objects();
        MemoryServer::restored(settings(), &entries, |page| makers[&page])
            .expect("a table page names whole objects only")
    }
}

/// The state of an heir that received only these table pages.
fn heir(table: &TablePages, heard: &[u64]) -> TablePages {
    let mut heir = TablePages::unknown(PAGES);
    for &number in heard {
        let page = heir.read(number, &table.bytes(number)).expect("it is one");
        heir.replace(number, &page);
    }
    heir
}

#[test]
fn objects_survive_in_the_table() {
    let mut served = Served::new();
    let first = served.create(5 * PAGE_BYTES + 7);
    let second = served.create(200 * PAGE_BYTES);
    served.create(1);
    served.delete(first);
    let table = TablePages::of(&served.server);
    let heard = heir(&table, &[0, 1, 2]);
    assert_eq!(heard, table);
    let restored = Served::restored(&heard);
    assert!(restored.objects().eq(served.server.objects()));
    assert_eq!(restored.object(second.page()).map(|object| object.maker), Some(MAKER));
    assert_eq!(restored.quota(MAKER), served.server.quota(MAKER));
    assert_eq!(restored.page(first.page()), served.server.page(first.page()), "its pointers stay stale");
}

#[test]
fn an_object_of_which_a_part_did_not_come_does_not_exist() {
    let mut served = Served::new();
    let before = TablePages::of(&served.server);
    let pointer = served.create(200 * PAGE_BYTES);
    let after = TablePages::of(&served.server);
    // It is made, and only one of its two table pages arrives.
    for number in [0, 1] {
        let mut heir = heir(&before, &[0, 1, 2]);
        heir.replace(number, &after.read(number, &after.bytes(number)).expect("it is one"));
        let restored = Served::restored(&heir);
        assert_eq!((restored.objects().count(), restored.statistics().pages_free), (0, PAGES));
        let given = restored.page(number * RECORDS).map(|entry| entry.generation);
        assert_ne!(given, Some(pointer.generation()), "what was given is not given again");
    }
    // It goes, and only one of its two table pages arrives.
    served.delete(pointer);
    let gone = TablePages::of(&served.server);
    for number in [0, 1] {
        let mut heir = heir(&after, &[0, 1, 2]);
        heir.replace(number, &gone.read(number, &gone.bytes(number)).expect("it is one"));
        assert_eq!(Served::restored(&heir).objects().count(), 0, "who deletes it heard nothing");
    }
}

#[test]
fn what_is_another_has_a_new_epoch_and_nothing_else_has() {
    let mut served = Served::new();
    let mut table = TablePages::of(&served.server);
    assert_eq!(table.changed(0, &served.server, 5), None);
    let pointer = served.create(2 * PAGE_BYTES);
    assert_eq!(table.changed(1, &served.server, 5), None);
    let page = table.changed(0, &served.server, 5).expect("an object was made");
    let mut backup = table.clone();
    assert_eq!(table.replace(0, &page), [(0, 5), (1, 5)]);
    let came = backup.read(0, &bytes_of(&page)).expect("it is one");
    assert_eq!(backup.replace(0, &came), [(0, 5), (1, 5)], "a backup hears the same");
    assert_eq!(backup.replace(0, &came), [], "once");
    served.delete(pointer);
    served.create(PAGE_BYTES);
    let page = table.changed(0, &served.server, 8).expect("one went and one came");
    assert_eq!(table.replace(0, &page), [(0, 8), (1, 8)]);
    assert_eq!(table.changed(0, &served.server, 9), None);
    served.server.step(0, Input::Guard { first_page: 0, pages: 1, is_guarded: true }, &mut NoLeases, &mut Vec::new());
    assert_eq!(table.changed(0, &served.server, 9), None, "who guards a page is nobody else's business");
}

#[test]
fn any_bytes_are_a_table_page_or_refused() {
    let mut served = Served::new();
    served.create(3 * PAGE_BYTES);
    let table = TablePages::of(&served.server);
    let bytes = table.bytes(0);
    let refused = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        table.read(0, &bytes).is_none()
    };
    assert!(refused(4, 2), "a guarded page");
    assert!(refused(26, 1) && refused(31, 1), "bytes that mean nothing");
    assert!(!refused(0, 77));
    assert_eq!(table.read(0, &bytes[..4095]), None);
    assert_eq!(table.read(0, &[]).map(|page| page.len()), Some(128), "nothing came: zeros");
    let last = table.bytes(2);
    assert_eq!(table.read(2, &last).map(|page| page.len()), Some(44), "300 pages end in the third");
    assert_eq!(table.read(2, &bytes), None, "pages that the range does not have");
    // Whatever the table says, an heir can make objects of it.
    let (mut random, mut read) = (Random::new(1), 0);
    for _ in 0..2000 {
        let mut bytes = table.bytes(0);
        for _ in 0..4 {
            let (record, at) = (random.index(8), random.one_of(&[0, 2, 4, 6, 16, 24]));
            bytes[record * 32 + at] = random.below(4) as u8;
        }
        if let Some(page) = table.read(0, &bytes) {
            read += 1;
            let mut heir = table.clone();
            heir.replace(0, &page);
            Served::restored(&heir);
        }
    }
    assert!(read > 100, "{read} of them could be one");
}

#[test]
fn a_part_has_the_objects_of_its_range_as_far_as_they_are_in_it() {
    let mut served = Served::new();
    let [before, middle, behind] = [10, 20, 270].map(|pages| served.create(pages * PAGE_BYTES - 5));
    served.delete(middle);
    let table = TablePages::of(&served.server);
    // Two pages of the first, what is free, and some of the last.
    let part = table.part(8..200);
    assert_eq!(part.pages(), 192);
    let of_part = Settings { memory_bytes: 192 * PAGE_BYTES, ..settings() };
    let (entries, makers) = part.objects();
    let server = MemoryServer::restored(of_part, &entries, |page| makers[&page]).expect("a table of whole objects");
    let objects: Vec<(u64, u64, u64)> =
        server.objects().map(|object| (object.first_page, object.pages, object.bytes)).collect();
    assert_eq!(objects, [(0, 2, 2 * PAGE_BYTES - 5), (22, 170, 170 * PAGE_BYTES)]);
    let generations: Vec<u16> = server.objects().map(|object| object.generation).collect();
    assert_eq!(generations, [before.generation(), behind.generation()]);
    for page in 0..192 {
        let (here, there) = (server.page(page), served.server.page(page + 8));
        let what = |entry: Option<PageEntry>| entry.map(|entry| (entry.generation, entry.laps, entry.valid_bytes));
        assert_eq!(what(here), what(there), "page {page}");
    }
    assert_eq!(TablePages::of(&server), part, "who has it writes the same");
    assert_eq!(table.part_to_be(8..200, &served.server, 99), part, "nothing is under way");
    served.delete(before);
    let to_be = table.part_to_be(8..200, &served.server, 99);
    assert_eq!((to_be.record(1).entry.valid_bytes, to_be.record(1).since, to_be.record(2).since), (0, 99, 0));
}

#[test]
fn objects_beside_each_other_stay_two_in_a_part() {
    let mut served = Served::new();
    for _ in 0..2 {
        served.create(4 * PAGE_BYTES);
    }
    let part = TablePages::of(&served.server).part(1..8);
    let begins: Vec<(u64, u64)> =
        (0..7).map(|page| (page, part.record(page).pages)).filter(|(_, pages)| *pages > 0).collect();
    assert_eq!(begins, [(0, 3), (3, 4)]);
}
