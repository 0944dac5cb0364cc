//! `trellis_config_*`: a configuration under construction.

use std::ffi::{c_char, c_int};
use std::path::Path;

use trellis::config::{Config, Sources};

use crate::failure::{self, Failure, answer, value_or};
use crate::status;

/// `struct trellis_config`: the sources of the values, and their present result.
pub struct ConfigHandle {
    sources: Sources,
    /// The sources' values, as far as they are the same for every node.
    current: Config,
}

impl ConfigHandle {
    /// Reads `path` (or the file that the environment names); values of the environment override it.
    pub(crate) fn load(path: Option<&str>) -> Result<ConfigHandle, Failure> {
        let sources = Sources::new().process_environment();
        let sources = match path {
            Some(path) => sources.file(Path::new(path)),
            None => sources,
        };
        let current = read(&sources)?;
        Ok(ConfigHandle { sources, current })
    }

    /// The configuration of one node, whose number must be known by now.
    pub(crate) fn for_this_node(&self) -> Result<Config, Failure> {
        self.sources.clone().load().map_err(|error| Failure::new(status::CONFIGURATION, error))
    }
}

fn read(sources: &Sources) -> Result<Config, Failure> {
    sources.clone().load_for_all().map_err(|error| Failure::new(status::CONFIGURATION, error))
}

/// Reads a configuration.
///
/// # Safety
/// `path` is NULL or a C string; `config` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_config_load(path: *const c_char, config: *mut *mut ConfigHandle) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { failure::place(config, "config") }?;
        *place = std::ptr::null_mut();
        let path = if path.is_null() {
            None
        } else {
            // SAFETY: the caller's promise.
            Some(unsafe { failure::text(path, "path") }?)
        };
        *place = Box::into_raw(Box::new(ConfigHandle::load(path)?));
        Ok(status::OK)
    })
}

/// Sets one key, which overrides file and environment.
///
/// # Safety
/// `config` is NULL or came from [`trellis_config_load`]; `key` and `value` are NULL or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_config_set(
    config: *mut ConfigHandle,
    key: *const c_char,
    value: *const c_char,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let (config, key, value) =
            unsafe { (failure::place(config, "config")?, failure::text(key, "key")?, failure::text(value, "value")?) };
        let sources = config.sources.clone().set_by_program(format!("{key}={value}"));
        config.current = read(&sources)?;
        config.sources = sources;
        Ok(status::OK)
    })
}

/// One value of the configuration; 0 for NULL.
///
/// # Safety
/// `config` is NULL or came from [`trellis_config_load`].
unsafe fn ask(config: *const ConfigHandle, question: impl FnOnce(&Config) -> usize) -> usize {
    // SAFETY: the caller's promise.
    value_or(0, || unsafe { config.as_ref() }.map(|config| question(&config.current)))
}

/// The number of this node.
///
/// # Safety
/// `config` is NULL or came from [`trellis_config_load`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_config_node(config: *const ConfigHandle) -> usize {
    // SAFETY: the caller's promise.
    unsafe { ask(config, |config| config.node) }
}

/// The number of nodes.
///
/// # Safety
/// `config` is NULL or came from [`trellis_config_load`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_config_nodes(config: *const ConfigHandle) -> usize {
    // SAFETY: the caller's promise.
    unsafe { ask(config, Config::node_count) }
}

/// The number of the manager.
///
/// # Safety
/// `config` is NULL or came from [`trellis_config_load`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_config_manager(config: *const ConfigHandle) -> usize {
    // SAFETY: the caller's promise.
    unsafe { ask(config, |config| config.manager) }
}

/// The size of the region.
///
/// # Safety
/// `config` is NULL or came from [`trellis_config_load`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_config_region_bytes(config: *const ConfigHandle) -> usize {
    // SAFETY: the caller's promise.
    unsafe { ask(config, |config| config.region_bytes) }
}

/// Frees a configuration.
///
/// # Safety
/// `config` is NULL or came from [`trellis_config_load`] and was not freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_config_free(config: *mut ConfigHandle) {
    value_or((), || {
        if !config.is_null() {
            // SAFETY: not null, and otherwise the caller's promise.
            drop(unsafe { Box::from_raw(config) });
        }
        Some(())
    });
}
