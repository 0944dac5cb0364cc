//! One server of each kind of store that needs one beside Redis, and the addresses of what is in it.
//!
//! What cannot be started here is said in one line `SKIPPED STORE TEST: reason`.

use super::{Server, built, installed};

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The real etcd, one member.
    Etcd,
    /// Google's emulator; see `bigtable/main.go` for what is added.
    Bigtable,
    /// A server of this project; see `spanner/main.go` for what it promises.
    Spanner,
    /// A server of this project; see `datastore/main.go` for what it promises.
    Datastore,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Etcd => "etcd",
            Kind::Bigtable => "bigtable",
            Kind::Spanner => "spanner",
            Kind::Datastore => "datastore",
        }
    }

    /// A server, with more arguments than it always gets; nothing where it cannot be had.
    pub(crate) fn start(self, test: &str, more: &[&str]) -> Option<Server> {
        let program = match self {
            Kind::Etcd => installed("etcd").ok_or_else(|| "etcd is not installed".to_owned()),
            _ => built(self.name()),
        };
        match program {
            Ok(program) => {
                let program = program.to_str().expect("a path of letters");
                Some(Server::start(&[&[program], self.arguments(), more].concat()))
            }
            Err(why) => {
                println!("SKIPPED {} {test}: {why}", self.name());
                None
            }
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Kind::Etcd => &[
                "--data-dir={folder}/data",
                "--listen-client-urls=http://127.0.0.1:{port}",
                "--advertise-client-urls=http://127.0.0.1:{port}",
                "--listen-peer-urls=http://127.0.0.1:{port+1}",
                "--initial-advertise-peer-urls=http://127.0.0.1:{port+1}",
                "--initial-cluster=default=http://127.0.0.1:{port+1}",
                "--logger=zap",
            ],
            Kind::Bigtable | Kind::Spanner | Kind::Datastore => &["-address", "127.0.0.1:{port}"],
        }
    }

    /// The address of a table or a database in a server, or of the server where it has none.
    pub(crate) fn url(self, server: &Server, name: &str) -> String {
        let address = server.address();
        match self {
            Kind::Etcd => format!("etcd://{address}"),
            Kind::Bigtable => format!("bigtable://project/instance/{name}?emulator={address}"),
            Kind::Spanner => format!("spanner://project/instance/{name}?emulator={address}"),
            Kind::Datastore => format!("datastore://project/{name}?emulator={address}"),
        }
    }
}
