//! Scripts about pages.

use super::{Story, Words};
use crate::cluster::{Cluster, Outcome, words};
use trellis_protocol::coherence::Protocol;
use trellis_protocol::homes::{Home, Interleaved, Manager};
use trellis_protocol::{Access, NodeId, PageIndex, PageRange};

pub(crate) struct Script {
    protocol: Protocol,
    nodes: u16,
    pages: u32,
    cluster: Cluster,
}

impl Script {
    pub(crate) fn new(protocol: Protocol) -> Script {
        let cluster = Cluster::new(protocol, Home::Interleaved(Interleaved), 1, 1, 1);
        Script { protocol, nodes: 0, pages: 0, cluster }
    }

    fn start(&mut self, words: &Words<'_>) -> Result<(), String> {
        self.nodes = words.number("nodes")? as u16;
        self.pages = words.number("pages")? as u32;
        let manager = words.value("manager").map_or(Ok(0), |_| words.number("manager"))?;
        let home = match words.value("home") {
            None | Some("manager") => Home::Manager(Manager(NodeId(manager as u16))),
            Some("interleaved") => Home::Interleaved(Interleaved),
            Some(other) => return Err(format!("there is no home `{other}`")),
        };
        self.cluster = Cluster::new(self.protocol, home, self.nodes, self.pages, 1);
        Ok(())
    }

    fn access(&mut self, node: u16, page: u32, write: bool, wish: PageRange) {
        let line = match self.cluster.access(node, page, write) {
            Outcome::Loaded(value) => format!("n{node} loads {value} from p{page}"),
            Outcome::Stored(value) => format!("n{node} stores {value} to p{page}"),
            Outcome::Faulted => return self.cluster.fault(node, page, write, wish),
        };
        self.cluster.log.push(line);
    }

    /// Woken threads look again, until none is left.
    fn look(&mut self) {
        for node in 0..self.nodes {
            let waiting = &self.cluster.waiting[usize::from(node)];
            if let Some(index) = waiting.iter().position(|waiting| waiting.woken) {
                let waiting = self.cluster.take_woken(node, index);
                self.access(node, waiting.page, waiting.write, waiting.wish);
                return self.look();
            }
        }
    }

    fn deliver(&mut self, words: &Words<'_>) -> Result<(), String> {
        if words.is_empty() {
            while !self.cluster.under_way.is_empty() {
                self.cluster.deliver(0);
                self.look();
            }
            return Ok(());
        }
        let (from, to) = words.link()?;
        let kind = words.at(1).ok();
        let index = self.cluster.under_way.iter().position(|envelope| {
            (envelope.from.0, envelope.to.0) == (from, to)
                && kind.is_none_or(|kind| kind == words::name(&envelope.message))
        });
        self.cluster.deliver(index.ok_or("no such message is under way")?);
        Ok(())
    }

    fn state(&mut self) {
        for node in 0..self.nodes {
            let mut line = format!("n{node}:");
            for page in 0..self.pages {
                let value = self.cluster.memory(node, page).map_or("?".into(), |value| value.to_string());
                line += &match self.cluster.view(node, page) {
                    Access::None => format!(" p{page} -"),
                    Access::Read => format!(" p{page} reads {value}"),
                    Access::Write => format!(" p{page} writes {value}"),
                };
            }
            self.cluster.log.push(line);
        }
        for envelope in &self.cluster.under_way {
            let text = words::message(&envelope.message);
            self.cluster.log.push(format!("under way n{}->n{}: {text}", envelope.from.0, envelope.to.0));
        }
    }
}

impl Story for Script {
    fn command(&mut self, line: &str) -> Result<Vec<String>, String> {
        let (verb, words) = Words::of(line);
        self.cluster.log.clear();
        match verb {
            "cluster" => self.start(&words)?,
            "read" | "write" => {
                let (node, page) = (words.name(0, 'n')?, u32::from(words.name(1, 'p')?));
                let wish = match words.value("wish") {
                    Some(wish) => range(wish)?,
                    None => PageRange::one(PageIndex(page)),
                };
                self.access(node, page, verb == "write", wish);
            }
            "prefetch" => {
                let wish = range(words.at(1)?)?;
                self.cluster.prefetch(words.name(0, 'n')?, wish, words.has("write"), !words.has("guess"));
            }
            "deliver" => self.deliver(&words)?,
            "resume" => self.cluster.resume(words.name(0, 'n')?, u32::from(words.name(1, 'p')?)),
            "state" => self.state(),
            _ => return Err("there is no such command".to_string()),
        }
        self.look();
        Ok(std::mem::take(&mut self.cluster.log))
    }

    fn left_over(&self) -> Vec<String> {
        let mut left: Vec<String> = self
            .cluster
            .under_way
            .iter()
            .map(|envelope| format!("`{}` is under way", words::message(&envelope.message)))
            .collect();
        for (node, waiting) in self.cluster.waiting.iter().enumerate() {
            left.extend(waiting.iter().map(|waiting| format!("n{node} waits for p{}", waiting.page)));
        }
        left.extend(self.cluster.wanted.iter().map(|(node, page)| format!("n{node} still holds p{page}")));
        left
    }
}

fn range(text: &str) -> Result<PageRange, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let parse = |number: &str| number.parse::<u32>().map_err(|_| format!("`{text}` is no run of pages"));
    let (first, last) = (parse(first)?, parse(last)?);
    PageRange::new(PageIndex(first), (last + 1).saturating_sub(first)).ok_or_else(|| format!("`{text}` is no run"))
}
