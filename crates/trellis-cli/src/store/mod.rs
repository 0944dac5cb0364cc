//! `trellis store`: what lies in a key-value store, a front end for it, and programs whose heap lies in one.
//!
//! Never prints a password: stores are called by what [`trellis_store::Store::name`] says.

mod launch;
mod regions;
mod serve;

use std::sync::Arc;

use clap::{Args, Subcommand};
use trellis_store::stores::{KINDS, StoreKind};
use trellis_store::{Store, StoreError};

use crate::exit::{self, Ending, Failure};

/// What `trellis store --help` says of this build.
pub(crate) fn stores_of_this_build() -> String {
    let (built, missing): (Vec<StoreKind>, Vec<StoreKind>) = KINDS.into_iter().partition(|kind| kind.is_built);
    let names = |kinds: &[StoreKind]| kinds.iter().map(|kind| kind.scheme).collect::<Vec<_>>();
    let mut text = format!("Stores of this build: {}.", names(&built).join(", "));
    if !missing.is_empty() {
        let (missing, features) = (names(&missing).join(", "), names(&missing).join(","));
        text += &format!(
            "\nNot in this build: {missing}; `cargo xtask install --prefix PREFIX --features {features}` installs one with them."
        );
    }
    text
}

/// Tasks around stores.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    Run(launch::RunArguments),
    Ls(regions::ListArguments),
    Stat(regions::StatArguments),
    Rm(regions::RemoveArguments),
    Serve(serve::ServeArguments),
}

/// Which store.
#[derive(Debug, Args)]
struct Which {
    /// Address of the store: embedded-durable:/PATH, redis://HOST:PORT, etcd://HOST:PORT and so on
    #[arg(long, value_name = "URL", env = "TRELLIS_STORE")]
    store: String,
}

impl Which {
    fn open(&self) -> Result<Arc<dyn Store>, Failure> {
        trellis_store::open(&self.store).map_err(failure)
    }
}

/// The `store` subcommand.
pub(crate) fn run(task: &Task) -> Ending {
    match task {
        Task::Run(arguments) => launch::run(arguments),
        Task::Ls(arguments) => regions::list(arguments),
        Task::Stat(arguments) => regions::stat(arguments),
        Task::Rm(arguments) => regions::remove(arguments),
        Task::Serve(arguments) => serve::serve(arguments),
    }
}

/// A store's sentence with the exit code that fits.
fn failure(error: StoreError) -> Failure {
    let code = match error {
        StoreError::Address { .. } | StoreError::Unsupported { .. } => exit::CONFIGURATION,
        _ => exit::CLUSTER,
    };
    Failure::new(code, error.to_string())
}
