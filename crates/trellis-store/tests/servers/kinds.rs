//! One server of each kind of store that needs one, except Redis, and the addresses of its tables and databases.
//!
//! If a server cannot be started here, one line `SKIPPED STORE TEST: reason` says so.

use trellis_testing::{Need, skip};

use super::{ServerProcess, built, installed};

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The real etcd, one member.
    Etcd,
    /// Google's emulator; see `bigtable/main.go` for additions.
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

    /// A server, with additional arguments; `None` if it is not available.
    pub(crate) fn start(self, test: &str, more: &[&str]) -> Option<ServerProcess> {
        let program = match self {
            Kind::Etcd => installed("etcd").ok_or_else(|| "etcd is not installed".to_owned()),
            _ => built(self.name()),
        };
        match program {
            Ok(program) => {
                let program = program.to_str().expect("a path of letters");
                Some(ServerProcess::start(&[&[program], self.arguments(), more].concat()))
            }
            Err(why) => {
                skip(format_args!("{} {test}", self.name()), Need::Program, why);
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
                "--listen-peer-urls=http://127.0.0.1:{peer_port}",
                "--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}",
                "--initial-cluster=default=http://127.0.0.1:{peer_port}",
                "--logger=zap",
            ],
            Kind::Bigtable | Kind::Spanner | Kind::Datastore => &["-address", "127.0.0.1:{port}"],
        }
    }

    /// The address of a table or a database in a server, or of the server if it has none.
    pub(crate) fn url(self, server: &ServerProcess, name: &str) -> String {
        let address = server.address();
        match self {
            Kind::Etcd => format!("etcd://{address}"),
            Kind::Bigtable => format!("bigtable://project/instance/{name}?emulator={address}"),
            Kind::Spanner => format!("spanner://project/instance/{name}?emulator={address}"),
            Kind::Datastore => format!("datastore://project/{name}?emulator={address}"),
        }
    }
}
