//! The switch as flows: its tables, and their flows for each entry of the switch. Pure: must never send anything.
//!
//! Promises the steps of the contract (`Switch`), in its order; a packet passes through the tables in ascending order.
//! Refused packets end at a separate flow for each port, so that the flows' counts are the counters. A packet's metadata
//! contains the port through which it leaves, the side of a partition from which it comes, and two flags.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::codec::{
    Action, Body, Bucket, Field, FlowCommand, FlowMod, GroupCommand, GroupMod, Instruction, Match, TELL_REMOVED, WHOLE,
    port,
};
use crate::address::{Classes, Cluster, HOME_BITS, PAGE_BITS, Page, PageRange, Prefix};
use crate::entries::Route;
use crate::layout;

/// The tables.
const ADMISSION: u8 = 0;
const SOURCE: u8 = 1;
const SOURCE_PAGE_ROUTES: u8 = 2;
const BEHALF: u8 = 3;
const ROUTE: u8 = 4;
const ANSWERS: u8 = 5;
const PAGE_ROUTES: u8 = 6;
const RULES: u8 = 7;
const CLASS: u8 = 8;
const HOT: u8 = 9;
const PAGE: u8 = 10;
const PLUGGED: u8 = 11;
const LOSS: u8 = 12;
const COPIES: u8 = 13;
const OWN_COPY: u8 = 14;
const SIDES: u8 = 15;
const COUNT: u8 = 16;
const OUT: u8 = 17;
/// A table that no packet reaches.
const SPARE: u8 = 18;
/// The required number of tables.
pub(super) const TABLES: u8 = SPARE + 1;

/// Metadata: the port through which the packet leaves.
const OUT_MASK: u64 = 0xffff;
/// The side of the port at which it arrived.
const SIDE_SHIFT: u32 = 16;
const SIDE_MASK: u64 = 0xffff_ffff << SIDE_SHIFT;
/// Whether its sender is the home of its source pointer.
const AS_HOME: u64 = 1 << 48;
/// Whether a redirect decided.
const REDIRECTED: u64 = 1 << 49;

/// Ethernet's number of IPv6.
const IPV6: u128 = 0x86dd;
/// The place of an address's command, and of its arguments.
const COMMAND_SHIFT: u32 = 128 - 8 * (layout::ADDRESS_COMMAND_AT as u32 + 1);
const ARGUMENTS_SHIFT: u32 = 128 - 8 * (layout::ADDRESS_ARGUMENTS_AT as u32 + 1);
const HOME_SHIFT: u32 = 128 - HOME_BITS as u32;
const HOME_MASK: u128 = u128::MAX << HOME_SHIFT;
const SCOPE_MASK: u128 = u128::MAX << 96;
const INCARNATION: u128 = (layout::INCARNATION as u128) << COMMAND_SHIFT;
const DIRECT: u128 = (layout::ARGUMENT_DIRECT as u128) << ARGUMENTS_SHIFT;
const COMMAND_MASK: u128 = 0xff << COMMAND_SHIFT;
const CLASS_MASK: u128 = 0xf0 << COMMAND_SHIFT;
/// Values and masks that exactly those commands share that are about a page in a page range.
const FOLLOWING: [(u128, u128); 3] = [
    both(layout::CLASS_READING << 4, layout::CLASS_CHANGING << 4, CLASS_MASK),
    both(layout::CLASS_LEASES << 4, layout::CLASS_LEASES << 4, CLASS_MASK),
    both(layout::COMMAND_CLONE, layout::COMMAND_INVALIDATED, COMMAND_MASK),
];
const PAGE_MASK: u128 = ((1 << layout::OFFSET_BITS) - 1) & !((1 << layout::PAGE_SHIFT) - 1);
/// The classes of commands; the rest are addresses of requests.
const CLASSES: u16 = 0xff;

/// Value and mask of what two commands, or classes of them, have in common; they differ in at most one bit.
const fn both(one: u8, other: u8, mask: u128) -> (u128, u128) {
    let mask = mask & !(((one ^ other) as u128) << COMMAND_SHIFT);
    ((one as u128) << COMMAND_SHIFT & mask, mask)
}

/// How much of a packet is sent to the controller if its header matters: Ethernet, IPv6, a fragment's header, UDP, the
/// datagram's header.
const OBSERVED_BYTES: u16 = 128;
/// How much if only its addresses matter.
const ADDRESSES_BYTES: u16 = 64;

/// The meaning of a flow's cookie is in its highest byte.
const MARK_SHIFT: u32 = 56;
/// The bits that give the meaning of a cookie.
pub(super) const MARK_MASK: u64 = 0xff << MARK_SHIFT;
/// The flow counts for a counter of a port.
pub(super) const MARK_COUNTER: u64 = 1 << MARK_SHIFT;
/// The flow counts for a page.
pub(super) const MARK_HOT: u64 = 2 << MARK_SHIFT;
/// The flow reports pages for which no flow counts.
const MARK_HOT_MISS: u64 = 3 << MARK_SHIFT;
/// The flow passes requests for leases to the controller.
const MARK_LEASE: u64 = 4 << MARK_SHIFT;
/// The flow reports answers of homes and requests of owners.
const MARK_OBSERVED: u64 = 5 << MARK_SHIFT;
/// The flow belongs to a redirect.
const MARK_REDIRECT: u64 = 6 << MARK_SHIFT;
/// The connection in which a flow was last sent: a flow of an earlier connection that was not sent again is stale.
const CONNECTION_SHIFT: u32 = 52;
/// The number of distinguishable connections.
const CONNECTIONS: u64 = 16;

/// Why a packet was sent to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// It requests a lease, and waits here.
    Lease,
    /// It was forwarded; its content matters.
    Observed,
    /// It was forwarded; no flow counts for its page yet.
    HotMiss,
}

impl Reason {
    pub(super) fn of(cookie: u64) -> Option<Reason> {
        match cookie & MARK_MASK {
            MARK_LEASE => Some(Reason::Lease),
            MARK_OBSERVED => Some(Reason::Observed),
            MARK_HOT_MISS => Some(Reason::HotMiss),
            _ => None,
        }
    }
}

/// The counter and the port of a cookie.
pub(super) fn counter_of(cookie: u64) -> (usize, u16) {
    ((cookie >> 16 & 0xff) as usize, cookie as u16)
}

/// The page of a cookie.
pub(super) fn page_of(cookie: u64) -> Page {
    let number = cookie & ((1 << PAGE_BITS) - 1);
    Page { home: (cookie >> PAGE_BITS) as u16, number }
}

fn page_mark(kind: u64, page: Page) -> u64 {
    kind | u64::from(page.home) << PAGE_BITS | page.number
}

/// The port of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plug {
    /// The switch's number of it.
    pub(super) number: u32,
    pub(super) mac: [u8; 6],
    pub(super) side: u32,
}

/// All ports, by Trellis' numbers.
pub(super) type Plugs = BTreeMap<u16, Plug>;

/// A flow to be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    table: u8,
    priority: u16,
    cookie: u64,
    matching: Match,
    instructions: Vec<Instruction>,
    hard_timeout: u16,
}

impl Flow {
    fn new(table: u8, priority: u16, matching: Match) -> Flow {
        Flow { table, priority, cookie: 0, matching, instructions: Vec::new(), hard_timeout: 0 }
    }

    fn marked(mut self, cookie: u64) -> Flow {
        self.cookie = cookie;
        self
    }

    fn goes_to(mut self, table: u8) -> Flow {
        self.instructions.push(Instruction::GotoTable(table));
        self
    }

    fn notes(mut self, value: u64, mask: u64) -> Flow {
        self.instructions.push(Instruction::WriteMetadata { value, mask });
        self
    }

    fn acts(mut self, actions: Vec<Action>) -> Flow {
        if !actions.is_empty() {
            self.instructions.push(Instruction::ApplyActions(actions));
        }
        self
    }

    fn tells(self, bytes_max: u16) -> Flow {
        self.acts(vec![Action::Output { port: port::CONTROLLER, bytes_max }])
    }

    /// The message that adds it.
    pub(super) fn add(self, connection_number: u64) -> Body {
        Body::FlowMod(FlowMod {
            cookie: self.cookie | (connection_number % CONNECTIONS) << CONNECTION_SHIFT,
            hard_timeout: self.hard_timeout,
            priority: self.priority,
            flags: if self.hard_timeout == 0 { 0 } else { TELL_REMOVED },
            matching: self.matching,
            instructions: self.instructions,
            ..FlowMod::new(FlowCommand::Add, self.table)
        })
    }

    /// The message that deletes it.
    pub(super) fn delete(self) -> Body {
        Body::FlowMod(FlowMod {
            priority: self.priority,
            matching: self.matching,
            ..FlowMod::new(FlowCommand::DeleteStrict, self.table)
        })
    }
}

/// Groups to be set.
pub(super) type Groups = BTreeMap<u32, Vec<Bucket>>;

/// The flows and groups for one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) flows: Vec<Flow>,
    pub(super) groups: Groups,
}

impl Wanted {
    /// The same flows, marked so that each is sent again.
    pub(super) fn outdated(mut self) -> Wanted {
        self.flows.iter_mut().for_each(|flow| flow.cookie = u64::MAX);
        self
    }
}

/// The messages that turn `old` into `new`: first additions, then deletions.
pub(super) fn difference(old: &Wanted, new: &Wanted, connection_number: u64) -> Vec<Body> {
    let mut bodies = Vec::new();
    let change = |command, group, buckets| Body::GroupMod(GroupMod { command, kind: 0, group, buckets });
    for (&group, buckets) in new.groups.iter().filter(|(group, buckets)| old.groups.get(group) != Some(buckets)) {
        // A group may remain from an earlier connection: then it cannot be added, which does not matter, and is changed
        // instead.
        bodies.push(change(GroupCommand::Add, group, buckets.clone()));
        bodies.push(change(GroupCommand::Modify, group, buckets.clone()));
    }
    let place = |flow: &Flow| (flow.table, flow.priority, flow.matching.clone());
    let known: HashMap<_, &Flow> = old.flows.iter().map(|flow| (place(flow), flow)).collect();
    let fresh: HashMap<_, &Flow> = new.flows.iter().map(|flow| (place(flow), flow)).collect();
    debug_assert_eq!(fresh.len(), new.flows.len(), "two flows at one place");
    let changed = new.flows.iter().filter(|flow| known.get(&place(flow)) != Some(flow));
    bodies.extend(changed.map(|flow| flow.clone().add(connection_number)));
    bodies.extend(old.flows.iter().filter(|flow| !fresh.contains_key(&place(flow))).cloned().map(Flow::delete));
    let gone = old.groups.keys().filter(|group| !new.groups.contains_key(group));
    bodies.extend(gone.map(|&group| change(GroupCommand::Delete, group, Vec::new())));
    bodies
}

fn at(plug: &Plug) -> Match {
    Match::any().with(Field::InPort, u128::from(plug.number))
}

fn ipv6(matching: Match) -> Match {
    matching.with(Field::EthType, IPV6)
}

fn noted(matching: Match, value: u64, mask: u64) -> Match {
    matching.with_masked(Field::Metadata, value.into(), mask.into())
}

fn bits(prefix: Prefix) -> (u128, u128) {
    (prefix.address().to_bits(), u128::MAX << (128 - u32::from(prefix.bits())))
}

/// The bits of a host's address, and the mask that makes them a home's.
fn home(cluster: Cluster, host: u16) -> u128 {
    cluster.address(host, 0, 0, 0).to_bits()
}

fn hand_over(plug: &Plug, to: u32) -> Vec<Action> {
    let mac = plug.mac.iter().fold(0, |mac, &byte| mac << 8 | u128::from(byte));
    vec![Action::SetField(super::codec::Oxm::exact(Field::EthDst, mac)), Action::output(to)]
}

/// The actions for a packet that leaves through a port and arrived at another.
pub(super) fn out_actions(plug: &Plug, in_port: u32) -> Vec<Action> {
    hand_over(plug, if plug.number == in_port { port::IN_PORT } else { plug.number })
}

/// Everything that depends only on ports: admission, sides, counting.
pub(super) fn frame(cluster: Cluster, plugs: &Plugs) -> Wanted {
    let mut flows = vec![
        Flow::new(SOURCE, 0, Match::any()).goes_to(SOURCE_PAGE_ROUTES),
        Flow::new(SOURCE_PAGE_ROUTES, 0, Match::any()).goes_to(BEHALF),
        Flow::new(PAGE_ROUTES, 0, Match::any()).goes_to(RULES),
        Flow::new(ANSWERS, 0, Match::any()).goes_to(PLUGGED),
        Flow::new(CLASS, 0, Match::any()).goes_to(PLUGGED),
        Flow::new(HOT, 0, Match::any()).goes_to(PAGE),
        Flow::new(PAGE, 40, ipv6(Match::any()).with_masked(Field::Ipv6Dst, DIRECT, DIRECT)).goes_to(PLUGGED),
        Flow::new(PAGE, 0, Match::any()).goes_to(PLUGGED),
        Flow::new(COPIES, 0, Match::any()).goes_to(OWN_COPY),
        Flow::new(OWN_COPY, 0, Match::any()).goes_to(SIDES),
    ];
    for class in [layout::CLASS_READING, layout::CLASS_CHANGING, layout::CLASS_LEASES] {
        let class = u128::from(class << 4) << COMMAND_SHIFT;
        flows
            .push(Flow::new(CLASS, 10, ipv6(Match::any()).with_masked(Field::Ipv6Dst, class, CLASS_MASK)).goes_to(HOT));
    }
    let scope = home(cluster, 0);
    for (&number, plug) in plugs {
        let counts = |table, counter: usize| {
            Flow::new(table, 1, at(plug)).marked(MARK_COUNTER | (counter as u64) << 16 | u64::from(number))
        };
        let member = ipv6(at(plug)).with_masked(Field::Ipv6Src, scope, SCOPE_MASK);
        let member = member.with_masked(Field::Ipv6Dst, scope, SCOPE_MASK);
        let side = u64::from(plug.side) << SIDE_SHIFT;
        flows.push(Flow::new(ADMISSION, 10, member).notes(side, SIDE_MASK).goes_to(SOURCE));
        flows.push(counts(ADMISSION, layout::COUNT_NOT_ADDRESSED));
        flows.push(counts(BEHALF, layout::COUNT_FORGED));
        flows.push(counts(ROUTE, layout::COUNT_NO_ROUTE));
        flows.push(counts(RULES, layout::COUNT_DENIED));
        flows.push(counts(PLUGGED, layout::COUNT_NO_PORT));
        flows.push(counts(LOSS, layout::COUNT_DROPPED));
        flows.push(counts(SIDES, layout::COUNT_PARTITIONED));
        flows.push(counts(COUNT, layout::COUNT_DELIVERED).goes_to(OUT));
        let mut redirected = counts(COUNT, layout::COUNT_REDIRECTED).goes_to(OUT);
        (redirected.priority, redirected.matching) = (10, noted(redirected.matching, REDIRECTED, REDIRECTED));
        flows.push(redirected);
        let out = u64::from(number);
        flows.push(Flow::new(PLUGGED, 10, noted(Match::any(), out, OUT_MASK)).goes_to(LOSS));
        flows.push(Flow::new(SIDES, 10, noted(Match::any(), out | side, OUT_MASK | SIDE_MASK)).goes_to(COUNT));
        flows.push(Flow::new(OUT, 10, noted(at(plug), out, OUT_MASK)).acts(hand_over(plug, port::IN_PORT)));
        flows.push(Flow::new(OUT, 1, noted(Match::any(), out, OUT_MASK)).acts(hand_over(plug, plug.number)));
    }
    Wanted { flows, groups: Groups::new() }
}

/// The state of a home.
pub(super) struct HomeView<'a> {
    pub(super) number: u16,
    /// Its prefixes, of 48 bits and more.
    pub(super) routes: Vec<(Prefix, Route)>,
    /// The copied classes, and the ports of the copies.
    pub(super) group: Option<(Classes, &'a [u16])>,
}

impl HomeView<'_> {
    /// Whether the whole home is memory.
    fn is_memory(&self) -> bool {
        self.routes.iter().any(|(prefix, route)| prefix.bits() == HOME_BITS && route.is_memory)
    }
}

/// The permitted sources of a home, the destinations of its prefixes, and its copies.
pub(super) fn of_home(cluster: Cluster, plugs: &Plugs, view: &HomeView<'_>) -> Wanted {
    let mut wanted = Wanted::default();
    for &(prefix, route) in &view.routes {
        speakers(&mut wanted.flows, plugs, prefix, route);
        leads(&mut wanted.flows, prefix, route);
    }
    // Only requests to memory can be copied.
    if let Some((classes, ports)) = view.group.filter(|_| view.is_memory()) {
        let members: Vec<(u16, &Plug)> = ports
            .iter()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .filter_map(|port| Some((*port, plugs.get(port)?)))
            .collect();
        let address = home(cluster, view.number);
        for (_, plug) in &members {
            let source = ipv6(at(plug)).with_masked(Field::Ipv6Src, address, HOME_MASK | INCARNATION);
            wanted.flows.push(Flow::new(BEHALF, 10, source).goes_to(ROUTE));
        }
        copies(&mut wanted, view.number, address, classes, &members);
    }
    wanted
}

/// Twice the length of a prefix, so that there is room between two lengths.
fn rank(prefix: Prefix) -> u16 {
    2 * u16::from(prefix.bits())
}

fn speakers(flows: &mut Vec<Flow>, plugs: &Plugs, prefix: Prefix, route: Route) {
    let (address, mask) = bits(prefix);
    let is_whole = prefix.bits() == HOME_BITS;
    if let Some(plug) = plugs.get(&route.port) {
        // The host of the whole home may always use its addresses; of longer prefixes, the longest decides.
        let priority = if is_whole { 1_000 } else { rank(prefix) + 1 };
        let matching = ipv6(at(plug)).with_masked(Field::Ipv6Src, address, mask);
        let as_home = if route.is_memory { AS_HOME } else { 0 };
        flows.push(Flow::new(SOURCE, priority, matching).notes(as_home, AS_HOME).goes_to(ROUTE));
    }
    if !is_whole {
        let matching = ipv6(Match::any()).with_masked(Field::Ipv6Src, address, mask);
        flows.push(Flow::new(SOURCE, rank(prefix), matching).goes_to(SOURCE_PAGE_ROUTES));
    }
}

fn leads(flows: &mut Vec<Flow>, prefix: Prefix, route: Route) {
    let (address, mask) = bits(prefix);
    let out = u64::from(route.port);
    let to = |priority, address, mask, table| {
        let matching = ipv6(Match::any()).with_masked(Field::Ipv6Dst, address, mask);
        Flow::new(ROUTE, priority, matching).notes(out, OUT_MASK).goes_to(table)
    };
    // Longer prefixes determine themselves whether their addresses name requests.
    let names_requests = !route.is_memory || mask & INCARNATION != 0 && address & INCARNATION != 0;
    if names_requests {
        flows.push(to(rank(prefix), address, mask, ANSWERS));
    } else {
        flows.push(to(rank(prefix) + 1, address, mask | INCARNATION, PAGE_ROUTES));
        if mask & INCARNATION == 0 {
            flows.push(to(rank(prefix), address, mask, ANSWERS));
        }
    }
}

/// The destination of a page range's pages, and the permitted sources for them: three flows and two. `is_memory`: whether
/// the whole home is.
pub(super) fn of_range(cluster: Cluster, plugs: &Plugs, range: PageRange, port: u16, is_memory: bool) -> Wanted {
    let (value, mask) = addresses_of_range(cluster, range);
    // Twice, so that there is room between two orders; smaller page ranges take precedence.
    let rank = 2 * u16::from(1 + PAGE_BITS - range.order());
    let leads = |(command, command_mask): (u128, u128)| {
        let matching = ipv6(Match::any()).with_masked(Field::Ipv6Dst, value | command, mask | command_mask);
        Flow::new(PAGE_ROUTES, rank, matching).notes(u64::from(port), OUT_MASK).goes_to(RULES)
    };
    let mut flows: Vec<Flow> = FOLLOWING.into_iter().map(leads).collect();
    if let Some(plug) = plugs.get(&port).filter(|_| is_memory) {
        let speaks = ipv6(at(plug)).with_masked(Field::Ipv6Src, value, mask);
        flows.push(Flow::new(SOURCE_PAGE_ROUTES, rank + 1, speaks).notes(AS_HOME, AS_HOME).goes_to(ROUTE));
    }
    let others = ipv6(Match::any()).with_masked(Field::Ipv6Src, value, mask);
    flows.push(Flow::new(SOURCE_PAGE_ROUTES, rank, others).goes_to(BEHALF));
    Wanted { flows, groups: Groups::new() }
}

/// Value and mask of the addresses of the pages of a page range.
fn addresses_of_range(cluster: Cluster, range: PageRange) -> (u128, u128) {
    let (value, mask) = addresses(cluster, Page { home: range.home(), number: range.first() });
    (value, mask & !(u128::from(range.pages() - 1) << layout::PAGE_SHIFT))
}

/// Copies to members of a group that are on the side from which the packet comes, but not to the port that gets the
/// packet itself. A packet back to its sender needs an action of its own, because switches send no copy there.
fn copies(wanted: &mut Wanted, number: u16, address: u128, classes: Classes, members: &[(u16, &Plug)]) {
    let mut next_group = u32::from(number) << 8;
    let mut copy = |groups: &mut Groups, members: Vec<&Plug>| {
        if members.is_empty() {
            return Vec::new();
        }
        let buckets = members.into_iter().map(|plug| Bucket::of(hand_over(plug, plug.number))).collect();
        groups.insert(next_group, buckets);
        next_group += 1;
        vec![Action::Group(next_group - 1)]
    };
    let requests = classes_of(address, classes);
    let about = |matching: Match, (value, mask): (u128, u128)| ipv6(matching).with_masked(Field::Ipv6Dst, value, mask);
    let sides: BTreeSet<u32> = members.iter().map(|(_, plug)| plug.side).collect();
    for side in sides {
        let here = || members.iter().filter(|(_, plug)| plug.side == side);
        let note = u64::from(side) << SIDE_SHIFT;
        let all = copy(&mut wanted.groups, here().map(|(_, plug)| *plug).collect());
        for &request in &requests {
            let matching = about(noted(Match::any(), note, SIDE_MASK), request);
            wanted.flows.push(Flow::new(COPIES, 10, matching).acts(all.clone()).goes_to(OWN_COPY));
        }
        for &(out, _) in here() {
            let others = here().filter(|(port, _)| *port != out).map(|(_, plug)| *plug).collect();
            let others = copy(&mut wanted.groups, others);
            for &request in &requests {
                let matching = about(noted(Match::any(), note | u64::from(out), SIDE_MASK | OUT_MASK), request);
                wanted.flows.push(Flow::new(COPIES, 20, matching).acts(others.clone()).goes_to(OWN_COPY));
            }
        }
    }
    for (out, plug) in members {
        for &request in &requests {
            let own = Flow::new(OWN_COPY, 10, about(at(plug), request));
            wanted.flows.push(own.acts(hand_over(plug, port::IN_PORT)).goes_to(SIDES));
            let gets_it = about(noted(at(plug), u64::from(*out), OUT_MASK), request);
            wanted.flows.push(Flow::new(OWN_COPY, 20, gets_it).goes_to(SIDES));
        }
    }
}

/// Value and mask of the pointers of a home, for these classes.
fn classes_of(address: u128, classes: Classes) -> Vec<(u128, u128)> {
    if classes.bits() & CLASSES == CLASSES {
        return vec![(address, HOME_MASK | INCARNATION)];
    }
    let chosen = (0..8_u128).filter(|class| classes.bits() >> class & 1 == 1);
    chosen.map(|class| (address | class << 4 << COMMAND_SHIFT, HOME_MASK | CLASS_MASK)).collect()
}

/// The permitted requests; `None`: all.
pub(super) fn of_rules(cluster: Cluster, rules: Option<&HashMap<u32, u16>>) -> Wanted {
    let mut flows = Vec::new();
    let Some(rules) = rules else {
        flows.push(Flow::new(RULES, 20, Match::any()).goes_to(CLASS));
        return Wanted { flows, groups: Groups::new() };
    };
    for (&key, &classes) in rules {
        let (client, host) = ((key >> 16) as u16, key as u16);
        let (source, source_mask) = if client == 0 { (0, 0) } else { (home(cluster, client), HOME_MASK) };
        for (value, mask) in classes_of(home(cluster, host), Classes::from_bits(classes)) {
            let mask = if host == 0 { mask & !HOME_MASK } else { mask };
            let matching = ipv6(Match::any()).with_masked(Field::Ipv6Src, source, source_mask);
            let matching = matching.with_masked(Field::Ipv6Dst, value, mask);
            flows.push(Flow::new(RULES, 10, matching).goes_to(CLASS));
        }
    }
    Wanted { flows, groups: Groups::new() }
}

/// Drops all packets on purpose, or none.
pub(super) fn of_loss(is_lost: bool) -> Wanted {
    let passes = Flow::new(LOSS, 20, Match::any()).goes_to(COPIES);
    Wanted { flows: if is_lost { Vec::new() } else { vec![passes] }, groups: Groups::new() }
}

/// The granting of leases, and the reports about them.
pub(super) fn of_leases(is_on: bool) -> Wanted {
    let mut flows = Vec::new();
    if is_on {
        let command = |command: u8| u128::from(command) << COMMAND_SHIFT;
        for answered in [layout::COMMAND_COMMIT, layout::COMMAND_UPDATE, layout::COMMAND_RENEW, layout::COMMAND_RELEASE]
        {
            let matching = noted(ipv6(Match::any()), AS_HOME, AS_HOME);
            let matching = matching.with_masked(Field::Ipv6Src, command(answered), COMMAND_MASK);
            flows.push(Flow::new(ANSWERS, 10, matching).marked(MARK_OBSERVED).tells(OBSERVED_BYTES).goes_to(PLUGGED));
        }
        let asks = |table, priority, asked| {
            let mask = COMMAND_MASK | DIRECT;
            let matching = ipv6(Match::any()).with_masked(Field::Ipv6Dst, command(asked), mask);
            Flow::new(table, priority, matching)
        };
        let commits = asks(CLASS, 20, layout::COMMAND_COMMIT);
        flows.push(commits.marked(MARK_OBSERVED).tells(OBSERVED_BYTES).goes_to(HOT));
        flows.push(asks(PAGE, 15, layout::COMMAND_UPDATE).marked(MARK_LEASE).tells(WHOLE));
    }
    Wanted { flows, groups: Groups::new() }
}

/// Value and mask of the addresses of a page.
fn addresses(cluster: Cluster, page: Page) -> (u128, u128) {
    let offset = u128::from(page.number) << layout::PAGE_SHIFT;
    (home(cluster, page.home) | offset, HOME_MASK | INCARNATION | PAGE_MASK)
}

/// Reports pages for which no flow counts.
pub(super) fn of_counting(is_on: bool) -> Wanted {
    let miss = Flow::new(HOT, 1, Match::any()).marked(MARK_HOT_MISS).tells(ADDRESSES_BYTES).goes_to(PAGE);
    Wanted { flows: if is_on { vec![miss] } else { Vec::new() }, groups: Groups::new() }
}

/// The flow that counts a page.
pub(super) fn counted(cluster: Cluster, page: Page) -> Flow {
    let (value, mask) = addresses(cluster, page);
    let matching = ipv6(Match::any()).with_masked(Field::Ipv6Dst, value, mask);
    Flow::new(HOT, 10, matching).marked(page_mark(MARK_HOT, page)).goes_to(PAGE)
}

/// Deletes all flows that count pages.
pub(super) fn none_counted() -> Body {
    Body::FlowMod(FlowMod { cookie: MARK_HOT, cookie_mask: MARK_MASK, ..FlowMod::new(FlowCommand::Delete, HOT) })
}

/// The state of the redirect of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) port: u16,
    /// The tick at which it ends.
    pub(super) until: u64,
    /// It has ended, and the next request is reported.
    pub(super) is_ended: bool,
    /// The home's port; a redirect to the home itself has no effect.
    pub(super) home_port: Option<u16>,
    /// Whether its home is memory, for which an owner may answer.
    pub(super) is_memory: bool,
}

/// The flows of a redirect, which end automatically after this many seconds (0: never).
pub(super) fn of_redirect(cluster: Cluster, plugs: &Plugs, page: Page, shown: Shown, hard_timeout: u16) -> Wanted {
    let (value, mask) = addresses(cluster, page);
    let about = |matching: Match| ipv6(matching).with_masked(Field::Ipv6Dst, value, mask);
    let mut flows = Vec::new();
    if shown.is_ended {
        let ended = Flow::new(PAGE, 10, about(Match::any())).marked(MARK_OBSERVED);
        flows.push(ended.tells(ADDRESSES_BYTES).goes_to(PLUGGED));
        return Wanted { flows, groups: Groups::new() };
    }
    if let Some(plug) = plugs.get(&shown.port) {
        flows.push(Flow::new(PAGE, 30, about(at(plug))).goes_to(PLUGGED));
        if shown.is_memory {
            let answers = ipv6(at(plug)).with_masked(Field::Ipv6Src, value, mask);
            flows.push(Flow::new(BEHALF, 5, answers).goes_to(ROUTE));
        }
    }
    let redirected = if shown.home_port == Some(shown.port) { 0 } else { REDIRECTED };
    let others = Flow::new(PAGE, 20, about(Match::any()));
    flows.push(others.notes(u64::from(shown.port) | redirected, OUT_MASK | REDIRECTED).goes_to(PLUGGED));
    let mark = page_mark(MARK_REDIRECT, page);
    flows.iter_mut().for_each(|flow| (flow.cookie, flow.hard_timeout) = (mark, hard_timeout));
    Wanted { flows, groups: Groups::new() }
}

/// The page whose redirect ended by itself, if the cookie is that of one.
pub(super) fn redirect_of(cookie: u64) -> Option<Page> {
    (cookie & MARK_MASK == MARK_REDIRECT).then(|| page_of(cookie))
}

/// Deletes the flows of earlier connections that were not sent again in this one.
pub(super) fn nothing_stale(connection_number: u64) -> Vec<Body> {
    let stale = |cookie| {
        let cookie_mask = (CONNECTIONS - 1) << CONNECTION_SHIFT;
        let delete = FlowMod::new(FlowCommand::Delete, super::codec::ALL_TABLES);
        Body::FlowMod(FlowMod { cookie: cookie << CONNECTION_SHIFT, cookie_mask, ..delete })
    };
    (0..CONNECTIONS).filter(|&other| other != connection_number % CONNECTIONS).map(stale).collect()
}

/// Deletes everything that may have existed before.
pub(super) fn nothing() -> Vec<Body> {
    let groups =
        GroupMod { command: GroupCommand::Delete, kind: 0, group: super::codec::ALL_GROUPS, buckets: Vec::new() };
    vec![Body::FlowMod(FlowMod::new(FlowCommand::Delete, super::codec::ALL_TABLES)), Body::GroupMod(groups)]
}

/// A change without an effect: software switches search their flow cache after it.
pub(super) fn nudge(connection_number: u64) -> Body {
    Flow::new(SPARE, 0, Match::any()).add(connection_number)
}
