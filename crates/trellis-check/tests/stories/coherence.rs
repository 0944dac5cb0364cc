//! The commands of scripts about pages.

use super::{Story, Words, named, range};
use trellis_check::model::{Driven, Envelope, Outcome};
use trellis_cluster_protocol::coherence::{Protocol, Purpose};
use trellis_cluster_protocol::homes::{Home, Interleaved, Manager};
use trellis_cluster_protocol::{Access, NodeId, PageIndex, PageRange};

pub(crate) struct Script {
    protocol: Protocol,
    nodes: u16,
    pages: u32,
    cluster: Driven,
}

impl Script {
    pub(crate) fn new(protocol: Protocol) -> Script {
        let cluster = Driven::new(protocol, Home::Interleaved(Interleaved), 1, 1, 1);
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
        if let Some(protocol) = words.rest("protocol") {
            self.protocol = protocol.parse().map_err(|error| format!("{error}"))?;
        }
        self.cluster = Driven::new(self.protocol, home, self.nodes, self.pages, 1);
        Ok(())
    }

    fn access(&mut self, node: u16, page: u32, write: bool, wanted: PageRange) {
        let line = match self.cluster.access(node, page, write) {
            Outcome::Loaded(value) => format!("n{node} loads {value} from p{page}"),
            Outcome::Stored(value) => format!("n{node} stores {value} to p{page}"),
            Outcome::Faulted => return self.cluster.fault(node, 0, page, write, wanted),
        };
        self.tell(line);
    }

    fn tell(&mut self, line: String) {
        self.cluster.story.get_or_insert_default().push(line);
    }

    /// Woken threads retry, until none is left.
    fn look(&mut self) {
        for node in 0..self.nodes {
            let waiting = &self.cluster.waiting[usize::from(node)];
            if let Some(index) = waiting.iter().position(|waiting| waiting.woken) {
                let waiting = self.cluster.take_woken(node, index);
                self.access(node, waiting.page, waiting.write, waiting.wanted);
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
        self.cluster.deliver(named(words, &self.cluster.under_way, |message| message.name())?);
        Ok(())
    }

    /// Time passes; alarms expire when they are due.
    fn wait(&mut self, time: u64) {
        let end = self.cluster.now + time;
        let next = |cluster: &Driven| cluster.alarms().into_iter().map(|(alarm, due)| (due, alarm)).min();
        while let Some((due, alarm)) = next(&self.cluster).filter(|&(due, _)| due <= end) {
            self.cluster.now = self.cluster.now.max(due);
            self.cluster.alarm(alarm);
            self.look();
        }
        self.cluster.now = end;
    }

    fn state(&mut self) {
        for node in 0..self.nodes {
            let mut line = format!("n{node}:");
            for page in 0..self.pages {
                let value = self.cluster.value(node, page).map_or("?".into(), |value| value.to_string());
                line += &match self.cluster.view(node, page) {
                    Access::None => format!(" p{page} -"),
                    Access::Read => format!(" p{page} reads {value}"),
                    Access::Write => format!(" p{page} writes {value}"),
                };
                if self.cluster.is_locked(node, page) {
                    line += ", locked";
                }
            }
            self.tell(line);
        }
        let under_way = self.cluster.under_way.clone();
        for Envelope { from, to, message } in under_way {
            self.tell(format!("under way n{from}->n{to}: {message}"));
        }
    }
}

impl Story for Script {
    fn command(&mut self, line: &str) -> Result<Vec<String>, String> {
        let (verb, words) = Words::of(line);
        self.cluster.story = Some(Vec::new());
        match verb {
            "cluster" => self.start(&words)?,
            "read" | "write" => {
                let (node, page) = (words.name(0, 'n')?, u32::from(words.name(1, 'p')?));
                let wanted = match words.value("wanted") {
                    Some(wanted) => range(wanted)?,
                    None => PageRange::one(PageIndex(page)),
                };
                self.access(node, page, verb == "write", wanted);
            }
            "prefetch" => {
                let wanted = range(words.at(1)?)?;
                self.cluster.prefetch(words.name(0, 'n')?, wanted, words.has("write"), !words.has("guess"));
            }
            "deliver" => self.deliver(&words)?,
            "resume" => self.cluster.resume(words.name(0, 'n')?, u32::from(words.name(1, 'p')?)),
            "state" => self.state(),
            "lock" => {
                let stay = words.value("stay").map(time).transpose()?;
                self.cluster.lock(words.name(0, 'n')?, range(words.at(1)?)?, stay);
            }
            "unlock" => {
                let (node, range) = (words.name(0, 'n')?, range(words.at(1)?)?);
                // The oldest call; the program does not know if it has ended by itself.
                let number = match words.value("call") {
                    Some(_) => words.number("call")? as u32,
                    None => {
                        let mut calls = self.cluster.calls.iter();
                        let call = calls.find(|call| call.node == node && call.range == range);
                        call.ok_or("there is no such call; call=1 names one that has ended")?.number
                    }
                };
                self.cluster.unlock(node, range, number);
            }
            "alarm" => {
                let (node, page) = (words.name(0, 'n')?, u32::from(words.name(1, 'p')?));
                self.cluster.alarm((node, page, purpose(words.at(2)?)?));
            }
            "wait" => self.wait(time(words.at(0)?)?),
            "gone" => self.cluster.gone(words.name(0, 'n')?, words.name(1, 'n')?),
            _ => return Err("there is no such command".to_string()),
        }
        self.look();
        assert_eq!(self.cluster.problem, None);
        Ok(self.cluster.story.take().unwrap_or_default())
    }

    fn left_over(&self) -> Vec<String> {
        let mut left: Vec<String> =
            self.cluster.under_way.iter().map(|envelope| format!("`{}` is under way", envelope.message)).collect();
        for (node, waiting) in self.cluster.waiting.iter().enumerate() {
            left.extend(waiting.iter().map(|waiting| format!("n{node} waits for p{}", waiting.page)));
        }
        for call in &self.cluster.calls {
            left.push(format!(
                "n{} {} {}",
                call.node,
                if call.has_all { "has locked" } else { "waits for" },
                call.range
            ));
        }
        left.extend(self.cluster.wanted().iter().map(|(node, page)| format!("n{node} still holds p{page}")));
        left
    }
}

fn purpose(word: &str) -> Result<Purpose, String> {
    let all = [Purpose::Retry, Purpose::Expiry, Purpose::Threshold];
    all.into_iter().find(|&purpose| purpose.to_string() == word).ok_or_else(|| format!("`{word}` is no purpose"))
}

/// `500us`, in nanoseconds.
fn time(text: &str) -> Result<u64, String> {
    let microseconds = text.strip_suffix("us").and_then(|number| number.parse::<u64>().ok());
    microseconds.map(|number| number * 1000).ok_or_else(|| format!("`{text}` is not a number of microseconds"))
}
