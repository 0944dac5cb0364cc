//! The server side, which has the switch.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::messages::{self, Answer, Description, PageCount, PageRedirect, PortDescription, Request, TIMEOUT};
use crate::address::Page;
use crate::entries::Rule;
use crate::error::SwitchError;
use crate::observed::{Event, HotPage};
use crate::switch::Switch;
use trellis_output::json_lines::Lines;
use trellis_output::refusals::Refusals;
use trellis_output::sockets;

/// The maximum number of events that wait for a connection.
pub const EVENTS_MAX: usize = 65_536;
/// The refusal while there is no switch.
const AWAY: &str = "the switch is being started again; ask it once more in a moment";
/// The maximum number of page counts that wait for a connection.
const PAGES_MAX: usize = 65_536;

/// A switch that is served; the module's text is the contract.
pub struct ControlServer {
    /// The switch and its boot id; `None` while it is being restarted.
    switch: RwLock<Option<(Arc<dyn Switch>, u64)>>,
    ports: Vec<PortDescription>,
    refusals: Refusals,
    next: AtomicU64,
    /// What each connection has not fetched yet, by its number.
    waiting: Mutex<BTreeMap<u64, Waiting>>,
}

/// What a connection has not fetched yet. It is collected from the connection's first request for it on.
#[derive(Default)]
struct Waiting {
    events: Option<VecDeque<Event>>,
    /// By page and port.
    pages: Option<HashMap<(Page, u16), u64>>,
}

/// The answer to a request that is refused before it reaches the switch.
fn refused(sentence: String) -> Answer {
    Answer::Refused { is_full: false, sentence }
}

impl ControlServer {
    /// A switch and its hosts; `boot_id` is a random boot id from its starter.
    #[must_use]
    pub fn new(
        switch: Arc<dyn Switch>,
        ports: Vec<PortDescription>,
        boot_id: u64,
        refusals: Refusals,
    ) -> Arc<ControlServer> {
        let switch = RwLock::new(Some((switch, boot_id)));
        Arc::new(ControlServer { switch, ports, refusals, next: AtomicU64::new(0), waiting: Mutex::default() })
    }

    /// Serves a connection on a thread of its own, until it is closed.
    ///
    /// # Errors
    ///
    /// When the system does not identify the peer, or provides no thread. Another user's process is refused.
    pub fn serve(self: &Arc<ControlServer>, stream: UnixStream) -> io::Result<()> {
        let (_, user) = sockets::peer(&stream)?;
        if user != sockets::own_user() && user != 0 {
            let owner = sockets::own_user();
            let sentence = format!("user {user} may not use this switch; ask as its owner, user {owner}, or as root");
            return self.refusals.refuse(&mut Lines::new(stream, TIMEOUT.time())?, sentence, refused);
        }
        let spare = stream.try_clone()?;
        let lines = Lines::new(stream, TIMEOUT.time())?;
        let server = Arc::clone(self);
        let thread = std::thread::Builder::new().name("switch control".to_owned());
        thread.spawn(move || server.converse(lines)).map(drop).or_else(|error| {
            let sentence = format!("the switch cannot start a thread for the request ({error}); ask again");
            self.refusals.refuse(&mut Lines::new(spare, TIMEOUT.time())?, sentence, refused)
        })
    }

    /// The number of requests that were refused before they reached the switch.
    pub fn refused(&self) -> u64 {
        self.refusals.count()
    }

    /// Releases the switch; when this returns, no request uses it any more. Until there is another one, all requests are
    /// refused.
    pub fn stop(&self) {
        *self.switch.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Continues with another switch, with a new boot id, at the same ports.
    pub fn go_on(&self, switch: Arc<dyn Switch>, boot_id: u64) {
        let mut held = self.switch.write().unwrap_or_else(PoisonError::into_inner);
        *held = Some((switch, boot_id));
        // These observations were made by the previous switch.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn describe(&self, switch: &dyn Switch, boot_id: u64) -> Description {
        Description {
            name: switch.name().to_owned(),
            boot_id,
            cluster: switch.cluster().number(),
            capabilities: switch.capabilities(),
            ports: self.ports.clone(),
        }
    }

    fn converse(&self, mut lines: Lines) {
        let me = self.next.fetch_add(1, Ordering::Relaxed);
        // A peer that sends an invalid request, or is gone, is not answered any more.
        let mut known = None;
        while let Ok(Some(request)) = self.refusals.receive(&mut lines, refused) {
            let held = self.switch.read().unwrap_or_else(PoisonError::into_inner);
            let answer = match &*held {
                None => Answer::Refused { is_full: false, sentence: AWAY.to_owned() },
                // What was sent on this connection was sent to an earlier switch.
                Some((_, boot_id)) if known.replace(*boot_id).is_some_and(|known| known != *boot_id) => {
                    Answer::Began(*boot_id)
                }
                Some((switch, boot_id)) => self
                    .answer(&**switch, *boot_id, me, request)
                    .unwrap_or_else(|error| Answer::Refused { is_full: error.is_full(), sentence: error.to_string() }),
            };
            drop(held);
            if lines.send(&answer).is_err() {
                break;
            }
        }
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&me);
    }

    fn answer(&self, switch: &dyn Switch, boot_id: u64, me: u64, request: Request) -> Result<Answer, SwitchError> {
        let name = switch.name();
        let done = |()| Answer::Done;
        match request {
            Request::Describe => Ok(Answer::Description(self.describe(switch, boot_id))),
            Request::SetPrefix { prefix, port, is_memory } => {
                switch.set_prefix(messages::prefix(name, &prefix)?, messages::route(port, is_memory)).map(done)
            }
            Request::DropPrefix(prefix) => switch.drop_prefix(messages::prefix(name, &prefix)?).map(Answer::Is),
            Request::SetPageRoute { range, port } => switch.set_page_route(range.range(name)?, port).map(done),
            Request::DropPageRoute(range) => switch.drop_page_route(range.range(name)?).map(Answer::Is),
            Request::PageRoutes(home) => {
                let ranges = switch.page_routes(home)?;
                Ok(Answer::PageRoutes(ranges.into_iter().map(|(range, port)| (range.into(), port)).collect()))
            }
            Request::SetRedirect(redirect) => {
                let (page, redirect) = redirect.parts();
                switch.set_redirect(page, redirect).map(Answer::Is)
            }
            Request::DropRedirect { page, epoch } => switch.drop_redirect(page.into(), epoch).map(Answer::Is),
            Request::Redirect(page) => {
                let page = page.into();
                let redirect = switch.redirect(page)?;
                Ok(Answer::Redirect(redirect.map(|redirect| PageRedirect::new(page, &redirect))))
            }
            Request::Sweep => switch.sweep().map(Answer::Count),
            Request::SetGroup { prefix, classes, ports } => {
                switch.set_group(&messages::group(name, &prefix, classes, ports)?).map(done)
            }
            Request::SetRules(rules) => {
                let rules: Option<Vec<Rule>> = rules.map(|rules| rules.into_iter().map(Rule::from).collect());
                switch.set_rules(rules.as_deref()).map(done)
            }
            Request::SetLeases { microseconds } => switch.set_leases(microseconds.map(Duration::from_micros)).map(done),
            Request::SetSide { port, side } => switch.set_side(port, side).map(done),
            Request::SetFaults(text) => {
                let faults = text.parse().map_err(|what| SwitchError::Refused { switch: name, what })?;
                switch.set_faults(&faults).map(done)
            }
            Request::Counters(port) => Ok(Answer::Counters(switch.counters(port)?.values().to_vec())),
            Request::HotPages(count) => self.hot_pages(switch, me, count),
            Request::Events => self.events(switch, me),
        }
    }

    /// Adds what the switch has counted since the last call to every waiting connection.
    fn hot_pages(&self, switch: &dyn Switch, me: u64, count: usize) -> Result<Answer, SwitchError> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.entry(me).or_default().pages.get_or_insert_default();
        let counted = switch.hot_pages(PAGES_MAX)?;
        for pages in waiting.values_mut().filter_map(|waiting| waiting.pages.as_mut()) {
            for (page, port, requests) in counted.iter().flat_map(by_port) {
                if pages.len() < PAGES_MAX || pages.contains_key(&(page, port)) {
                    *pages.entry((page, port)).or_insert(0) += requests;
                }
            }
        }
        let mine = waiting.get_mut(&me).and_then(|waiting| waiting.pages.as_mut()).map(std::mem::take);
        let mine = mine.unwrap_or_default().into_iter().map(|((page, port), requests)| (page, port, requests));
        Ok(Answer::Pages(crate::switches::hottest(mine, count).into_iter().map(PageCount::from).collect()))
    }

    /// Like [`ControlServer::hot_pages`], for events.
    fn events(&self, switch: &dyn Switch, me: u64) -> Result<Answer, SwitchError> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.entry(me).or_default().events.get_or_insert_default();
        let new = switch.events()?;
        for events in waiting.values_mut().filter_map(|waiting| waiting.events.as_mut()) {
            events.extend(&new);
            events.drain(..events.len().saturating_sub(EVENTS_MAX));
        }
        let mine = waiting.get_mut(&me).and_then(|waiting| waiting.events.as_mut()).map(std::mem::take);
        Ok(Answer::Events(mine.iter().flatten().map(Into::into).collect()))
    }
}

/// A page with each port and its requests; port 0 if none is known.
fn by_port(hot: &HotPage) -> Vec<(Page, u16, u64)> {
    match hot.by_port.is_empty() {
        true => vec![(hot.page, 0, hot.requests)],
        false => hot.by_port.iter().map(|&(port, requests)| (hot.page, port, requests)).collect(),
    }
}
