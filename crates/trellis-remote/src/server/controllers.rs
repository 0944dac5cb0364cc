//! Selects the controller to which a server reports: one of several, and the next one when that does not answer.

use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::Host;

/// See the top of this file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Controllers {
    hosts: Vec<Host>,
    current: usize,
    /// The time of the first unanswered report.
    asked: Option<Nanoseconds>,
    /// How long an answer is waited for.
    timeout: Nanoseconds,
}

impl Controllers {
    /// For these controllers, with this time limit for each.
    pub(super) fn new(hosts: Vec<Host>, timeout: Nanoseconds) -> Controllers {
        Controllers { hosts, current: 0, asked: None, timeout }
    }

    /// Whether a host is a controller.
    pub(super) fn has(&self, host: Host) -> bool {
        self.hosts.contains(&host)
    }

    /// The controller to report to now, and the one that did not answer if that is news.
    pub(super) fn report(&mut self, now: Nanoseconds) -> Option<(Host, Option<Host>)> {
        let before = *self.hosts.get(self.current)?;
        match self.asked {
            Some(since) if now >= since + self.timeout => {
                self.current = (self.current + 1) % self.hosts.len();
                self.asked = Some(now);
            }
            Some(_) => {}
            None => self.asked = Some(now),
        }
        let host = self.hosts[self.current];
        Some((host, (host != before).then_some(before)))
    }

    /// Records that this controller was heard.
    pub(super) fn heard(&mut self, host: Host) {
        if let Some(place) = self.hosts.iter().position(|known| *known == host) {
            (self.current, self.asked) = (place, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_is_asked_when_one_is_silent() {
        let mut controllers = Controllers::new(vec![Host(200), Host(201), Host(202)], 100);
        assert_eq!(controllers.report(5), Some((Host(200), None)));
        assert_eq!(controllers.report(104), Some((Host(200), None)));
        assert_eq!(controllers.report(105), Some((Host(201), Some(Host(200)))));
        assert_eq!(controllers.report(205), Some((Host(202), Some(Host(201)))));
        controllers.heard(Host(202));
        assert_eq!(controllers.report(1000), Some((Host(202), None)), "what was answered begins again");
        controllers.heard(Host(201));
        assert_eq!(controllers.report(1001), Some((Host(201), None)), "who says something is the one");
        controllers.heard(Host(7));
        assert_eq!((controllers.has(Host(7)), controllers.has(Host(200))), (false, true));
        let mut one = Controllers::new(vec![Host(200)], 100);
        assert_eq!((one.report(0), one.report(900)), (Some((Host(200), None)), Some((Host(200), None))));
        assert_eq!(Controllers::new(Vec::new(), 1).report(0), None);
    }
}
