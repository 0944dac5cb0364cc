//! The switch as rules: its tables, and the order of their look-ups. Pure: must never send anything.
//!
//! Promises the steps of the contract (`Switch`), in its order. All tables always exist; rules exist only as far as they
//! are needed now ([`Shape`]), so that packets pay nothing for rules, groups, partitions, leases or prefixes that are not
//! in use.
//!
//! A packet's mark is the port through which it leaves. Registers do not outlast a rule.

use std::collections::BTreeSet;

use super::expressions::{Rule, clear_chain, counter};
use super::netlink::{Attributes, Changes, FLAG_CREATE, kind};
use crate::address::{PAGE_BITS, Page, PageRange, Prefix};
use crate::entries::CLONES_MAX;
use crate::layout;

pub(super) const TABLE: &str = "trellis";
/// The number of devices of a chain; the kernel supports twice as many.
const DEVICES_MAX: usize = 128;

/// Sets and maps. The first ones count the results of packets, by interface.
pub(super) const DELIVERED: &str = "delivered";
pub(super) const REDIRECTED: &str = "redirected";
pub(super) const NOT_ADDRESSED: &str = "not-addressed";
pub(super) const FORGED: &str = "forged";
pub(super) const NO_ROUTE: &str = "no-route";
pub(super) const DENIED: &str = "denied";
pub(super) const NO_PORT: &str = "no-port";
pub(super) const PARTITIONED: &str = "partitioned";
pub(super) const DROPPED: &str = "dropped";
pub(super) const TABLE_FULL: &str = "table-full";
/// Every set that counts by interface.
pub(super) const COUNTING: [&str; 10] =
    [DELIVERED, REDIRECTED, NOT_ADDRESSED, FORGED, NO_ROUTE, DENIED, NO_PORT, PARTITIONED, DROPPED, TABLE_FULL];
/// Port: hardware address and interface. It counts what is sent.
pub(super) const OUT: &str = "out";
/// Interface: port.
pub(super) const PORT_OF: &str = "port-of";
/// Port and its own interface.
pub(super) const SAME: &str = "same";
/// Port and itself.
pub(super) const EQUAL_PORTS: &str = "equal-ports";
/// Home and the interface of its host.
pub(super) const SPEAKERS: &str = "speakers";
/// Home and the interface of a member of its group.
pub(super) const MEMBERS: &str = "members";
/// Home and whether the address names a request: port. One map for pointers, one for the destinations of answers.
pub(super) const MEMORY: &str = "memory";
pub(super) const PLAIN: &str = "plain";
/// Homes that have longer prefixes.
pub(super) const HAS_LONGER: &str = "has-longer";
/// Homes that have page ranges.
pub(super) const HAS_PAGE_ROUTES: &str = "has-page-routes";
/// Page: port.
pub(super) const REDIRECTS: &str = "redirects";
/// Page and interface. It counts requests.
pub(super) const HOT: &str = "hot";
/// Client, home and class.
pub(super) const RULES: &str = "rules";
/// Interface: side; port: side; side and itself.
pub(super) const SIDE_OF_INTERFACE: &str = "side-of-interface";
pub(super) const SIDE_OF_PORT: &str = "side-of-port";
pub(super) const EQUAL_SIDES: &str = "equal-sides";
/// Classes of commands that have a page; commands that concern leases.
const PAGED: &str = "paged";
const LEASED: &str = "leased";

/// The group numbers of reports: answers of homes about leases, grants, what owners write back.
pub(super) const REPORT_ANSWERS: u16 = 0x7e10;
pub(super) const REPORT_GRANTS: u16 = 0x7e11;
pub(super) const REPORT_COMMITS: u16 = 0x7e12;
/// How much of a packet is reported: IPv6, a fragment's header, UDP, the datagram's header.
pub(super) const REPORTED_BYTES: u32 = 40 + 8 + 8 + layout::HEADER_BYTES as u32;

const SET_MAP: u32 = 0x8;
const SET_TIMEOUT: u32 = 0x10;
const SET_EVALUATED: u32 = 0x20;
/// The places of addresses in a packet.
pub(super) const SOURCE_AT: usize = 8;
pub(super) const DESTINATION_AT: usize = 24;
const PROTOCOL_IPV6: [u8; 2] = [0x86, 0xdd];
/// Home, and whether the address names a request.
const KIND_MASK: [u8; 4] = [0xff, 0xff, layout::INCARNATION, 0];
/// Home and page of what follows the first four bytes of an address.
const PAGE_MASK: [u8; 12] = [0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xf0, 0];
const CLASS_MASK: [u8; 1] = [0xf0];
/// The bits that the commands CLONE and INVALIDATED share, and no other command has.
const COPY_MASK: [u8; 1] = [!(layout::COMMAND_CLONE ^ layout::COMMAND_INVALIDATED)];
const COPY: [u8; 1] = [layout::COMMAND_CLONE & COPY_MASK[0]];

/// Which rules there must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// Lengths of prefixes longer than a home's.
    pub(super) lengths: BTreeSet<u8>,
    /// Orders of page ranges.
    pub(super) orders: BTreeSet<u8>,
    /// Whether requests need a rule of the operator.
    pub(super) has_rules: bool,
    /// The maximum number of copies of one packet.
    pub(super) copies: usize,
    pub(super) has_sides: bool,
    pub(super) drop_ppm: u32,
    /// For how long an UPDATE makes its sender the owner.
    pub(super) term_milliseconds: Option<u64>,
}

/// The map of prefixes of a length.
pub(super) fn longer(bits: u8) -> String {
    format!("longer-{bits}")
}

/// The map of page ranges of an order.
pub(super) fn ranges(order: u8) -> String {
    format!("ranges-{order}")
}

/// The map of the copies with this index.
pub(super) fn copies(index: usize) -> String {
    format!("copies-{index}")
}

/// Keys of tables.
pub(super) mod key {
    use super::*;

    pub(in crate::switches::nft) fn home(home: u16) -> [u8; 4] {
        let [high, low] = home.to_be_bytes();
        [high, low, 0, 0]
    }

    /// `names_request`: for the addresses that name requests; otherwise for pointers.
    pub(in crate::switches::nft) fn kind(home: u16, names_request: bool) -> [u8; 4] {
        let [high, low] = home.to_be_bytes();
        [high, low, if names_request { layout::INCARNATION } else { 0 }, 0]
    }

    pub(in crate::switches::nft) fn page(page: Page) -> [u8; 12] {
        let [high, low] = page.home.to_be_bytes();
        let offset = (page.number << layout::PAGE_SHIFT).to_be_bytes();
        let [_, _, a, b, c, d, e, f] = offset;
        [high, low, 0, 0, 0, 0, a, b, c, d, e, f]
    }

    /// The page at the beginning of a key.
    pub(in crate::switches::nft) fn page_of(key: &[u8]) -> Option<Page> {
        let key: &[u8; 12] = key.first_chunk()?;
        let offset = u64::from_be_bytes([0, 0, key[6], key[7], key[8], key[9], key[10], key[11]]);
        Some(Page { home: u16::from_be_bytes([key[0], key[1]]), number: offset >> layout::PAGE_SHIFT })
    }

    pub(in crate::switches::nft) fn range(range: PageRange) -> [u8; 12] {
        page(Page { home: range.home(), number: range.first() })
    }

    pub(in crate::switches::nft) fn prefix(prefix: Prefix) -> [u8; 16] {
        prefix.address().octets()
    }

    pub(in crate::switches::nft) fn number(number: u32) -> [u8; 4] {
        number.to_ne_bytes()
    }

    /// Concatenates keys.
    pub(in crate::switches::nft) fn join(keys: &[[u8; 4]]) -> Vec<u8> {
        keys.concat()
    }

    /// A class, as the first byte of a register.
    pub(in crate::switches::nft) fn class(class: u8) -> [u8; 4] {
        [class << 4, 0, 0, 0]
    }
}

/// A set or map to be created. `value_bytes`: `None` for a set.
struct Table<'a> {
    name: &'a str,
    key_bytes: usize,
    value_bytes: Option<usize>,
    flags: u32,
    size: u32,
}

/// How programs display keys and values: concatenated numbers of four bytes, or an address.
fn shown_as(bytes: usize) -> u32 {
    const NUMBER: u32 = 19;
    const ADDRESS: u32 = 8;
    if bytes == layout::ADDRESS_BYTES {
        ADDRESS
    } else {
        (1..bytes.div_ceil(4)).fold(NUMBER, |all, _| all << 6 | NUMBER)
    }
}

fn make(changes: &mut Changes, number: u32, table: &Table<'_>) {
    changes.message(kind::NEW_SET, FLAG_CREATE, |message| {
        message.text(2, table.name);
        message.number(3, table.flags | if table.value_bytes.is_some() { SET_MAP } else { 0 });
        message.number(4, shown_as(table.key_bytes));
        message.number(5, table.key_bytes as u32);
        if let Some(bytes) = table.value_bytes {
            message.number(6, shown_as(bytes));
            message.number(7, bytes as u32);
        }
        if table.size > 0 {
            message.nest(9, |description| description.number(1, table.size));
        }
        message.number(10, number);
    });
}

/// Creates every table, empty except for constant entries.
pub(super) fn make_tables(changes: &mut Changes, redirects_max: u32) {
    let table = |name, key_bytes, value_bytes, size| Table { name, key_bytes, value_bytes, flags: 0, size };
    let ports = layout::PORTS_MAX;
    let mut tables: Vec<Table<'_>> = COUNTING.into_iter().map(|name| table(name, 4, None, ports)).collect();
    tables.extend([
        table(OUT, 4, Some(12), ports),
        table(PORT_OF, 4, Some(4), ports),
        table(SAME, 8, None, ports),
        table(EQUAL_PORTS, 8, None, ports),
        // The kernel is faster with sets whose size is given.
        table(SPEAKERS, 8, None, layout::HOMES),
        table(MEMBERS, 8, None, 0),
        table(MEMORY, 4, Some(4), 2 * layout::HOMES),
        table(PLAIN, 4, Some(4), 2 * layout::HOMES),
        table(HAS_LONGER, 4, None, 0),
        table(HAS_PAGE_ROUTES, 4, None, 0),
        table(RULES, 12, None, 0),
        table(SIDE_OF_INTERFACE, 4, Some(4), ports),
        table(SIDE_OF_PORT, 4, Some(4), ports),
        table(EQUAL_SIDES, 8, None, 0),
        table(PAGED, 1, None, 0),
        table(LEASED, 1, None, 0),
        Table { flags: SET_TIMEOUT | SET_EVALUATED, ..table(REDIRECTS, 12, Some(4), redirects_max) },
        Table { flags: SET_EVALUATED, ..table(HOT, 16, None, layout::HOT_MAX) },
    ]);
    let names: Vec<String> = (0..CLONES_MAX).map(copies).collect();
    tables.extend(names.iter().map(|name| table(name, 8, Some(4), 0)));
    for (table, number) in tables.iter().zip(1..) {
        make(changes, number, table);
    }
    let paged = [layout::CLASS_READING, layout::CLASS_CHANGING, layout::CLASS_LEASES];
    changes.elements(kind::NEW_ELEMENT, PAGED, paged.map(|class| element(&[class << 4])));
    let leased = [layout::COMMAND_COMMIT, layout::COMMAND_UPDATE, layout::COMMAND_RENEW, layout::COMMAND_RELEASE];
    changes.elements(kind::NEW_ELEMENT, LEASED, leased.map(|command| element(&[command])));
}

/// Creates the map of prefixes of a length.
pub(super) fn make_longer(changes: &mut Changes, bits: u8) {
    let name = longer(bits);
    let table = Table { name: &name, key_bytes: layout::ADDRESS_BYTES, value_bytes: Some(8), flags: 0, size: 0 };
    make(changes, 1000 + u32::from(bits), &table);
}

/// Creates the map of page ranges of an order.
pub(super) fn make_runs(changes: &mut Changes, order: u8) {
    let name = ranges(order);
    let table = Table { name: &name, key_bytes: PAGE_MASK.len(), value_bytes: Some(4), flags: 0, size: 0 };
    make(changes, 2000 + u32::from(order), &table);
}

/// An element of a set.
pub(super) fn element(key: &[u8]) -> Attributes {
    let mut element = Attributes::default();
    element.nest(1, |inner| inner.bytes(1, key));
    element
}

/// An element of a set that counts.
pub(super) fn counting(key: &[u8]) -> Attributes {
    let mut element = element(key);
    element.nest(7, counter);
    element
}

/// An element of a map.
pub(super) fn pair(key: &[u8], value: &[u8]) -> Attributes {
    let mut element = element(key);
    element.nest(2, |inner| inner.bytes(1, value));
    element
}

/// An element of a map that is removed automatically.
pub(super) fn pair_for(key: &[u8], value: &[u8], milliseconds: Option<u64>) -> Attributes {
    let mut element = pair(key, value);
    if let Some(milliseconds) = milliseconds {
        element.long(4, milliseconds);
    }
    element
}

const SOURCE: &str = "source";
const SOURCE_LONGER: &str = "source-longer";
const SOURCE_PAGE_ROUTES: &str = "source-page-routes";
const ROUTE: &str = "route";
const REQUEST: &str = "request";
const REQUEST_PAGE_ROUTES: &str = "request-page-routes";
const ALLOWED: &str = "allowed";
const PAGE: &str = "page";
const OWNED: &str = "owned";
const LEASE: &str = "lease";
const LEAVE_ANSWER: &str = "leave-answer";
const LEAVE_HOME: &str = "leave-home";
const LEAVE_REDIRECTED: &str = "leave-redirected";
/// In an order in which each only goes to later ones.
const CHAINS: [&str; 13] = [
    SOURCE,
    SOURCE_LONGER,
    SOURCE_PAGE_ROUTES,
    ROUTE,
    REQUEST,
    REQUEST_PAGE_ROUTES,
    ALLOWED,
    PAGE,
    OWNED,
    LEASE,
    LEAVE_ANSWER,
    LEAVE_HOME,
    LEAVE_REDIRECTED,
];

/// Creates the chains, empty except for those at the devices.
pub(super) fn make_chains(changes: &mut Changes, devices: &[&str], scope: [u8; 4]) {
    const PRIORITY: u32 = 0;
    const INGRESS: u32 = 0;
    for chain in CHAINS {
        changes.message(kind::NEW_CHAIN, FLAG_CREATE, |message| message.text(3, chain));
    }
    for (devices, number) in devices.chunks(DEVICES_MAX).zip(0..) {
        let chain = format!("ports-{number}");
        changes.message(kind::NEW_CHAIN, FLAG_CREATE, |message| {
            message.text(3, &chain);
            message.nest(4, |hook| {
                hook.number(1, INGRESS);
                hook.number(2, PRIORITY);
                hook.nest(4, |list| devices.iter().for_each(|device| list.text(1, device)));
            });
            message.number(5, 0);
            message.text(7, "filter");
        });
        for rule in admit(scope) {
            rule.put(changes, &chain);
        }
    }
}

/// Replaces the present rules by those of a shape.
pub(super) fn shape(changes: &mut Changes, shape: &Shape) {
    for chain in CHAINS {
        clear_chain(changes, chain);
    }
    let all = [
        (SOURCE, source(shape)),
        (SOURCE_LONGER, source_longer(shape)),
        (SOURCE_PAGE_ROUTES, source_page_routes(shape)),
        (ROUTE, route(shape)),
        (REQUEST, request(shape)),
        (REQUEST_PAGE_ROUTES, request_page_routes(shape)),
        (ALLOWED, allowed()),
        (PAGE, page(shape)),
        (OWNED, owned(shape)),
        (LEASE, lease(shape)),
        (LEAVE_ANSWER, leave(shape, false, DELIVERED)),
        (LEAVE_HOME, leave(shape, true, DELIVERED)),
        (LEAVE_REDIRECTED, leave(shape, true, REDIRECTED)),
    ];
    for (chain, rules) in all {
        for rule in rules {
            rule.put(changes, chain);
        }
    }
}

/// Drops a packet and counts the reason.
fn refuse(why: &str) -> Rule {
    Rule::new().interface(0).among(why, 0).drop()
}

/// The home of an address and whether it names a request.
fn kind_of(rule: Rule, address_at: usize) -> Rule {
    rule.load(address_at + layout::ADDRESS_HOME_AT, 4, 0).mask(0, &KIND_MASK)
}

/// The page of an address, in three registers.
fn page_of(rule: Rule, address_at: usize) -> Rule {
    rule.load(address_at + layout::ADDRESS_HOME_AT, PAGE_MASK.len(), 0).mask(0, &PAGE_MASK)
}

/// The command of a request.
fn command(rule: Rule, to: u32) -> Rule {
    rule.load(DESTINATION_AT + layout::ADDRESS_COMMAND_AT, 1, to)
}

fn mask_of(bits: u8) -> [u8; 16] {
    (u128::MAX << (128 - u32::from(bits))).to_be_bytes()
}

/// The entry of a prefix of this length for an address: port and whether it is memory, in two registers.
fn longer_of(address_at: usize, bits: u8) -> Rule {
    let rule = Rule::new().load(address_at, layout::ADDRESS_BYTES, 0);
    let rule = if bits < 128 { rule.mask(0, &mask_of(bits)) } else { rule };
    rule.find(&longer(bits), 0, 4)
}

/// The port of the page range of this order that contains the page of an address.
fn run_of(address_at: usize, order: u8) -> Rule {
    let rule = Rule::new().load(address_at + layout::ADDRESS_HOME_AT, PAGE_MASK.len(), 0);
    rule.mask(0, &range_mask(order)).find(&ranges(order), 0, 3)
}

/// The mask of the home and of the page bits that are common to a page range of this order.
fn range_mask(order: u8) -> [u8; 12] {
    key::page(Page { home: u16::MAX, number: (1 << PAGE_BITS) - (1 << order) })
}

fn admit(scope: [u8; 4]) -> [Rule; 2] {
    let rule = Rule::new().protocol(0).equals(0, &PROTOCOL_IPV6);
    let rule = rule.load(SOURCE_AT, 4, 0).equals(0, &scope).load(DESTINATION_AT, 4, 0).equals(0, &scope);
    [rule.goto(SOURCE), refuse(NOT_ADDRESSED)]
}

fn source(shape: &Shape) -> Vec<Rule> {
    let home = || Rule::new().load(SOURCE_AT + layout::ADDRESS_HOME_AT, 2, 0);
    let is_pointer = || kind_of(Rule::new(), SOURCE_AT).find(MEMORY, 0, 1);
    let mut rules = vec![home().interface(1).among(SPEAKERS, 0).goto(ROUTE)];
    if !shape.lengths.is_empty() {
        rules.push(home().among(HAS_LONGER, 0).jump(SOURCE_LONGER));
    }
    if !shape.orders.is_empty() {
        let has_page_routes = is_pointer().load(SOURCE_AT + layout::ADDRESS_HOME_AT, 2, 0).among(HAS_PAGE_ROUTES, 0);
        rules.push(has_page_routes.jump(SOURCE_PAGE_ROUTES));
    }
    rules.push(page_of(is_pointer(), SOURCE_AT).find(REDIRECTS, 0, 3).interface(4).among(SAME, 3).goto(ROUTE));
    if shape.copies > 0 {
        let member = is_pointer().load(SOURCE_AT + layout::ADDRESS_HOME_AT, 2, 0).interface(1).among(MEMBERS, 0);
        rules.push(member.goto(ROUTE));
    }
    rules.push(refuse(FORGED));
    rules
}

/// The longest prefix decides, whichever port it gives.
fn source_longer(shape: &Shape) -> Vec<Rule> {
    let mut rules = Vec::new();
    for &bits in shape.lengths.iter().rev() {
        rules.push(longer_of(SOURCE_AT, bits).interface(5).among(SAME, 4).goto(ROUTE));
        rules.push(longer_of(SOURCE_AT, bits).come_back());
    }
    rules
}

/// The smallest page range decides, whichever port it gives.
fn source_page_routes(shape: &Shape) -> Vec<Rule> {
    let mut rules = Vec::new();
    for &order in &shape.orders {
        rules.push(run_of(SOURCE_AT, order).interface(4).among(SAME, 3).goto(ROUTE));
        rules.push(run_of(SOURCE_AT, order).come_back());
    }
    rules
}

fn route(shape: &Shape) -> Vec<Rule> {
    let mut rules = Vec::new();
    if shape.term_milliseconds.is_some() {
        let answered = Rule::new().load(SOURCE_AT + layout::ADDRESS_COMMAND_AT, 1, 0).among(LEASED, 0);
        rules.push(answered.tell(REPORT_ANSWERS, REPORTED_BYTES));
    }
    for &bits in shape.lengths.iter().rev() {
        let pointer = longer_of(DESTINATION_AT, bits).equals(5, &key::number(1));
        let pointer = command(pointer, 6).mask(6, &[layout::INCARNATION]).equals(6, &[0]);
        rules.push(pointer.set_mark(4).goto(REQUEST));
        rules.push(longer_of(DESTINATION_AT, bits).set_mark(4).goto(LEAVE_ANSWER));
    }
    rules.push(kind_of(Rule::new(), DESTINATION_AT).find(MEMORY, 0, 1).set_mark(1).goto(REQUEST));
    rules.push(kind_of(Rule::new(), DESTINATION_AT).find(PLAIN, 0, 1).set_mark(1).goto(LEAVE_ANSWER));
    rules.push(refuse(NO_ROUTE));
    rules
}

fn request(shape: &Shape) -> Vec<Rule> {
    let mut rules = Vec::new();
    if !shape.orders.is_empty() {
        let has_page_routes =
            || Rule::new().load(DESTINATION_AT + layout::ADDRESS_HOME_AT, 2, 0).among(HAS_PAGE_ROUTES, 0);
        rules.push(command(has_page_routes(), 1).mask(1, &CLASS_MASK).among(PAGED, 1).jump(REQUEST_PAGE_ROUTES));
        rules.push(command(has_page_routes(), 1).mask(1, &COPY_MASK).equals(1, &COPY).jump(REQUEST_PAGE_ROUTES));
    }
    rules.extend(if shape.has_rules { operators_rules() } else { allowed() });
    rules
}

/// A request about a page in page ranges goes to the port of the smallest one.
fn request_page_routes(shape: &Shape) -> Vec<Rule> {
    let marks = |&order| run_of(DESTINATION_AT, order).set_mark(3).come_back();
    shape.orders.iter().map(marks).collect()
}

fn operators_rules() -> Vec<Rule> {
    let client = |rule: Rule| rule.load(SOURCE_AT + layout::ADDRESS_HOME_AT, 2, 0);
    let home = |rule: Rule| rule.load(DESTINATION_AT + layout::ADDRESS_HOME_AT, 2, 1);
    let any = |rule: Rule, register| rule.value(register, &key::home(0));
    let whom = [
        home(client(Rule::new())),
        any(client(Rule::new()), 1),
        home(any(Rule::new(), 0)),
        any(any(Rule::new(), 0), 1),
    ];
    let may = |rule: Rule| command(rule, 2).mask(2, &CLASS_MASK).among(RULES, 0).goto(ALLOWED);
    whom.into_iter().map(may).chain([refuse(DENIED)]).collect()
}

fn allowed() -> Vec<Rule> {
    let paged = command(Rule::new(), 0).mask(0, &CLASS_MASK).among(PAGED, 0).goto(PAGE);
    vec![paged, Rule::new().goto(LEAVE_HOME)]
}

fn page(shape: &Shape) -> Vec<Rule> {
    let direct = Rule::new().load(DESTINATION_AT + layout::ADDRESS_ARGUMENTS_AT, 1, 0);
    let direct = direct.mask(0, &[layout::ARGUMENT_DIRECT]).differs(0, &[0]);
    let mut rules = vec![
        page_of(Rule::new(), DESTINATION_AT).interface(3).count(HOT, 0),
        direct.goto(LEAVE_HOME),
        page_of(Rule::new(), DESTINATION_AT).find(REDIRECTS, 0, 3).goto(OWNED),
    ];
    if shape.term_milliseconds.is_some() {
        rules.push(command(Rule::new(), 0).equals(0, &[layout::COMMAND_UPDATE]).goto(LEASE));
    }
    rules.push(Rule::new().goto(LEAVE_HOME));
    rules
}

/// Continues if the page is redirected to the very port from which the packet came.
fn is_owner(rule: Rule) -> Rule {
    page_of(rule, DESTINATION_AT).find(REDIRECTS, 0, 3).interface(4).among(SAME, 3)
}

/// Other hosts' requests go to the owner; the owner's own go to the home.
fn owned(shape: &Shape) -> Vec<Rule> {
    let mut rules = Vec::new();
    if shape.term_milliseconds.is_some() {
        let commit = command(Rule::new(), 0).equals(0, &[layout::COMMAND_COMMIT]);
        rules.push(is_owner(commit).tell(REPORT_COMMITS, REPORTED_BYTES));
    }
    rules.push(is_owner(Rule::new()).goto(LEAVE_HOME));
    rules.push(to_owner());
    // It ended at this very moment.
    rules.push(Rule::new().goto(LEAVE_HOME));
    rules
}

fn to_owner() -> Rule {
    page_of(Rule::new(), DESTINATION_AT).find(REDIRECTS, 0, 3).set_mark(3).goto(LEAVE_REDIRECTED)
}

/// The first UPDATE of a page makes its sender the owner: of two at the same time, one adds the redirect, and both see
/// whose it is.
fn lease(shape: &Shape) -> Vec<Rule> {
    let Some(term) = shape.term_milliseconds else { return Vec::new() };
    let grant = page_of(Rule::new(), DESTINATION_AT).interface(3).find(PORT_OF, 3, 3).add(REDIRECTS, 0, 3, term);
    vec![
        grant,
        is_owner(Rule::new()).tell(REPORT_GRANTS, REPORTED_BYTES).goto(LEAVE_HOME),
        to_owner(),
        Rule::new().interface(0).among(TABLE_FULL, 0).goto(LEAVE_HOME),
    ]
}

/// The last steps before a packet leaves through the port with which it is marked.
fn leave(shape: &Shape, is_copied: bool, counted: &str) -> Vec<Rule> {
    let mut rules = Vec::new();
    if shape.drop_ppm > 0 {
        let unlucky = Rule::new().mark(0).mark(1).among(EQUAL_PORTS, 0).now_and_then(shape.drop_ppm, 0);
        rules.push(unlucky.interface(0).among(DROPPED, 0).drop());
    }
    if is_copied {
        rules.extend((0..shape.copies).map(|index| copy(shape, index)));
    }
    if shape.has_sides {
        let apart = Rule::new().interface(0).find(SIDE_OF_INTERFACE, 0, 0).mark(1).find(SIDE_OF_PORT, 1, 1);
        rules.push(apart.not_among(EQUAL_SIDES, 0).interface(0).among(PARTITIONED, 0).drop());
    }
    let out = Rule::new().mark(0).find(OUT, 0, 4).interface(0).among(counted, 0);
    rules.push(out.set_destination(4).forward(6));
    rules.push(refuse(NO_PORT));
    rules
}

/// A copy for a member of the group that is reachable from here and does not get the packet itself.
fn copy(shape: &Shape, index: usize) -> Rule {
    let rule = Rule::new().load(DESTINATION_AT + layout::ADDRESS_HOME_AT, 2, 0);
    let rule = command(rule, 1).mask(1, &CLASS_MASK).find(&copies(index), 0, 2);
    let rule = rule.mark(3).not_among(EQUAL_PORTS, 2);
    let rule = match shape.has_sides {
        true => {
            let sides = rule.interface(4).find(SIDE_OF_INTERFACE, 4, 4).find(SIDE_OF_PORT, 2, 5);
            sides.among(EQUAL_SIDES, 4)
        }
        false => rule,
    };
    rule.find(OUT, 2, 4).set_destination(4).copy(6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Cluster;

    #[test]
    fn keys_are_what_the_masks_leave_of_an_address() {
        let address = Cluster::new(1).address(0x1001, layout::COMMAND_UPDATE, 0x1c, 0x0007_0123_4567_89ab);
        let bytes = address.octets();
        let masked = |mask: &[u8]| -> Vec<u8> {
            bytes[layout::ADDRESS_HOME_AT..].iter().zip(mask).map(|(byte, mask)| byte & mask).collect()
        };
        assert_eq!(masked(&PAGE_MASK), key::page(Page::of(address)));
        assert_eq!(key::page_of(&key::page(Page::of(address))), Some(Page::of(address)));
        assert_eq!(key::page_of(&[0; 11]), None);
        let range = PageRange::new(0x1001, 0x0_1234_5670, 4).unwrap();
        assert_eq!(masked(&range_mask(4)), key::range(range));
        assert_eq!((range_mask(0), &range_mask(PAGE_BITS)[2..]), (PAGE_MASK, [0; 10].as_slice()));
        assert_eq!(masked(&KIND_MASK), key::kind(0x1001, false));
        let request = Cluster::new(1).address(0x1001, 0xb0, 0x31, 7).octets();
        let masked: Vec<u8> = request[4..].iter().zip(&KIND_MASK).map(|(byte, mask)| byte & mask).collect();
        assert_eq!(masked, key::kind(0x1001, true));
        assert_eq!(mask_of(52)[..8], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf0, 0]);
    }

    #[test]
    fn rules_are_there_only_when_they_are_needed() {
        let count = |wanted: &Shape| {
            let mut changes = Changes::new(TABLE);
            shape(&mut changes, wanted);
            changes.len()
        };
        let plain = count(&Shape::default());
        assert!(count(&Shape { lengths: [52, 56].into(), ..Shape::default() }) > plain + 8);
        assert_eq!(count(&Shape { orders: [0, 9].into(), ..Shape::default() }), plain + 3 + 2 * 3);
        assert_eq!(count(&Shape { drop_ppm: 1, ..Shape::default() }), plain + 3);
        assert_eq!(count(&Shape { has_sides: true, ..Shape::default() }), plain + 3);
        assert!(count(&Shape { term_milliseconds: Some(1), ..Shape::default() }) > plain);
    }
}
