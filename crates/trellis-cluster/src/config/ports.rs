//! The ports at which nodes listen, where a firewall lets only some of them through.

use std::fmt;
use std::io::{self, ErrorKind};
use std::str::FromStr;

/// Ports from the first to the last; the kernel chooses one if both are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// The lowest one.
    pub first: u16,
    /// The highest one.
    pub last: u16,
}

impl Ports {
    /// Binds to the first port that is free.
    ///
    /// # Errors
    ///
    /// That of the last attempt, if no port is free, or another error than that a port is taken.
    pub fn bind<T>(self, mut bind: impl FnMut(u16) -> io::Result<T>) -> io::Result<T> {
        let mut refused = None;
        for port in self.first..=self.last {
            match bind(port) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => refused = Some(error),
                done => return done,
            }
        }
        Err(refused.unwrap_or_else(|| ErrorKind::AddrInUse.into()))
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ports { first: 0, .. } => write!(formatter, "any"),
            Ports { first, last } if first == last => write!(formatter, "{first}"),
            Ports { first, last } => write!(formatter, "{first}-{last}"),
        }
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Ports, String> {
        if text == "any" {
            return Ok(Ports::default());
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Ports { first, last }),
            _ => Err(format!("`{text}` is no range of ports; accepted: any, or such as 7000-7099")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_range_is_read_and_shown() {
        for text in ["any", "7000-7099", "7000", "1-65535"] {
            assert_eq!(text.parse::<Ports>().map(|ports| ports.to_string()), Ok(text.to_owned()));
        }
        for wrong in ["", "0", "7100-7000", "x", "7000-", "7000-70000", "0-9"] {
            assert!(wrong.parse::<Ports>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_first_free_port_is_taken() {
        let any = Ports::default().bind(|port| TcpListener::bind(("127.0.0.1", port))).expect("a port is free");
        let taken = any.local_addr().expect("it is bound").port();
        let only = Ports { first: taken, last: taken };
        let refused = only.bind(|port| TcpListener::bind(("127.0.0.1", port))).map(|_| ());
        assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::AddrInUse));
        let tried = Ports { first: 7, last: 9 }.bind(|port| match port {
            9 => Ok(port),
            _ => Err(ErrorKind::AddrInUse.into()),
        });
        assert_eq!(tried.expect("the last one is free"), 9);
        let denied: io::Result<()> = Ports { first: 7, last: 9 }.bind(|_| Err(ErrorKind::PermissionDenied.into()));
        assert_eq!(denied.map_err(|error| error.kind()), Err(ErrorKind::PermissionDenied));
    }
}
