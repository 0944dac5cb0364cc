//! `trellis store`: inspects key-value stores, serves them, runs programs with their heap in one, and handles the
//! file of a durable one.
//!
//! It must never print a password: stores are named by [`trellis_store::Store::name`].

mod files;
mod launch;
mod program;
mod regions;
mod serve;

use std::path::Path;
use std::sync::Arc;

use clap::{Args, Subcommand};
use trellis::stored::stores;
use trellis_store::stores::{KINDS, StoreKind};
use trellis_store::{Store, StoreError};

use trellis_command::exit::{self, Ending, Failure};

/// The text of `trellis store --help` about the stores of this build.
pub(crate) fn stores_of_this_build() -> String {
    let (built, missing): (Vec<StoreKind>, Vec<StoreKind>) = KINDS.into_iter().partition(|kind| kind.is_built);
    let names = |kinds: &[StoreKind]| kinds.iter().map(|kind| kind.scheme).collect::<Vec<_>>();
    let mut text = format!("Stores of this build: {}, {}.", names(&built).join(", "), stores::MEMORY_SERVER);
    if !missing.is_empty() {
        let (missing, features) = (names(&missing).join(", "), names(&missing).join(","));
        text += &format!(
            " Not in this build: {missing}; `cargo xtask install --prefix PREFIX --features {features}` installs one with them."
        );
    }
    text
}

/// The tasks of `trellis store`.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    Run(launch::RunArguments),
    Ls(regions::ListArguments),
    Stat(regions::StatArguments),
    Rm(regions::RemoveArguments),
    Serve(serve::ServeArguments),
    Check(files::CheckArguments),
    Backup(files::BackupArguments),
    Salvage(files::SalvageArguments),
}

/// Which store is meant.
#[derive(Debug, Args)]
struct Which {
    /// Address of the store: embedded-durable:/PATH, redis://HOST:PORT, memory-server:PREFIX and so on
    #[arg(long, value_name = "URL", env = "TRELLIS_STORE")]
    store: String,
}

impl Which {
    fn open(&self) -> Result<Arc<dyn Store>, Failure> {
        if stores::is_memory_server(&self.store) {
            let sentence = format!(
                "store {} keeps the memory of a process, which nobody else can look at; `trellis store run` starts a \
                 program with it, and `trellis serve` is what keeps it",
                self.store
            );
            return Err(Failure::new(exit::CONFIGURATION, sentence));
        }
        trellis_store::open(&self.store).map_err(failure)
    }

    /// Like [`Which::open`], for inspection and clean-up: a missing file is not created.
    fn open_existing(&self) -> Result<Arc<dyn Store>, Failure> {
        match file_of(&self.store).filter(|file| !file.exists()) {
            Some(file) => Err(Failure::new(
                exit::CONFIGURATION,
                format!(
                    "there is no store in {}: no such file; correct the path of --store or TRELLIS_STORE (the first \
                     program that uses a store there makes the file)",
                    file.display()
                ),
            )),
            None => self.open(),
        }
    }
}

/// Runs the `store` subcommand.
pub(crate) fn run(task: &Task) -> Ending {
    match task {
        Task::Run(arguments) => launch::run(arguments),
        Task::Ls(arguments) => regions::list(arguments),
        Task::Stat(arguments) => regions::stat(arguments),
        Task::Rm(arguments) => regions::remove(arguments),
        Task::Serve(arguments) => serve::serve(arguments),
        Task::Check(arguments) => files::check(arguments),
        Task::Backup(arguments) => files::backup(arguments),
        Task::Salvage(arguments) => files::salvage(arguments),
    }
}

/// The file of a durable store, which opening the store would create.
fn file_of(store: &str) -> Option<&Path> {
    let path = store.strip_prefix("embedded-durable:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    // A path that is not absolute is refused with its own sentence when it is opened.
    path.starts_with('/').then(|| Path::new(path))
}

/// A store's error, with the exit code that fits.
fn failure(error: StoreError) -> Failure {
    let code = match error {
        StoreError::Address { .. } | StoreError::Unsupported { .. } => exit::CONFIGURATION,
        _ => exit::CLUSTER,
    };
    Failure::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_stores_are_files() {
        let file = Some(Path::new("/var/tmp/store"));
        assert_eq!(file_of("embedded-durable:/var/tmp/store"), file);
        assert_eq!(file_of("embedded-durable:///var/tmp/store"), file);
        for other in ["embedded-durable:store", "embedded:", "redis+unix:/s", "redis://127.0.0.1:1", "", "/s"] {
            assert_eq!(file_of(other), None, "{other}");
        }
    }
}
