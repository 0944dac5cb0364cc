//! The commands of scripts about release consistency: pages of four words, the nodes' knowledge of each other's
//! releases, and a network that delivers what the script says.
//!
//! Promises: effects are carried out in their order, as in the runtime. A received page overwrites only what this
//! node cannot touch. A load or a store is made only if the view allows it. Locks and barriers are what they are to
//! the protocol: knowledge that goes from one node to another.

use super::{Story, Words, named};
use trellis_check::model::Envelope;
use trellis_check::model::twinned::{Body, Diff, PAGE_WORDS, Releasing, Twinned, Value};
use trellis_cluster_protocol::coherence::hlrc::intervals::{Intervals, Learnt, Notice};
use trellis_cluster_protocol::coherence::{Coherence, Effect, Geometry, Hlrc, Input, Message, Propagation};
use trellis_cluster_protocol::homes::{FirstTouch, Home, Interleaved, Manager, Migrating};
use trellis_cluster_protocol::node::{self, Carrier, Order, Shard};
use trellis_cluster_protocol::{Access, NodeId, PageIndex, PageRange, PageSet};

/// An access that waits for its page.
#[derive(Clone, Copy)]
struct Waiting {
    page: usize,
    word: usize,
    value: Option<Value>,
    wanted: PageRange,
    woken: bool,
}

struct Node {
    pages: Shard<Hlrc>,
    intervals: Intervals,
    copies: Twinned,
    waiting: Vec<Waiting>,
    is_publishing: bool,
    /// The node's knowledge at the last barrier.
    at_barrier: Option<Vec<u64>>,
}

pub(crate) struct Script {
    nodes: Vec<Node>,
    under_way: Vec<Envelope<(Message, Body)>>,
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
                pages: Shard::new(Hlrc::new(geometry, propagation), geometry, NodeId(0)),
                intervals: Intervals::new(me, nodes, pages, true),
                copies: Twinned::new(pages as usize),
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
        if !this.copies.allows(page, value.is_some(), marks) {
            this.waiting.push(Waiting { woken: false, ..access });
            let input = Input::Fault { page: PageIndex(page as u32), write: value.is_some(), wanted };
            return self.step(node, input, &Body::Nothing);
        }
        match value {
            None => {
                let seen = this.copies.bytes[page][word];
                self.log.push(format!("n{node} loads {seen} from p{page}.{word}"));
            }
            Some(value) => {
                this.copies.bytes[page][word] = value;
                this.copies.stored[page] = true;
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
            for page in 0..self.node(node).copies.views.len() {
                let this = self.node(node);
                if this.copies.stored[page] && this.pages.protocol.is_watched(PageIndex(page as u32)) {
                    let range = PageRange::one(PageIndex(page as u32));
                    self.step(node, Input::Stored { range }, &Body::Nothing);
                }
            }
        }
        self.step(node, Input::Publish { unacknowledged_max: 64, together_max: 64 }, &Body::Nothing);
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
            self.step(node, Input::Notice { range, stamp }, &Body::Nothing);
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
        let Envelope { from, to, message: (message, body) } = self.under_way.remove(index);
        must(Acting { script: self, node: to }.arrive(message, &body));
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
        self.deliver_one(named(words, &self.under_way, |(message, _)| message.name())?);
        Ok(())
    }

    fn step(&mut self, node: u16, input: Input, body: &Body) {
        let came = match input {
            Input::Message { message, .. } => Some((message, body)),
            _ => None,
        };
        must(node::step(&mut Acting { script: self, node }, input, came).map(drop));
    }

    fn state(&mut self) {
        for node in 0..self.nodes.len() as u16 {
            let this = &self.nodes[usize::from(node)];
            let mut line = format!("n{node}:");
            for (page, view) in this.copies.views.iter().enumerate() {
                let home = if this.pages.protocol.owns(PageIndex(page as u32)) { " (home)" } else { "" };
                let values: Vec<String> = this.copies.bytes[page].iter().map(Value::to_string).collect();
                line += &match view {
                    Access::None => format!(" p{page}{home} -"),
                    Access::Read => format!(" p{page}{home} reads {}", values.join(",")),
                    Access::Write => format!(" p{page}{home} writes {}", values.join(",")),
                };
            }
            self.log.push(line);
        }
        for Envelope { from, to, message: (message, _) } in &self.under_way {
            self.log.push(format!("under way n{from}->n{to}: {}", message));
        }
    }
}

/// A node that takes a step.
struct Acting<'a> {
    script: &'a mut Script,
    node: u16,
}

impl<'a> Carrier for Acting<'a> {
    type Protocol = Hlrc;
    trellis_check::obeys!('a);

    fn shard(&mut self) -> &mut Shard<Hlrc> {
        &mut self.script.node(self.node).pages
    }

    fn decide(&mut self, input: Input, effects: &mut Vec<Effect>) {
        self.shard().protocol.step(0, input, effects);
        self.script.log.push(format!("n{} {input}", self.node));
        self.script.log.extend(effects.iter().map(|effect| format!("  {effect}")));
    }
}

impl Releasing for Acting<'_> {
    fn me(&self) -> u16 {
        self.node
    }

    fn copies(&mut self) -> &mut Twinned {
        &mut self.script.node(self.node).copies
    }

    fn place(&self, page: PageIndex) -> Option<usize> {
        Some(page.0 as usize)
    }

    /// The line of the effect says which diffs are sent.
    fn send(&mut self, to: NodeId, message: Message, body: Body) {
        if let (Some(pages), Body::Diffs(diffs)) = (message.diffs(), &body) {
            let effect = format!("  {}", Effect::Send { to, message });
            let line = self.script.log.iter_mut().rfind(|line| **line == effect).expect("it was decided");
            *line += &format!(" {{{}}}", in_words(pages, diffs));
        }
        self.script.under_way.push(Envelope { from: self.node, to: to.0, message: (message, body) });
    }

    fn wake(&mut self, pages: PageRange) {
        let waiting = self.script.node(self.node).waiting.iter_mut();
        waiting.for_each(|waiting| waiting.woken |= pages.contains(PageIndex(waiting.page as u32)));
    }

    fn note(&mut self, notice: Notice) {
        self.script.node(self.node).intervals.note(notice);
    }

    fn published(&mut self) {
        self.script.node(self.node).is_publishing = false;
    }

    fn differs(&mut self, page: PageIndex) {
        self.shard().differs(page);
    }
}

fn must(done: Result<(), String>) {
    done.unwrap_or_else(|what| panic!("{what}"));
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
    if word < PAGE_WORDS { Ok((page, word)) } else { Err(wrong()) }
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
                self.step(words.name(0, 'n')?, input, &Body::Nothing);
            }
            "place" => {
                let (range, node) = (super::range(words.at(1)?)?, NodeId(words.name(2, 'n')?));
                self.step(words.name(0, 'n')?, Input::Place { range, node }, &Body::Nothing);
            }
            "publish" => self.publish(words.name(0, 'n')?)?,
            "carry" => {
                let (from, to) = words.link()?;
                self.step(from, Input::Piggyback { to: NodeId(to), pages_max: 8 }, &Body::Nothing);
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
        let under_way = self.under_way.iter().map(|envelope| envelope.message.0.to_string());
        let mut left: Vec<String> = under_way.map(|text| format!("`{text}` is under way")).collect();
        for (node, this) in self.nodes.iter().enumerate() {
            left.extend(this.waiting.iter().map(|waiting| format!("n{node} waits for p{}", waiting.page)));
            left.extend(this.is_publishing.then(|| format!("n{node} publishes")));
        }
        left
    }
}
