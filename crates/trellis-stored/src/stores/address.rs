//! Addresses of memory servers: `memory-server:PREFIX,PREFIX?prefix=PREFIX&object=SIZE`.
//!
//! Promises: an invalid address is refused with the accepted forms, and nothing is contacted. It must never guess the
//! addresses of this host: the address or the environment gives them.

use std::time::Duration;

use trellis_store::StoreError;

use super::{MEMORY_SERVER, MEMORY_SERVER_FORMS};
use crate::settings::bytes_of_text;
use trellis_remote::pages::{OBJECT_BYTES_UNIT, PagesOptions};
use trellis_remote::{ClientOptions, Host, HostPrefix};

/// The default size of an object in bytes: large enough to keep the number of objects low, and not too large for a
/// small program.
const OBJECT_BYTES: u64 = 64 << 20;
const OBJECT_BYTES_MAX: u64 = 1 << 40;
/// The maximum number of servers. A region is distributed over all of them.
const SERVERS_MAX: usize = 256;

/// The text after the `:` if an address names memory servers.
pub(super) fn rest(url: &str) -> Option<&str> {
    url.strip_prefix(MEMORY_SERVER)?.strip_prefix(':')
}

/// Parses an address; `own` is this host's prefix as the environment gives it.
pub(super) fn parse(url: &str, rest: &str, own: Option<&str>) -> Result<PagesOptions, StoreError> {
    let refused =
        |reason: String| StoreError::Address { url: url.to_owned(), reason, accepted: MEMORY_SERVER_FORMS.to_owned() };
    let (servers, options) = rest.split_once('?').unwrap_or((rest, ""));
    let given = Given::read(options).map_err(refused)?;
    let prefix = given.prefix.or(own.filter(|own| !own.is_empty())).ok_or_else(|| {
        refused("the addresses of this host are not known; add ?prefix=PREFIX, or set TRELLIS_PREFIX".to_owned())
    })?;
    let prefix = prefix_of(prefix).map_err(|reason| refused(format!("the addresses of this host: {reason}")))?;
    let homes = homes(servers, prefix).map_err(refused)?;
    let client = ClientOptions::new(prefix);
    let client = ClientOptions {
        port: given.port.unwrap_or(client.port),
        deadline: given.deadline.unwrap_or(client.deadline),
        piece_bytes: given.piece_bytes.unwrap_or(client.piece_bytes),
        ..client
    };
    Ok(PagesOptions { client, homes, object_bytes: given.object_bytes.unwrap_or(OBJECT_BYTES) })
}

/// The options after the `?`.
#[derive(Default)]
struct Given<'a> {
    prefix: Option<&'a str>,
    object_bytes: Option<u64>,
    piece_bytes: Option<u32>,
    deadline: Option<Duration>,
    port: Option<u16>,
}

impl<'a> Given<'a> {
    fn read(options: &'a str) -> Result<Given<'a>, String> {
        let mut given = Given::default();
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let wrong = |right: &str| format!("{name}={value} is not possible; {right}");
            match name {
                "prefix" => given.prefix = Some(value),
                "object" => {
                    let bytes = bytes_of_text(value).and_then(|bytes| u64::try_from(bytes).ok());
                    let fits = |bytes: &u64| *bytes <= OBJECT_BYTES_MAX && bytes.is_multiple_of(OBJECT_BYTES_UNIT);
                    let bytes = bytes.filter(|bytes| *bytes > 0 && fits(bytes));
                    given.object_bytes = Some(bytes.ok_or_else(|| wrong("give a multiple of 256KiB, up to 1TiB"))?);
                }
                "piece" => {
                    let bytes = value
                        .parse()
                        .ok()
                        .filter(|bytes: &u32| bytes.is_power_of_two() && (64..=1 << 15).contains(bytes));
                    given.piece_bytes = Some(bytes.ok_or_else(|| wrong("give a power of two from 64 to 32768"))?);
                }
                "deadline" => given.deadline = Some(trellis_store::stores::deadline(value)?),
                "port" => {
                    let port = value.parse().ok().filter(|port| *port > 0);
                    given.port = Some(port.ok_or_else(|| wrong("give the UDP port of the servers"))?);
                }
                _ => return Err(format!("there is no option `{name}`")),
            }
        }
        Ok(given)
    }
}

fn homes(servers: &str, own: HostPrefix) -> Result<Vec<Host>, String> {
    if servers == "anywhere" {
        return Ok(vec![Host::ANYWHERE]);
    }
    let mut homes = Vec::new();
    for server in servers.split(',') {
        let HostPrefix { cluster, host } = prefix_of(server)?;
        if cluster != own.cluster {
            return Err(format!("{server} is of another cluster than this host, {own}"));
        }
        if homes.contains(&host) {
            return Err(format!("{server} is named twice"));
        }
        homes.push(host);
    }
    if homes.len() > SERVERS_MAX {
        return Err(format!("{} servers are more than {SERVERS_MAX}", homes.len()));
    }
    Ok(homes)
}

fn prefix_of(text: &str) -> Result<HostPrefix, String> {
    text.parse().map_err(|error| format!("`{text}` is not a prefix of a host: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rest: &str, own: Option<&str>) -> Result<PagesOptions, String> {
        parse(&format!("memory-server:{rest}"), rest, own).map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_says_who_and_where() {
        let own = Some("fd12:3456:9::/48");
        let options = read("fd12:3456:7::/48,fd12:3456:8::/48", own).expect("it is one");
        assert_eq!(options.homes, [Host(7), Host(8)]);
        assert_eq!(options.client, ClientOptions::new("fd12:3456:9::/48".parse().expect("a prefix")));
        assert_eq!(options.object_bytes, 64 << 20);
        let rest = "anywhere?prefix=fd12:3456:a::/48&object=1MiB&piece=8192&deadline=3&port=5001";
        let options = read(rest, own).expect("it is one");
        assert_eq!((options.homes, options.object_bytes), (vec![Host::ANYWHERE], 1 << 20));
        assert_eq!(options.client.prefix.host, Host(10), "what is told counts before the environment");
        assert_eq!((options.client.piece_bytes, options.client.port), (8192, 5001));
        assert_eq!(options.client.deadline, Duration::from_secs(3));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let own = Some("fd12:3456:9::/48");
        for (rest, why) in [
            ("", "`` is not a prefix of a host"),
            ("fd12:3456:7::/64", "`fd12:3456:7::/64` is not a prefix of a host"),
            ("fd12:3457:7::/48", "of another cluster"),
            ("fd12:3456:7::/48,fd12:3456:7::/48", "named twice"),
            ("anywhere?object=5KiB", "object=5KiB is not possible"),
            ("anywhere?object=0", "object=0 is not possible"),
            ("anywhere?piece=5000", "piece=5000 is not possible"),
            ("anywhere?deadline=0", "deadline=0 is not possible"),
            ("anywhere?port=0", "port=0 is not possible"),
            ("anywhere?size=4", "no option `size`"),
            ("anywhere?prefix=me", "the addresses of this host: `me` is not a prefix"),
        ] {
            let said = read(rest, own).expect_err(rest);
            assert!(said.contains(why) && said.contains("accepted: memory-server:PREFIX"), "{said}");
        }
        let said = read("anywhere", None).expect_err("nobody says who this is");
        assert!(said.contains("TRELLIS_PREFIX"), "{said}");
    }
}
