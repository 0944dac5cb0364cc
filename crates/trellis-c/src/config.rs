//! `trellis_config_*`: a configuration under construction.

use std::ffi::{c_char, c_int};
use std::path::Path;

use trellis::config::{Config, Sources};

use crate::failure::{self, Failure, answer, value_or};
use crate::status;

/// `struct trellis_config`: where values come from, and what they are so far.
pub struct ConfigHandle {
    sources: Sources,
    /// What the sources say without anybody having to be a particular node yet.
    current: Config,
}

impl ConfigHandle {
    /// Reads `path` (or what the environment names), with the environment laid over it.
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

/// Read a configuration.
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

/// Lay one key over file and environment.
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

/// What the configuration says about one thing; 0 for NULL.
///
/// # Safety
/// `config` is NULL or came from [`trellis_config_load`].
unsafe fn ask(config: *const ConfigHandle, question: impl FnOnce(&Config) -> usize) -> usize {
    // SAFETY: the caller's promise.
    value_or(0, || unsafe { config.as_ref() }.map(|config| question(&config.current)))
}

/// Which node this process is.
///
/// # Safety
/// `config` is NULL or came from [`trellis_config_load`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_config_node(config: *const ConfigHandle) -> usize {
    // SAFETY: the caller's promise.
    unsafe { ask(config, |config| config.node) }
}

/// How many nodes the cluster has.
///
/// # Safety
/// `config` is NULL or came from [`trellis_config_load`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_config_nodes(config: *const ConfigHandle) -> usize {
    // SAFETY: the caller's promise.
    unsafe { ask(config, Config::node_count) }
}

/// Which node is the manager.
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

/// Free a configuration.
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
