//! The address of a server of the Redis protocol, and its credentials.

use std::path::PathBuf;

use crate::error::StoreError;
use crate::stores::address as no_address;

const PORT: u16 = 6379;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A host (name or IP address) and a port.
    Tcp(String, u16),
    /// A socket on this machine.
    Unix(PathBuf),
}

/// The address of a server, and its credentials.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// The form that messages show.
    pub(super) shown: String,
    pub(super) place: Place,
    /// User and password.
    pub(super) credentials: Option<(String, String)>,
    pub(super) database: u32,
}

impl Address {
    /// Parses what follows `redis://`.
    pub(super) fn tcp(url: &str, rest: &str) -> Result<Address, StoreError> {
        if let Some((_, question)) = rest.split_once('?') {
            return Err(no_address(url, &format!("after `?` only `deadline=SECONDS` is known, not `{question}`")));
        }
        let (authority, database) = match rest.split_once('/') {
            Some((authority, database)) => (authority, database),
            None => (rest, ""),
        };
        let database = match database {
            "" => 0,
            number => number.parse().map_err(|_| no_address(url, "a database of Redis is a number"))?,
        };
        let (credentials, host) = match authority.rsplit_once('@') {
            Some((credentials, host)) => (Some(credentials), host),
            None => (None, authority),
        };
        let credentials = credentials.map(|text| credentials_of(url, text)).transpose()?;
        let (host, port) = host_and_port(url, host)?;
        let shown = format!("redis://{}:{port}{}", host_shown(&host), database_shown(database));
        Ok(Address { shown, place: Place::Tcp(host, port), credentials, database })
    }

    /// Parses what follows `redis+unix:`.
    pub(super) fn unix(url: &str, path: &str) -> Result<Address, StoreError> {
        let path = path.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(path);
        if !path.starts_with('/') {
            return Err(no_address(url, "a socket needs its whole path"));
        }
        let shown = format!("redis+unix:{path}");
        Ok(Address { shown, place: Place::Unix(path.into()), credentials: None, database: 0 })
    }
}

fn host_shown(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

fn database_shown(database: u32) -> String {
    if database == 0 { String::new() } else { format!("/{database}") }
}

fn credentials_of(url: &str, text: &str) -> Result<(String, String), StoreError> {
    let decoded = |text: &str| decoded(text).ok_or_else(|| no_address(url, "a % in a password is written %25"));
    match text.split_once(':') {
        Some((user, password)) => {
            let user = if user.is_empty() { "default".to_owned() } else { decoded(user)? };
            Ok((user, decoded(password)?))
        }
        None => Err(no_address(url, "before the @ stands USER:PASSWORD, or :PASSWORD")),
    }
}

fn host_and_port(url: &str, text: &str) -> Result<(String, u16), StoreError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(|| no_address(url, "the `]` is missing"))?;
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    if host.is_empty() {
        return Err(no_address(url, "it names no host"));
    }
    let port = match port {
        "" => PORT,
        port => port.parse().map_err(|_| no_address(url, "a port is a number up to 65535"))?,
    };
    Ok((host.to_owned(), port))
}

/// Decodes percent-encoded text (`%41` is `A`).
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        rest = others;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, others) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = others;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_parts() {
        let address = |rest| Address::tcp("url", rest).unwrap();
        let plain = address("host");
        assert_eq!((plain.place, plain.database), (Place::Tcp("host".to_owned(), 6379), 0));
        let all = address("me:a%40b:c@[::1]:7/12");
        assert_eq!(all.place, Place::Tcp("::1".to_owned(), 7));
        assert_eq!(all.credentials, Some(("me".to_owned(), "a@b:c".to_owned())));
        assert_eq!((all.shown.as_str(), all.database), ("redis://[::1]:7/12", 12));
        assert_eq!(address(":secret@h").credentials, Some(("default".to_owned(), "secret".to_owned())));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for rest in ["", ":6379", "host:port", "host:99999", "host/db", "user@host", ":%zz@host", "[::1"] {
            assert!(Address::tcp("url", rest).is_err(), "{rest}");
        }
        assert!(Address::unix("url", "relative").is_err());
        assert_eq!(Address::unix("url", "///a").unwrap().place, Place::Unix("/a".into()));
    }
}
