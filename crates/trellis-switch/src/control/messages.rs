//! The messages over the socket.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use trellis_base::{Deadline, Limit};

use crate::address::{Classes, Page, PageRange, Prefix};
use crate::capabilities::Capabilities;
use crate::entries::{Group, Redirect, Route, Rule};
use crate::error::SwitchError;
use crate::observed::{Counters, Event, EventKind, HotPage};

/// Longer than a switch needs for any request.
pub(crate) const TIMEOUT: Deadline = Deadline {
    who: "`trellis switch …`, a controller",
    waits_for: "the switch's answer",
    limit: Limit::seconds(20),
    then: "exit status 71, or an event of the controller, with the socket",
    tested: "crates/trellis-output/src/json_lines.rs who_says_nothing_or_takes_nothing_is_not_waited_for",
};

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Describe,
    SetPrefix { prefix: String, port: u16, is_memory: bool },
    DropPrefix(String),
    SetPageRoute { range: RangeNumbers, port: u16 },
    DropPageRoute(RangeNumbers),
    PageRoutes(u16),
    SetRedirect(PageRedirect),
    DropRedirect { page: PageNumber, epoch: u64 },
    Redirect(PageNumber),
    Sweep,
    SetGroup { prefix: String, classes: u16, ports: Vec<u16> },
    SetRules(Option<Vec<RuleText>>),
    SetLeases { microseconds: Option<u64> },
    SetSide { port: u16, side: u32 },
    SetFaults(String),
    Counters(u16),
    HotPages(usize),
    Events,
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    Is(bool),
    Count(u32),
    Description(Description),
    Redirect(Option<PageRedirect>),
    Counters(Vec<u64>),
    PageRoutes(Vec<(RangeNumbers, u16)>),
    Pages(Vec<PageCount>),
    Events(Vec<EventText>),
    /// Nothing was done: since the last request on this connection the switch was restarted, with this boot id.
    Began(u64),
    Refused {
        is_full: bool,
        sentence: String,
    },
}

/// A switch and its hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Its kind.
    pub name: String,
    /// A random boot id from its start: after a change, the switch has no state yet.
    pub boot_id: u64,
    /// The number of the cluster.
    pub cluster: u32,
    /// What it can do.
    #[serde(flatten)]
    pub capabilities: Capabilities,
    /// Its ports.
    pub ports: Vec<PortDescription>,
}

/// A port and its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortDescription {
    /// Its number.
    pub port: u16,
    /// The number of the host.
    pub host: u16,
    /// Whether the host's addresses are memory.
    pub is_memory: bool,
}

/// A page.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct PageNumber {
    home: u16,
    number: u64,
}

impl From<Page> for PageNumber {
    fn from(Page { home, number }: Page) -> PageNumber {
        PageNumber { home, number }
    }
}

impl From<PageNumber> for Page {
    fn from(PageNumber { home, number }: PageNumber) -> Page {
        Page { home, number }
    }
}

/// A range of pages.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct RangeNumbers {
    home: u16,
    first: u64,
    order: u8,
}

impl From<PageRange> for RangeNumbers {
    fn from(range: PageRange) -> RangeNumbers {
        RangeNumbers { home: range.home(), first: range.first(), order: range.order() }
    }
}

impl RangeNumbers {
    pub(super) fn range(self, switch: &'static str) -> Result<PageRange, SwitchError> {
        PageRange::new(self.home, self.first, self.order).map_err(|what| SwitchError::Refused { switch, what })
    }
}

/// A page that was asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PageCount {
    page: PageNumber,
    requests: u64,
    by_port: Vec<(u16, u64)>,
}

impl From<HotPage> for PageCount {
    fn from(HotPage { page, requests, by_port }: HotPage) -> PageCount {
        PageCount { page: page.into(), requests, by_port }
    }
}

impl From<PageCount> for HotPage {
    fn from(PageCount { page, requests, by_port }: PageCount) -> HotPage {
        HotPage { page: page.into(), requests, by_port }
    }
}

/// A redirect. Clocks are not compared: the message contains the remaining time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct PageRedirect {
    page: PageNumber,
    port: u16,
    epoch: u64,
    left_microseconds: Option<u64>,
}

impl PageRedirect {
    pub(super) fn new(page: Page, redirect: &Redirect) -> PageRedirect {
        let left = |until: Instant| until.saturating_duration_since(Instant::now()).as_micros() as u64;
        let Redirect { port, epoch, until } = *redirect;
        PageRedirect { page: page.into(), port, epoch, left_microseconds: until.map(left) }
    }

    pub(super) fn parts(self) -> (Page, Redirect) {
        let until = self.left_microseconds.map(|left| Instant::now() + Duration::from_micros(left));
        (self.page.into(), Redirect { port: self.port, epoch: self.epoch, until })
    }
}

/// A rule.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct RuleText {
    client: Option<u16>,
    home: Option<u16>,
    classes: u16,
}

impl From<Rule> for RuleText {
    fn from(Rule { client, home, classes }: Rule) -> RuleText {
        RuleText { client, home, classes: classes.bits() }
    }
}

impl From<RuleText> for Rule {
    fn from(RuleText { client, home, classes }: RuleText) -> Rule {
        Rule { client, home, classes: Classes::from_bits(classes) }
    }
}

/// An event.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct EventText {
    kind: u32,
    page: PageNumber,
    port: u16,
    epoch: u64,
    nanoseconds: u64,
}

impl From<&Event> for EventText {
    fn from(event: &Event) -> EventText {
        let Event { kind, page, port, epoch, time } = *event;
        EventText { kind: kind.number(), page: page.into(), port, epoch, nanoseconds: time.as_nanos() as u64 }
    }
}

impl EventText {
    /// `None` for a kind that this version does not know.
    pub(super) fn event(self) -> Option<Event> {
        let EventText { kind, page, port, epoch, nanoseconds } = self;
        let kind = EventKind::from_number(kind)?;
        Some(Event { kind, page: page.into(), port, epoch, time: Duration::from_nanos(nanoseconds) })
    }
}

/// Parses a prefix.
pub(super) fn prefix(switch: &'static str, text: &str) -> Result<Prefix, SwitchError> {
    text.parse().map_err(|what| SwitchError::Refused { switch, what })
}

/// A group from its fields.
pub(super) fn group(switch: &'static str, of: &str, classes: u16, ports: Vec<u16>) -> Result<Group, SwitchError> {
    Ok(Group { prefix: prefix(switch, of)?, classes: Classes::from_bits(classes), ports })
}

/// A route from its fields.
pub(super) fn route(port: u16, is_memory: bool) -> Route {
    Route { port, is_memory }
}

/// Counters from values; `None` for those of another version.
pub(super) fn counters(values: &[u64]) -> Option<Counters> {
    values.try_into().ok().map(Counters::from_values)
}

/// Counters by name, for people and for other programs.
impl Counters {
    /// The names and values.
    #[must_use]
    pub fn by_name(&self) -> BTreeMap<String, u64> {
        Counters::NAMES.iter().map(|name| (*name).to_owned()).zip(self.values()).collect()
    }
}
