//! The address and credentials of an etcd cluster, from the store's address and the variables that `etcdctl` reads.

use etcd_client::{Channel, Client, ConnectOptions};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::error::StoreError;
use crate::stores::grpc::failure::Site;
use crate::stores::{GRPC_CONNECT, address};

/// The address of a cluster.
pub(super) struct Address {
    /// One for each member in the address.
    endpoints: Vec<Endpoint>,
    user: Option<(String, String)>,
    /// For messages.
    pub(super) site: Site,
}

impl Address {
    /// Parses `[USER:PASSWORD@]HOST:PORT[,HOST:PORT][?tls]`, and reads the variables `ETCDCTL_USER`, `ETCDCTL_CACERT`,
    /// `ETCDCTL_CERT` and `ETCDCTL_KEY`.
    pub(super) fn parse(url: &str, rest: &str) -> Result<Address, StoreError> {
        let (rest, question) = rest.split_once('?').unwrap_or((rest, ""));
        if !matches!(question, "" | "tls") {
            return Err(address(url, "after `?` only `tls` is known"));
        }
        let (user, hosts) = match rest.rsplit_once('@') {
            Some((user, hosts)) => (Some(user.to_owned()), hosts),
            None => (std::env::var("ETCDCTL_USER").ok().filter(|user| !user.is_empty()), rest),
        };
        let user = match user.as_deref().map(|user| user.split_once(':')) {
            None => None,
            Some(Some((user, password))) => Some((user.to_owned(), password.to_owned())),
            Some(None) => return Err(address(url, "the user of etcd has no password; write USER:PASSWORD")),
        };
        let authority = std::env::var_os("ETCDCTL_CACERT").filter(|path| !path.is_empty());
        let tls = if question == "tls" || authority.is_some() { Some(tls(url)?) } else { None };
        let endpoints = hosts.trim_end_matches('/').split(',').map(|host| endpoint(url, host, tls.as_ref()));
        Ok(Address {
            endpoints: endpoints.collect::<Result<_, _>>()?,
            user,
            site: Site {
                store: format!("etcd://{hosts}"),
                denied_hint: "name a user that may read and write keys below `trellis/`, as \
                    etcd://USER:PASSWORD@HOST:PORT or in ETCDCTL_USER"
                    .to_owned(),
                missing: "something that it should have".to_owned(),
                missing_hint: "look into its log".to_owned(),
            },
        })
    }

    /// The number of members in the address.
    pub(super) fn members(&self) -> usize {
        self.endpoints.len()
    }

    /// A client of one member. It connects at its first use, and authenticates the user.
    pub(super) async fn client(&self, member: usize) -> Result<Client, etcd_client::Error> {
        let channel = Channel::Tonic(self.endpoints[member % self.endpoints.len()].connect_lazy());
        let options = self
            .user
            .as_ref()
            .map(|(user, password)| ConnectOptions::new().with_user(user, password).with_auto_token_refresh(true));
        Client::from_channel(channel, options).await
    }
}

fn endpoint(url: &str, host: &str, tls: Option<&ClientTlsConfig>) -> Result<Endpoint, StoreError> {
    let port = host.rsplit_once(':').and_then(|(name, port)| (!name.is_empty()).then_some(port));
    if port.and_then(|port| port.parse::<u16>().ok()).is_none() {
        return Err(address(url, &format!("`{host}` is no HOST:PORT")));
    }
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"));
    let endpoint = endpoint.map_err(|error| address(url, &format!("`{host}` is no HOST:PORT: {error}")))?;
    let endpoint = endpoint.connect_timeout(GRPC_CONNECT.time()).tcp_nodelay(true);
    match tls {
        None => Ok(endpoint),
        Some(tls) => endpoint
            .tls_config(tls.clone())
            .map_err(|error| address(url, &format!("TLS cannot be used with these certificates: {error}"))),
    }
}

/// The certificates that `etcdctl` would use; the system's if none is named.
fn tls(url: &str) -> Result<ClientTlsConfig, StoreError> {
    let read = |variable: &str| -> Result<Option<Vec<u8>>, StoreError> {
        let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) else { return Ok(None) };
        let bytes = std::fs::read(&path);
        bytes.map(Some).map_err(|error| address(url, &format!("{variable} names {}: {error}", path.display())))
    };
    let tls = match read("ETCDCTL_CACERT")? {
        Some(authority) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    Ok(match (read("ETCDCTL_CERT")?, read("ETCDCTL_KEY")?) {
        (Some(certificate), Some(key)) => tls.identity(Identity::from_pem(certificate, key)),
        _ => tls,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(rest: &str) -> Result<Address, StoreError> {
        Address::parse(&format!("etcd://{rest}"), rest)
    }

    #[test]
    fn hosts_and_the_user_are_found_and_the_password_is_never_shown() {
        let address = parse("me:se@cret@one:2379,two:2380").unwrap();
        assert_eq!(address.members(), 2);
        assert_eq!(address.user, Some(("me".to_owned(), "se@cret".to_owned())));
        assert_eq!(address.site.store, "etcd://one:2379,two:2380");
    }

    #[test]
    fn what_is_no_host_and_port_is_refused() {
        for wrong in ["", "host", "host:", ":2379", "one:2379,", "me@host:2379", "host:2379?ssl", "host:99999"] {
            assert!(matches!(parse(wrong), Err(StoreError::Address { .. })), "{wrong}");
        }
    }
}
