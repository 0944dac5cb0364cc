//! Opens a store from its address: the stores of the crate `trellis-store`, and `memory-server`, which needs the
//! network of this crate.
//!
//! It promises that all memory in stores is opened here. It must never depend on how a store works.

mod address;
mod memory_server;

use std::sync::Arc;

use trellis_store::{Store, StoreError};

use super::error::StoredError;
use super::layout::PAGE_BYTES;
use super::settings::Settings;

/// The scheme of the addresses of memory servers.
pub const MEMORY_SERVER: &str = "memory-server";
/// The accepted forms of an address of memory servers.
pub const MEMORY_SERVER_FORMS: &str = "memory-server:PREFIX[,PREFIX...] or memory-server:anywhere, each with \
     [?prefix=PREFIX][&object=SIZE][&piece=BYTES][&deadline=SECONDS][&port=PORT], a PREFIX such as fd12:3456:7::/48";

/// Opens the store that the settings name, for the memory of one process or for a shared region.
///
/// # Errors
///
/// The errors of the store, and a message if the store cannot hold what is requested.
pub fn open(settings: &Settings) -> Result<Arc<dyn Store>, StoredError> {
    match checked(settings)? {
        Some(options) => Ok(memory_server::open(&settings.store, options)?),
        None => Ok(trellis_store::open(&settings.store).map_err(with_own_forms)?),
    }
}

/// Checks settings as far as possible without contacting a server.
///
/// # Errors
///
/// A message that says what is wrong.
pub fn check(settings: &Settings) -> Result<(), StoredError> {
    checked(settings).map(drop)
}

/// Whether an address names memory servers.
pub fn is_memory_server(url: &str) -> bool {
    address::rest(url).is_some()
}

/// The distance of changed bytes in a page up to which writing the bytes in between costs less than another step.
pub(crate) fn join_bytes(url: &str) -> usize {
    // At memory servers, a step is a datagram, and a datagram with a whole page takes little longer than a short one.
    if is_memory_server(url) { PAGE_BYTES } else { 64 }
}

/// Adds the forms of this crate to the error for an unknown address, because one of them may have been meant.
fn with_own_forms(error: StoreError) -> StoreError {
    match error {
        StoreError::Address { url, reason, accepted } => {
            StoreError::Address { url, reason, accepted: format!("{accepted}, {MEMORY_SERVER_FORMS}") }
        }
        other => other,
    }
}

fn checked(settings: &Settings) -> Result<Option<trellis_remote::pages::PagesOptions>, StoredError> {
    let Some(rest) = address::rest(&settings.store) else { return Ok(None) };
    if let Some(name) = &settings.region {
        return Err(StoredError::Argument(format!(
            "region `{name}`: the store {MEMORY_SERVER} keeps the memory of one process, and nobody else finds it there; for \
             memory that processes share start them with `trellis run --home memory-server`, or leave the region's name out"
        )));
    }
    let own = std::env::var("TRELLIS_PREFIX").ok();
    Ok(Some(address::parse(&settings.store, rest, own.as_deref())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_with_a_name_is_refused_and_told_where_to_go() {
        let settings = Settings {
            store: "memory-server:anywhere?prefix=fd12:3456:9::/48".to_owned(),
            region: Some("jobs".to_owned()),
            ..Settings::default()
        };
        let said = check(&settings).expect_err("it is shared").to_string();
        assert!(said.contains("region `jobs`") && said.contains("`trellis run --home memory-server`"), "{said}");
        check(&Settings { region: None, ..settings }).expect("one process may have it");
        check(&Settings::default()).expect("other stores are asked when they are opened");
    }
}
