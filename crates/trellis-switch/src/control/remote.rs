//! The client side: uses a switch of another process.

use std::fmt;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use trellis_output::sockets::connect_path;

use super::messages::{self, Answer, Description, EventText, PageRedirect, Request, TIMEOUT};
use crate::address::{Cluster, Page, PageRange, Prefix};
use crate::capabilities::Capabilities;
use crate::entries::{Group, Redirect, Route, Rule};
use crate::error::SwitchError;
use crate::faults::Faults;
use crate::observed::{Counters, Event, HotPage};
use crate::switch::Switch;
use crate::switches;
use trellis_output::json_lines::Lines;

/// The place of a switch's socket.
#[derive(Debug)]
pub enum At {
    /// In the file system.
    Path(PathBuf),
    /// A connection that this process inherited: when it is closed, there is no other. It outlives the switch if the
    /// process at its other end does.
    Given(OwnedFd),
}

impl At {
    /// `fd:N` is a connection that this process inherited; anything else is a path.
    ///
    /// # Errors
    ///
    /// A message if the number is not that of an open file.
    pub fn parse(text: &str) -> Result<At, String> {
        let Some(number) = text.strip_prefix("fd:") else { return Ok(At::Path(PathBuf::from(text))) };
        let wrong = || format!("`{text}` is no connection to a switch; give the path of its socket");
        let number: RawFd = number.parse().map_err(|_| wrong())?;
        crate::sys::inherited(number).map(At::Given).map_err(|_| wrong())
    }
}

/// A switch of another process.
pub struct Remote {
    at: String,
    path: Option<PathBuf>,
    description: Description,
    kind: &'static str,
    boot_id: AtomicU64,
    lines: Mutex<Option<Lines>>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the switch {} at {}", self.kind, self.at)
    }
}

impl Remote {
    /// Connects, and asks for the description.
    ///
    /// # Errors
    ///
    /// When no process listens there or answers.
    pub fn open(at: At) -> Result<Remote, SwitchError> {
        let (name, path, stream) = match at {
            At::Path(path) => {
                let name = path.display().to_string();
                let stream = connect_path(&path, TIMEOUT.time()).map_err(|error| gone(&name, &error))?;
                (name, Some(path), stream)
            }
            At::Given(descriptor) => ("the connection that it was given".to_owned(), None, descriptor.into()),
        };
        let mut lines = connected(stream).map_err(|error| gone(&name, &error))?;
        let description = describe(&mut lines).map_err(|error| gone(&name, &error))?;
        let kind = switches::kind(&description.name).map_or("of another version", |kind| kind.name);
        let boot_id = AtomicU64::new(description.boot_id);
        Ok(Remote { at: name, path, description, kind, boot_id, lines: Mutex::new(Some(lines)) })
    }

    /// The description at the time of opening.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The boot id of the switch at the last request: after a change, the switch knows nothing that it was sent before.
    #[must_use]
    pub fn boot_id(&self) -> u64 {
        self.boot_id.load(Ordering::Relaxed)
    }

    /// If this returns an error, nothing was done.
    fn ask(&self, request: &Request) -> Result<Answer, SwitchError> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match self.ask_on(&mut lines, request) {
            Ok(answer) => answer,
            Err(error) => {
                // A connection with a partly sent message cannot be continued.
                *lines = None;
                return Err(gone(&self.at, &error));
            }
        };
        match answer {
            Answer::Refused { is_full, sentence } => Err(SwitchError::Remote { is_full, sentence }),
            Answer::Began(boot_id) => {
                self.boot_id.store(boot_id, Ordering::Relaxed);
                let sentence =
                    format!("the switch at {} was started again and knows nothing; tell it everything again", self.at);
                Err(SwitchError::Remote { is_full: false, sentence })
            }
            answer => Ok(answer),
        }
    }

    fn ask_on(&self, place: &mut Option<Lines>, request: &Request) -> io::Result<Answer> {
        let lines = match place {
            Some(lines) => lines,
            None => {
                let path = self.path.as_ref().ok_or(io::ErrorKind::NotConnected)?;
                let mut lines = connected(connect_path(path, TIMEOUT.time())?)?;
                self.boot_id.store(describe(&mut lines)?.boot_id, Ordering::Relaxed);
                place.insert(lines)
            }
        };
        ask(lines, request)
    }

    fn done(&self, request: &Request) -> Result<(), SwitchError> {
        match self.ask(request)? {
            Answer::Done => Ok(()),
            other => Err(self.misunderstood(&other)),
        }
    }

    fn is(&self, request: &Request) -> Result<bool, SwitchError> {
        match self.ask(request)? {
            Answer::Is(is) => Ok(is),
            other => Err(self.misunderstood(&other)),
        }
    }

    fn misunderstood(&self, answer: &Answer) -> SwitchError {
        let word = format!("{answer:?}");
        let word: String = word.chars().take_while(char::is_ascii_alphanumeric).collect();
        SwitchError::Remote {
            is_full: false,
            sentence: format!("the switch at {} answers {word}; it is of another version: start it again", self.at),
        }
    }
}

fn connected(stream: UnixStream) -> io::Result<Lines> {
    Ok(Lines::new(stream, TIMEOUT.time())?.limiting_silence(TIMEOUT.time()))
}

fn ask(lines: &mut Lines, request: &Request) -> io::Result<Answer> {
    lines.ask(request)
}

fn describe(lines: &mut Lines) -> io::Result<Description> {
    match ask(lines, &Request::Describe)? {
        Answer::Description(description) => Ok(description),
        Answer::Refused { sentence, .. } => Err(io::Error::other(sentence)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn gone(at: &str, error: &io::Error) -> SwitchError {
    let hint = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "start it with `trellis switch run`",
        io::ErrorKind::PermissionDenied => "the socket is its owner's",
        _ => "look whether it runs, and whether it belongs to the same user",
    };
    SwitchError::System { attempt: format!("ask the switch at {at}"), cause: error.to_string(), hint: hint.to_owned() }
}

impl Switch for Remote {
    fn name(&self) -> &'static str {
        self.kind
    }

    fn capabilities(&self) -> Capabilities {
        self.description.capabilities
    }

    fn cluster(&self) -> Cluster {
        Cluster::new(self.description.cluster)
    }

    fn set_prefix(&self, prefix: Prefix, route: Route) -> Result<(), SwitchError> {
        let Route { port, is_memory } = route;
        self.done(&Request::SetPrefix { prefix: prefix.to_string(), port, is_memory })
    }

    fn drop_prefix(&self, prefix: Prefix) -> Result<bool, SwitchError> {
        self.is(&Request::DropPrefix(prefix.to_string()))
    }

    fn set_page_route(&self, range: PageRange, port: u16) -> Result<(), SwitchError> {
        self.done(&Request::SetPageRoute { range: range.into(), port })
    }

    fn drop_page_route(&self, range: PageRange) -> Result<bool, SwitchError> {
        self.is(&Request::DropPageRoute(range.into()))
    }

    fn page_routes(&self, home: u16) -> Result<Vec<(PageRange, u16)>, SwitchError> {
        match self.ask(&Request::PageRoutes(home))? {
            Answer::PageRoutes(ranges) => {
                ranges.into_iter().map(|(range, port)| Ok((range.range(self.kind)?, port))).collect()
            }
            other => Err(self.misunderstood(&other)),
        }
    }

    fn set_redirect(&self, page: Page, redirect: Redirect) -> Result<bool, SwitchError> {
        self.is(&Request::SetRedirect(PageRedirect::new(page, &redirect)))
    }

    fn drop_redirect(&self, page: Page, epoch: u64) -> Result<bool, SwitchError> {
        self.is(&Request::DropRedirect { page: page.into(), epoch })
    }

    fn redirect(&self, page: Page) -> Result<Option<Redirect>, SwitchError> {
        match self.ask(&Request::Redirect(page.into()))? {
            Answer::Redirect(redirect) => Ok(redirect.map(|redirect| redirect.parts().1)),
            other => Err(self.misunderstood(&other)),
        }
    }

    fn sweep(&self) -> Result<u32, SwitchError> {
        match self.ask(&Request::Sweep)? {
            Answer::Count(count) => Ok(count),
            other => Err(self.misunderstood(&other)),
        }
    }

    fn set_group(&self, group: &Group) -> Result<(), SwitchError> {
        let Group { prefix, classes, ports } = group;
        let (prefix, classes, ports) = (prefix.to_string(), classes.bits(), ports.clone());
        self.done(&Request::SetGroup { prefix, classes, ports })
    }

    fn set_rules(&self, rules: Option<&[Rule]>) -> Result<(), SwitchError> {
        self.done(&Request::SetRules(rules.map(|rules| rules.iter().map(|rule| (*rule).into()).collect())))
    }

    fn set_leases(&self, term: Option<Duration>) -> Result<(), SwitchError> {
        let microseconds = term.map(|term| u64::try_from(term.as_micros()).unwrap_or(u64::MAX));
        self.done(&Request::SetLeases { microseconds })
    }

    fn set_side(&self, port: u16, side: u32) -> Result<(), SwitchError> {
        self.done(&Request::SetSide { port, side })
    }

    fn set_faults(&self, faults: &Faults) -> Result<(), SwitchError> {
        self.done(&Request::SetFaults(faults.to_string()))
    }

    fn counters(&self, port: u16) -> Result<Counters, SwitchError> {
        let answer = self.ask(&Request::Counters(port))?;
        let counters = match &answer {
            Answer::Counters(values) => messages::counters(values),
            _ => None,
        };
        counters.ok_or_else(|| self.misunderstood(&answer))
    }

    fn hot_pages(&self, count: usize) -> Result<Vec<HotPage>, SwitchError> {
        match self.ask(&Request::HotPages(count))? {
            Answer::Pages(pages) => Ok(pages.into_iter().map(HotPage::from).collect()),
            other => Err(self.misunderstood(&other)),
        }
    }

    fn events(&self) -> Result<Vec<Event>, SwitchError> {
        match self.ask(&Request::Events)? {
            Answer::Events(events) => Ok(events.into_iter().filter_map(EventText::event).collect()),
            other => Err(self.misunderstood(&other)),
        }
    }
}
