//! The program at an interface, and its maps.
//!
//! Promises: program and maps end with this value, or with the process. They have no name in the file system. It must
//! never create a filter that outlives a process (this requires Linux 6.6).

#![allow(unsafe_code)]

use std::error::Error;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use aya::maps::{Array, ArrayOfMaps, MapData, MapError, PerCpuArray};
use aya::programs::{SchedClassifier, TcAttachType};
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader};
use trellis_base::proc_bytes;

use super::{Options, checksum, layout};
use crate::error::SwitchError;

const PROGRAM: &str = "trellis_memory";
/// Insert or replace.
const ANY: u64 = 0;
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/memory.bpf.o"));
/// The fraction of the machine's memory that is left to other processes is one divided by this.
const LEFT_OVER: u64 = 16;

// The arguments with which bpf(2) creates a map (linux/bpf.h).
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// The beginning of `union bpf_attr`, as far as creating a map needs it; the rest counts as zero.
#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

/// The results of the packets that arrived. Those in neither of the first two were passed on to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Outcomes {
    /// READs that were answered.
    pub reads: u64,
    /// WRITEs that were done and answered.
    pub writes: u64,
    /// Not a READ or WRITE of a client at this home.
    pub not_asked: u64,
    /// In a form that is left to the process: several datagrams, once, more than a page, a WRITE across two pages.
    pub unusual: u64,
    /// A wrong checksum or tag.
    pub unsound: u64,
    /// In memory that belongs to the process alone.
    pub not_here: u64,
    /// Stale or out of bounds.
    pub not_admitted: u64,
    /// For a guarded page.
    pub guarded: u64,
    /// For a page that was being changed.
    pub changing: u64,
    /// The answer is longer than the interface supports.
    pub too_long: u64,
    /// The kernel had no memory.
    pub no_room: u64,
}

impl Outcomes {
    fn of(count: &[u64; layout::OUTCOMES]) -> Outcomes {
        Outcomes {
            reads: count[layout::ANSWERED_READ],
            writes: count[layout::ANSWERED_WRITE],
            not_asked: count[layout::NOT_ASKED],
            unusual: count[layout::UNUSUAL],
            unsound: count[layout::UNSOUND],
            not_here: count[layout::NOT_HERE],
            not_admitted: count[layout::NOT_ADMITTED],
            guarded: count[layout::GUARDED],
            changing: count[layout::CHANGING],
            too_long: count[layout::TOO_LONG],
            no_room: count[layout::NO_ROOM],
        }
    }

    /// The number of answered requests.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.reads + self.writes
    }
}

/// Reads the program's counters, even while the memory is in use elsewhere.
#[derive(Clone)]
pub struct Watch(Arc<PerCpuArray<MapData, [u64; layout::OUTCOMES]>>);

impl Watch {
    /// The results of the packets that arrived at the interface.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`].
    pub fn outcomes(&self) -> Result<Outcomes, SwitchError> {
        let values = self.0.get(&0, 0).map_err(|error| failed("read the program's counters", &error))?;
        let mut sums = [0; layout::OUTCOMES];
        for (sum, index) in sums.iter_mut().zip(0..) {
            *sum = values.iter().map(|one: &[u64; layout::OUTCOMES]| one[index]).sum();
        }
        Ok(Outcomes::of(&sums))
    }
}

/// See the top of this file.
pub(super) struct Attached {
    extents: ArrayOfMaps<MapData>,
    watch: Watch,
    /// Dropping it detaches the program from the interface.
    _program: Ebpf,
}

impl Attached {
    /// Attaches the program to an interface in the calling thread's network namespace.
    pub(super) fn open(options: &Options, device: &str) -> Result<Attached, SwitchError> {
        if !is_recent() {
            return Err(refused("answer in the kernel", "this one is older than Linux 6.6"));
        }
        let tables = checksum::tables();
        let pages = checksum::page_tables(&tables);
        let extents = options.memory_bytes.div_ceil(layout::EXTENT_BYTES).min(layout::EXTENTS_MAX);
        let mut program = EbpfLoader::new()
            .override_global("crc_tables", &*tables, true)
            .override_global("crc_page_tables", &*pages, true)
            .map_max_entries("extents", extents as u32)
            .load(OBJECT)
            .map_err(|error| failed("load the memory server into the kernel", &error))?;
        // The program must be loaded with its maps before any of them may be closed.
        classifier(&mut program)?.load().map_err(|error| failed("load the program of the memory server", &error))?;
        let mut served: Array<MapData, [u8; layout::MEMORY_SETTINGS_BYTES]> = map(&mut program, "served")?;
        let extents = map(&mut program, "extents")?;
        let watch = Watch(Arc::new(map(&mut program, "outcomes")?));
        served.set(0, settings(options), ANY).map_err(|error| failed("tell the program what it serves", &error))?;
        let at = format!("put the program of the memory server at {device}");
        classifier(&mut program)?.attach(device, TcAttachType::Ingress).map_err(|error| failed(&at, &error))?;
        Ok(Attached { extents, watch, _program: program })
    }

    /// Memory for an extent, which the program uses from now on; `None` if there is too little left.
    pub(super) fn extent(&mut self, number: u64) -> Option<OwnedFd> {
        if !has_room() {
            return None;
        }
        let map = new_extent().ok()?;
        let known = MapData::from_fd(map.as_fd().try_clone_to_owned().ok()?).ok()?;
        self.extents.set(u32::try_from(number).ok()?, &known, ANY).ok()?;
        Some(map)
    }

    pub(super) fn watch(&self) -> Watch {
        self.watch.clone()
    }
}

fn settings(options: &Options) -> [u8; layout::MEMORY_SETTINGS_BYTES] {
    let mut settings = [0; layout::MEMORY_SETTINGS_BYTES];
    settings[..4].copy_from_slice(&options.cluster.scope());
    settings[layout::MEMORY_SETTINGS_HOME_AT..][..2].copy_from_slice(&options.home.to_be_bytes());
    settings[layout::MEMORY_SETTINGS_PORT_AT..][..2].copy_from_slice(&options.port.to_be_bytes());
    settings
}

fn is_recent() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0))
}

fn classifier(program: &mut Ebpf) -> Result<&mut SchedClassifier, SwitchError> {
    let missing = || refused("find the program of the memory server", PROGRAM);
    let found = program.program_mut(PROGRAM).ok_or_else(missing)?;
    found.try_into().map_err(|error| failed("use the program of the memory server", &error))
}

/// One of the program's maps, with its type.
fn map<T>(program: &mut Ebpf, name: &'static str) -> Result<T, SwitchError>
where
    T: TryFrom<aya::maps::Map, Error = MapError>,
{
    let attempt = "find a map of the memory server's program";
    let map = program.take_map(name).ok_or_else(|| refused(attempt, name))?;
    T::try_from(map).map_err(|error| failed(attempt, &error))
}

/// Whether the machine has memory for another extent.
fn has_room() -> bool {
    let Ok(text) = std::fs::read_to_string("/proc/meminfo") else { return true };
    let bytes = |name| proc_bytes(&text, name);
    let (Some(all), Some(available)) = (bytes("MemTotal"), bytes("MemAvailable")) else { return true };
    available >= all / LEFT_OVER + layout::EXTENT_VALUE_BYTES
}

/// A map with one value, an extent, which can be mapped into memory.
fn new_extent() -> io::Result<OwnedFd> {
    let wanted = MapCreate {
        kind: BPF_MAP_TYPE_ARRAY,
        key_bytes: 4,
        value_bytes: layout::EXTENT_VALUE_BYTES as u32,
        entries: 1,
        flags: BPF_F_MMAPABLE,
    };
    // SAFETY: the structure has the length that is passed, and lives until the call returns.
    let number =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, std::ptr::from_ref(&wanted), size_of::<MapCreate>()) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number as RawFd) })
}

/// An error that includes all causes that the libraries report.
fn failed(attempt: &str, error: &dyn Error) -> SwitchError {
    let mut causes = vec![error.to_string()];
    let mut next = error.source();
    while let Some(error) = next {
        causes.push(error.to_string());
        next = error.source();
    }
    refused(attempt, causes.join(": "))
}

fn refused(attempt: &str, cause: impl Into<String>) -> SwitchError {
    let hint = "answering in the kernel takes root, Linux 6.6 and an interface of this network namespace";
    SwitchError::System { attempt: attempt.to_owned(), cause: cause.into(), hint: hint.to_owned() }
}
