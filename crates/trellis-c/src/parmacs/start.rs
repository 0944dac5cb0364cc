//! The start of a process of a PARMACS program, before main.
//!
//! Promises: a process started by `trellis run` or by an engine joins the cluster. A process started by itself becomes
//! the program of a `trellis run` with a node for each core, or, without that command, a cluster of one node. In a
//! cluster of several nodes the kernel's address randomisation is off, so that addresses mean the same on each. All
//! this happens before main, so standard input is untouched, arguments are kept, and nothing runs twice. It must never
//! restart itself endlessly: the environment records what has been tried.

use std::env;
use std::ffi::{OsStr, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use trellis::config::{Config, ConfigError, Sources};
use trellis::launch::{EXIT_CONFIGURATION, NODE_VARIABLE, NODES_VARIABLE, STATUS_FD_VARIABLE};
use trellis::{Cluster, JoinError, Protocol};
use trellis_output::programs;

use super::arena::{Arena, arena};
use super::globals::Globals;
use super::workers::{Workers, at_exit, serve};
use super::{EXIT_CLUSTER, PROGRAM, Program};
use crate::layout::Layout;

/// `shared` or `copied`: the treatment of the program's globals.
const GLOBALS_VARIABLE: &str = "TRELLIS_PARMACS_GLOBALS";
/// The version of the macro file.
const VERSION: c_int = 1;
/// Set while a process starts itself again without address randomisation.
const PLACED_VARIABLE: &str = "TRELLIS_PARMACS_PLACED";
/// Set while a process starts itself again under `trellis run`.
const LAUNCHED_VARIABLE: &str = "TRELLIS_PARMACS_LAUNCHED";

/// Keys with other defaults in these programs: those that the original macros lead a program to expect.
const DEFAULTS: [(&str, &str); 3] =
    [("region_bytes", "1GiB"), ("reserve", "overcommit"), ("coherence", "hlrc(adaptive)")];

unsafe extern "C" {
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// The function that MAIN_ENV's constructor calls. `shares` is 1 in a program that was compiled to share its globals,
/// else 0. Returns only at node 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_parmacs_begin(
    version: c_int,
    count: c_int,
    arguments: *mut *mut c_char,
    shares: c_int,
) {
    // MAIN_ENV may occur in more than one file.
    if PROGRAM.get().is_some() {
        return;
    }
    if version != VERSION {
        refuse(&format!(
            "the macros are of version {version} and the library knows {VERSION}; use the c.m4.trellis that was \
             installed with it"
        ));
    }
    // SAFETY: the C library passes a constructor the arguments of main.
    let arguments = unsafe { std::slice::from_raw_parts_mut(arguments, count as usize) };
    launch_if_alone(arguments);
    let layout = Layout::of_this_process();
    let shared = wants_shared(shares != 0).then(|| Globals::find(&layout, shares != 0));
    let shared = shared.transpose().unwrap_or_else(|why| refuse(&why));
    let config = configuration(shared.as_ref()).unwrap_or_else(|error| refuse(&error.to_string()));
    if shared.as_ref().is_some_and(|globals| config.base_address + config.region_bytes > globals.limit()) {
        refuse("region_bytes is more than fits between the program's globals and the limit that it was linked with");
    }
    if config.node_count() > 1 || config.is_placed_by_engine() {
        keep_addresses(arguments);
    }
    begin(config, layout, shared, arguments);
}

/// Whether the globals are to be shared: the environment decides, otherwise the way the program was compiled.
fn wants_shared(is_compiled_for_it: bool) -> bool {
    match env::var(GLOBALS_VARIABLE).as_deref() {
        Ok("shared") => true,
        Ok("copied") => false,
        Err(env::VarError::NotPresent) => is_compiled_for_it,
        _ => refuse(&format!("{GLOBALS_VARIABLE} is neither `shared` nor `copied`; give it one of these, or unset it")),
    }
}

/// Lets [`at_exit`] run when the process ends.
pub(super) fn watch_exit() {
    // SAFETY: a function of this library, which is never unloaded.
    unsafe { on_exit(at_exit, std::ptr::null_mut()) };
}

fn begin(config: Config, layout: Layout, shared: Option<Globals>, arguments: &mut [*mut c_char]) {
    let saved = match &shared {
        // SAFETY: this is a constructor, before main, and it uses no global of the program until they are restored.
        Some(globals) => Some(unsafe { globals.take_away() }.unwrap_or_else(|why| refuse(&why))),
        None => {
            *arena() = Some(Arena::begin().unwrap_or_else(|why| refuse(&why)));
            None
        }
    };
    let cluster = match Cluster::join(config) {
        Ok(cluster) => cluster,
        Err(error @ JoinError::Config(_)) => refuse(&error.to_string()),
        Err(error) => end(&error.to_string(), EXIT_CLUSTER),
    };
    cluster.name_objects(crate::addresses::label);
    let workers = Workers::new(cluster.nodes());
    let program = PROGRAM.get_or_init(|| Program { cluster, layout, workers, shared });
    watch_exit();
    if program.cluster.node() != 0 {
        serve(program);
    }
    if let (Some(globals), Some(saved)) = (&program.shared, &saved) {
        // SAFETY: the region begins there, and the other nodes do not touch it before they are told to run a
        // function.
        unsafe { globals.put_back(saved) };
    }
    move_arguments(arguments);
}

/// Moves the arguments' text into the private heap, so that a program's pointers to it are valid in workers too.
fn move_arguments(arguments: &mut [*mut c_char]) {
    for argument in arguments {
        // SAFETY: arguments are strings.
        let copy = unsafe { super::memory::trellis_parmacs_strdup(*argument) };
        if !copy.is_null() {
            *argument = copy;
        }
    }
}

/// The configuration, with the defaults of these programs for keys that are not set.
fn configuration(shared: Option<&Globals>) -> Result<Config, ConfigError> {
    let mut sources = Sources::new().process_environment();
    let said = sources.clone().load()?.places;
    for (key, value) in DEFAULTS {
        // A library that was built without the protocol keeps the default of all programs.
        let is_known = key != "coherence" || value.parse::<Protocol>().is_ok();
        if !said.contains_key(key) && is_known {
            sources = sources.set_by_program(format!("{key}={value}"));
        }
    }
    let Some(globals) = shared else {
        // Whatever such a program shares, it allocates.
        let config = sources.clone().load()?;
        let is_said = said.contains_key("heap_bytes");
        return if is_said {
            Ok(config)
        } else {
            sources.set_by_program(format!("heap_bytes={}", config.region_bytes)).load()
        };
    };
    // The globals are the region's first pages, and the heap is behind them.
    let sources = sources.set_by_program(format!("base_address={:#x}", globals.start()));
    let config = sources.clone().load()?;
    let heap_bytes = config.region_bytes.saturating_sub(globals.region_bytes(config.page_bytes));
    sources.set_by_program(format!("heap_bytes={heap_bytes}")).load()
}

/// Restarts a process that was not launched under `trellis run`, if that is there, unless an engine started it.
fn launch_if_alone(arguments: &[*mut c_char]) {
    // A bare number of nodes, which is no configuration, is what the rest is for.
    if Sources::new().process_environment().load().is_ok_and(|config| config.is_placed_by_engine()) {
        return;
    }
    let nodes = env::var(NODES_VARIABLE).ok();
    let wanted = nodes.as_deref().and_then(|text| text.trim().parse::<usize>().ok());
    let launched_with = [NODE_VARIABLE, STATUS_FD_VARIABLE, "TRELLIS_CONFIG", "TRELLIS_JOIN"];
    if launched_with.iter().any(|name| env::var_os(name).is_some()) || (nodes.is_some() && wanted.is_none()) {
        return;
    }
    // A bare number is for this module; to the configuration the variable is a list of addresses.
    forget(NODES_VARIABLE);
    let was_launched = env::var_os(LAUNCHED_VARIABLE).is_some();
    forget(LAUNCHED_VARIABLE);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let nodes = wanted.unwrap_or(cores).clamp(1, trellis::config::NODES_MAX);
    if was_launched || nodes == 1 {
        return;
    }
    let Some(launcher) = launcher() else {
        if wanted.is_some() {
            refuse(&format!(
                "{NODES_VARIABLE}={nodes} asks for {nodes} nodes and the command `trellis` is not in PATH"
            ));
        }
        return;
    };
    let mut command = Command::new(&launcher);
    command.args(["run", "--output", "raw", "-n", &nodes.to_string(), "--"]).arg(own_path());
    command.args(arguments.iter().skip(1).map(|argument| text(*argument))).env(LAUNCHED_VARIABLE, "1");
    let why = command.exec();
    end(&format!("{} cannot be started: {why}", launcher.display()), EXIT_CLUSTER);
}

/// The command, from PATH or from where this library was installed.
fn launcher() -> Option<PathBuf> {
    let beside = || programs::find(own_library()?.parent()?.parent()?.join("bin/trellis"));
    programs::find("trellis").or_else(beside)
}

/// The file of this library.
fn own_library() -> Option<PathBuf> {
    // SAFETY: all zero is a valid value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address of this library, and a variable for the result.
    let found = unsafe { libc::dladdr(trellis_parmacs_begin as *const c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    std::fs::canonicalize(text(info.dli_fname.cast_mut())).ok()
}

/// The file of this program.
fn own_path() -> PathBuf {
    env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"))
}

/// Restarts this process with the same addresses as on every other node, unless it has them.
fn keep_addresses(arguments: &[*mut c_char]) {
    const ASK: libc::c_ulong = 0xffff_ffff;
    let no_random = libc::ADDR_NO_RANDOMIZE as libc::c_ulong;
    let was_placed = env::var_os(PLACED_VARIABLE).is_some();
    forget(PLACED_VARIABLE);
    // SAFETY: queries, and changes nothing.
    let now = unsafe { libc::personality(ASK) } as libc::c_ulong;
    // SAFETY: sets one flag, which takes effect at the next execve(2). If that is forbidden, CREATE checks whether
    // the addresses are the same anyway, and reports if not.
    if now & no_random != 0 || was_placed || unsafe { libc::personality(now | no_random) } < 0 {
        return;
    }
    let mut command = Command::new(own_path());
    if let Some((name, others)) = arguments.split_first() {
        command.arg0(text(*name)).args(others.iter().map(|argument| text(*argument)));
    }
    let why = command.env(PLACED_VARIABLE, "1").exec();
    end(&format!("the program cannot start itself again without random addresses: {why}"), EXIT_CLUSTER);
}

fn text(argument: *mut c_char) -> OsString {
    // SAFETY: arguments and names of files are strings.
    let text = unsafe { std::ffi::CStr::from_ptr(argument) };
    OsString::from_vec(text.to_bytes().to_vec())
}

fn forget(variable: impl AsRef<OsStr>) {
    // SAFETY: before main, this process has one thread.
    unsafe { env::remove_var(variable) };
}

fn refuse(why: &str) -> ! {
    end(why, EXIT_CONFIGURATION)
}

fn end(why: &str, status: c_int) -> ! {
    trellis::complain(format_args!("{why}"));
    super::end_process(status)
}
