//! The commands of scripts about release consistency: pages of four words, the nodes' knowledge of each other's
//! releases, and a network that delivers what the script says.
//!
//! Promises: effects are carried out in their order, as in the runtime. A received page overwrites only what this
//! node cannot touch. A load or a store is made only if the view allows it. Locks and barriers are what they are to
//! the protocol: knowledge that goes from one node to another.

use super::{Story, Words};
use std::collections::BTreeMap;
use trellis_cluster_protocol::coherence::hlrc::intervals::{Intervals, Learnt, Notice};
use trellis_cluster_protocol::coherence::{Coherence, Effect, Geometry, Hlrc, Input, Message, Propagation};
use trellis_cluster_protocol::homes::{FirstTouch, Home, Interleaved, Manager, Migrating};
use trellis_cluster_protocol::{Access, NodeId, PageIndex, PageRange, PageSet};

const WORDS: usize = 4;
type Page = [u64; WORDS];
type Diff = Vec<(usize, u64)>;

/// What travels with a message.
#[derive(Clone, Default)]
struct Body {
    pages: Vec<Page>,
    diffs: Vec<Diff>,
}

struct Envelope {
    from: u16,
    to: u16,
    message: Message,
    body: Body,
}

/// An access that waits for its page.
#[derive(Clone, Copy)]
struct Waiting {
    page: usize,
    word: usize,
    value: Option<u64>,
    wanted: PageRange,
    woken: bool,
}

struct Node {
    protocol: Hlrc,
    intervals: Intervals,
    memory: Vec<Page>,
    twins: Vec<Page>,
    view: Vec<Access>,
    /// The kernel's marks of stores.
    marked: Vec<bool>,
    waiting: Vec<Waiting>,
    is_publishing: bool,
    /// The node's knowledge at the last barrier.
    at_barrier: Option<Vec<u64>>,
}

pub(crate) struct Script {
    nodes: Vec<Node>,
    under_way: Vec<Envelope>,
    marks: bool,
    log: Vec<String>,
}

impl Script {
    pub(crate) fn new() -> Script {
        Script { nodes: Vec::new(), under_way: Vec::new(), marks: false, log: Vec::new() }
    }

    fn start(&mut self, words: &Words<'_>) -> Result<(), String> {
        let (nodes, pages) = (words.number("nodes")? as u16, words.number("pages")? as u32);
        self.marks = words.has("marks");
        let manager = words.value("manager").map_or(Ok(0), |_| words.number("manager"))?;
        let home = match words.value("home") {
            None | Some("manager") => Home::Manager(Manager(NodeId(manager as u16))),
            Some("interleaved") => Home::Interleaved(Interleaved),
            Some("first-touch") => Home::FirstTouch(FirstTouch),
            Some("migrating") => Home::Migrating(Migrating),
            Some(other) => return Err(format!("there is no home `{other}`")),
        };
        let propagation = match words.value("protocol") {
            None | Some("hlrc(invalidate)") => Propagation::Invalidate,
            Some("hlrc(update)") => Propagation::Update,
            Some("hlrc(adaptive)") => Propagation::Adaptive,
            Some(other) => return Err(format!("`{other}` is not one of these protocols")),
        };
        let node = |me| {
            let me = NodeId(me);
            let marks = self.marks;
            let geometry = Geometry { me, nodes, founders: nodes, pages, shard: 0, shards: 1, home, marks };
            Node {
                protocol: Hlrc::new(geometry, propagation),
                intervals: Intervals::new(me, nodes, pages, true),
                memory: vec![[0; WORDS]; pages as usize],
                twins: vec![[0; WORDS]; pages as usize],
                view: vec![Access::None; pages as usize],
                marked: vec![false; pages as usize],
                waiting: Vec::new(),
                is_publishing: false,
                at_barrier: None,
            }
        };
        self.nodes = (0..nodes).map(node).collect();
        Ok(())
    }

    fn node(&mut self, node: u16) -> &mut Node {
        &mut self.nodes[usize::from(node)]
    }

    /// A load, or a store of `value`, by a thread that faults first if its view does not allow the access.
    fn access(&mut self, node: u16, access: Waiting) {
        let (marks, this) = (self.marks, self.node(node));
        let Waiting { page, word, value, wanted, .. } = access;
        let is_allowed = match (this.view[page], value) {
            (Access::Write, _) | (Access::Read, None) => true,
            (Access::Read, Some(_)) => marks,
            (Access::None, _) => false,
        };
        if !is_allowed {
            this.waiting.push(Waiting { woken: false, ..access });
            let input = Input::Fault { page: PageIndex(page as u32), write: value.is_some(), wanted };
            return self.step(node, input, &Body::default());
        }
        match value {
            None => {
                let seen = this.memory[page][word];
                self.log.push(format!("n{node} loads {seen} from p{page}.{word}"));
            }
            Some(value) => {
                this.memory[page][word] = value;
                this.marked[page] = true;
                self.log.push(format!("n{node} stores {value} to p{page}.{word}"));
            }
        }
    }

    /// Woken threads retry, until none is left.
    fn look(&mut self) {
        for node in 0..self.nodes.len() as u16 {
            let waiting = &mut self.node(node).waiting;
            if let Some(index) = waiting.iter().position(|waiting| waiting.woken) {
                let waiting = waiting.remove(index);
                self.access(node, waiting);
                return self.look();
            }
        }
    }

    fn publish(&mut self, node: u16) -> Result<(), String> {
        let this = self.node(node);
        if std::mem::replace(&mut this.is_publishing, true) {
            return Err("it is publishing already".to_string());
        }
        if self.marks {
            for page in 0..self.node(node).view.len() {
                let this = self.node(node);
                if this.marked[page] && this.protocol.is_watched(PageIndex(page as u32)) {
                    let range = PageRange::one(PageIndex(page as u32));
                    self.step(node, Input::Stored { range }, &Body::default());
                }
            }
        }
        self.step(node, Input::Publish { unacknowledged_max: 64, together_max: 64 }, &Body::default());
        Ok(())
    }

    /// What `from` releases reaches `to`, and the acquire of `to` ends.
    fn tell(&mut self, from: u16, to: u16) -> Result<(), String> {
        if self.node(from).is_publishing {
            return Err(format!("n{from} has not published"));
        }
        self.node(from).intervals.close();
        let mut bytes = Vec::new();
        self.node(from).intervals.append_notices(NodeId(to), &mut bytes);
        let learnt = self.node(to).intervals.learn(NodeId(from), &bytes);
        if learnt != Ok(Learnt::Known) {
            return Err(format!("n{to} cannot learn that: {learnt:?}"));
        }
        Ok(())
    }

    fn acquired(&mut self, node: u16) -> Result<(), String> {
        let mut notices = Vec::new();
        if self.node(node).intervals.take_unapplied(&mut notices) {
            return Err("anything may have changed".to_string());
        }
        let time: Vec<String> = self.node(node).intervals.time().iter().map(u64::to_string).collect();
        self.log.push(format!("n{node} acquires, vector time {}", time.join(" ")));
        for Notice { range, stamp } in notices {
            self.step(node, Input::Notice { range, stamp }, &Body::default());
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), String> {
        let nodes = self.nodes.len() as u16;
        // To the first node, and from there to all, as the tree does.
        for from in 1..nodes {
            self.tell(from, 0)?;
        }
        self.node(0).intervals.close();
        for to in 1..nodes {
            self.tell(0, to)?;
        }
        for node in 0..nodes {
            self.acquired(node)?;
            let this = self.node(node);
            let time = this.intervals.time().to_vec();
            if let Some(before) = this.at_barrier.replace(time) {
                this.intervals.everybody_knows(&before);
            }
        }
        Ok(())
    }

    fn deliver_one(&mut self, index: usize) {
        let Envelope { from, to, message, body } = self.under_way.remove(index);
        if let Some(range) = message.bytes() {
            for (page, bytes) in range.pages().zip(&body.pages) {
                let this = self.node(to);
                assert_eq!(this.view[page.0 as usize], Access::None, "a page that came overwrites one in use");
                this.memory[page.0 as usize] = *bytes;
            }
        }
        self.step(to, Input::Message { from: NodeId(from), message }, &body);
        self.look();
    }

    fn deliver(&mut self, words: &Words<'_>) -> Result<(), String> {
        if words.is_empty() {
            while !self.under_way.is_empty() {
                self.deliver_one(0);
            }
            return Ok(());
        }
        let (from, to) = words.link()?;
        let kind = words.at(1).ok();
        let index = self.under_way.iter().position(|envelope| {
            (envelope.from, envelope.to) == (from, to) && kind.is_none_or(|kind| kind == envelope.message.name())
        });
        self.deliver_one(index.ok_or("no such message is under way")?);
        Ok(())
    }

    fn step(&mut self, node: u16, input: Input, body: &Body) {
        self.log.push(format!("n{node} {input}"));
        let mut effects = Vec::new();
        self.node(node).protocol.step(0, input, &mut effects);
        let came = match input {
            Input::Message { message, .. } => Some(message),
            _ => None,
        };
        let mut changed = Vec::new();
        let mut last: Option<(Message, Vec<Diff>)> = None;
        for effect in effects {
            let mut line = format!("  {}", effect);
            match effect {
                Effect::Send { to, message } => {
                    let sent = self.body_of(node, message, came, body, &mut last);
                    if !sent.diffs.is_empty() {
                        line += &format!(" {{{}}}", in_words(message.diffs().expect("they have pages"), &sent.diffs));
                    }
                    self.under_way.push(Envelope { from: node, to: to.0, message, body: sent });
                }
                Effect::SendTwins { to, message } => {
                    let range = message.bytes().or(message.carried().map(PageRange::one)).expect("pages are sent");
                    let this = self.node(node);
                    let pages = range.pages().map(|page| this.twins[page.0 as usize]).collect();
                    let body = Body { pages, ..Body::default() };
                    self.under_way.push(Envelope { from: node, to: to.0, message, body });
                }
                Effect::Inspect(page) => {
                    let this = self.node(node);
                    if this.memory[page.0 as usize] != this.twins[page.0 as usize] {
                        changed.push(page);
                    }
                }
                Effect::Violation { from, what } => panic!("node {node} reports of {from}: {what}"),
                other => self.carry_out(node, other, came, body),
            }
            self.log.push(line);
        }
        for page in changed {
            self.step(node, Input::Changed { page }, &Body::default());
        }
    }

    /// Carries out the effects that concern only this node.
    fn carry_out(&mut self, node: u16, effect: Effect, came: Option<Message>, body: &Body) {
        let this = self.node(node);
        let each = |range: PageRange| range.pages().map(|page| page.0 as usize);
        match effect {
            Effect::Revoke(range) => each(range).for_each(|page| this.view[page] = Access::None),
            Effect::Downgrade(range) => each(range).for_each(|page| {
                assert_ne!(this.view[page], Access::None);
                (this.view[page], this.marked[page]) = (Access::Read, false);
            }),
            Effect::Install { range, access, zero } => each(range).for_each(|page| {
                assert_eq!(this.view[page], Access::None);
                assert!(!zero || this.memory[page] == [0; WORDS]);
                (this.view[page], this.marked[page]) = (access, false);
            }),
            Effect::Upgrade(range) => each(range).for_each(|page| this.view[page] = Access::Write),
            Effect::KeepTwin(range) => each(range).for_each(|page| this.twins[page] = this.memory[page]),
            Effect::Apply { pages, twins } => {
                let came = came.and_then(|came| came.diffs()).expect("diffs come with messages");
                for (page, diff) in came.pages().zip(&body.diffs).filter(|(page, _)| pages.contains(*page)) {
                    for &(word, value) in diff {
                        this.memory[page.0 as usize][word] = value;
                        if twins.is_some_and(|twins| twins.contains(page)) {
                            this.twins[page.0 as usize][word] = value;
                        }
                    }
                }
            }
            Effect::Merge { page, has_twin } => {
                let page = page.0 as usize;
                let before = if has_twin { this.twins[page] } else { this.memory[page] };
                for (word, &value) in body.pages[0].iter().enumerate().filter(|&(word, &value)| before[word] != value) {
                    this.memory[page][word] = value;
                    if has_twin {
                        this.twins[page][word] = value;
                    }
                }
            }
            Effect::Notice { range, stamp } => this.intervals.note(Notice { range, stamp }),
            Effect::Published => this.is_publishing = false,
            Effect::Wake(range) => {
                let waiting = this.waiting.iter_mut().filter(|waiting| range.contains(PageIndex(waiting.page as u32)));
                waiting.for_each(|waiting| waiting.woken = true);
            }
            other => panic!("{other:?} is not of this protocol"),
        }
    }

    /// The bytes that go with a message: pages, forwarded diffs, or what this node stored.
    fn body_of(
        &mut self,
        node: u16,
        sent: Message,
        came: Option<Message>,
        body: &Body,
        last: &mut Option<(Message, Vec<Diff>)>,
    ) -> Body {
        let this = self.node(node);
        if let Some(range) = sent.bytes().or(sent.carried().map(PageRange::one)) {
            let pages = range.pages().map(|page| this.memory[page.0 as usize]).collect();
            return Body { pages, ..Body::default() };
        }
        let Some(pages) = sent.diffs() else { return Body::default() };
        let diffs = match (came.and_then(|came| came.diffs()).filter(|all| all.covers(pages)), last.as_ref()) {
            (Some(all), _) => {
                let of: BTreeMap<u32, &Diff> = all.pages().map(|page| page.0).zip(&body.diffs).collect();
                pages.pages().map(|page| of[&page.0].clone()).collect()
            }
            (None, Some((message, diffs))) if *message == sent => diffs.clone(),
            _ => pages.pages().map(|page| this.diff(page.0 as usize)).collect(),
        };
        *last = Some((sent, diffs.clone()));
        Body { diffs, ..Body::default() }
    }

    fn state(&mut self) {
        for node in 0..self.nodes.len() as u16 {
            let this = &self.nodes[usize::from(node)];
            let mut line = format!("n{node}:");
            for (page, view) in this.view.iter().enumerate() {
                let home = if this.protocol.owns(PageIndex(page as u32)) { " (home)" } else { "" };
                let values: Vec<String> = this.memory[page].iter().map(u64::to_string).collect();
                line += &match view {
                    Access::None => format!(" p{page}{home} -"),
                    Access::Read => format!(" p{page}{home} reads {}", values.join(",")),
                    Access::Write => format!(" p{page}{home} writes {}", values.join(",")),
                };
            }
            self.log.push(line);
        }
        for Envelope { from, to, message, .. } in &self.under_way {
            self.log.push(format!("under way n{from}->n{to}: {}", message));
        }
    }
}

impl Node {
    /// What was stored to `page` since its twin was made; updates the twin.
    fn diff(&mut self, page: usize) -> Diff {
        let (memory, twin) = (&self.memory[page], &mut self.twins[page]);
        let diff: Diff = memory.iter().copied().enumerate().filter(|&(word, value)| value != twin[word]).collect();
        diff.iter().for_each(|&(word, value)| twin[word] = value);
        diff
    }
}

fn in_words(pages: PageSet, diffs: &[Diff]) -> String {
    let words = pages
        .pages()
        .zip(diffs)
        .flat_map(|(page, diff)| diff.iter().map(move |(word, value)| format!("p{}.{word} is {value}", page.0)));
    words.collect::<Vec<_>>().join(", ")
}

/// Parses `p3.1`, or `p3`: its first word.
fn place(text: &str) -> Result<(usize, usize), String> {
    let wrong = || format!("`{text}` is not a word of a page, such as p0.1");
    let (page, word) = text.strip_prefix('p').ok_or_else(wrong)?.split_once('.').unwrap_or((&text[1..], "0"));
    let (page, word) = (page.parse().map_err(|_| wrong())?, word.parse().map_err(|_| wrong())?);
    if word < WORDS { Ok((page, word)) } else { Err(wrong()) }
}

impl Story for Script {
    fn command(&mut self, line: &str) -> Result<Vec<String>, String> {
        let (verb, words) = Words::of(line);
        self.log.clear();
        match verb {
            "cluster" => self.start(&words)?,
            "read" | "write" => {
                let (at, value) = match (verb, words.at(1)?.split_once('=')) {
                    ("write", Some((at, value))) => {
                        (at, Some(value.parse().map_err(|_| format!("`{value}` is not a number"))?))
                    }
                    ("read", None) => (words.at(1)?, None),
                    _ => return Err("it is `read n1 p0.1` or `write n1 p0.1=5`".to_string()),
                };
                let (page, word) = place(at)?;
                let wanted = match words.value("wanted") {
                    Some(wanted) => super::range(wanted)?,
                    None => PageRange::one(PageIndex(page as u32)),
                };
                self.access(words.name(0, 'n')?, Waiting { page, word, value, wanted, woken: false });
            }
            "prefetch" => {
                let (wanted, write) = (super::range(words.at(1)?)?, words.has("write"));
                let input = Input::Prefetch { wanted, write, announced: !words.has("guess") };
                self.step(words.name(0, 'n')?, input, &Body::default());
            }
            "place" => {
                let (range, node) = (super::range(words.at(1)?)?, NodeId(words.name(2, 'n')?));
                self.step(words.name(0, 'n')?, Input::Place { range, node }, &Body::default());
            }
            "publish" => self.publish(words.name(0, 'n')?)?,
            "carry" => {
                let (from, to) = words.link()?;
                self.step(from, Input::Carry { to: NodeId(to), pages_max: 8 }, &Body::default());
            }
            "release" => {
                let (from, to) = words.link()?;
                self.tell(from, to)?;
                self.acquired(to)?;
            }
            "barrier" => self.barrier()?,
            "deliver" => self.deliver(&words)?,
            "state" => self.state(),
            _ => return Err("there is no such command".to_string()),
        }
        self.look();
        Ok(std::mem::take(&mut self.log))
    }

    fn left_over(&self) -> Vec<String> {
        let under_way = self.under_way.iter().map(|envelope| envelope.message.to_string());
        let mut left: Vec<String> = under_way.map(|text| format!("`{text}` is under way")).collect();
        for (node, this) in self.nodes.iter().enumerate() {
            left.extend(this.waiting.iter().map(|waiting| format!("n{node} waits for p{}", waiting.page)));
            left.extend(this.is_publishing.then(|| format!("n{node} publishes")));
        }
        left
    }
}
