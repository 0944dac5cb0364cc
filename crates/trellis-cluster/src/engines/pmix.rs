//! The exchange of Open MPI, PRRTE and Slurm's `pmix`: `libpmix`, opened when it is needed and never linked.
//!
//! Source: the PMIx standard, version 4.1, and `pmix_common.h` of OpenPMIx 4.2: the layouts below are its own.
//!
//! Promises: PMIx is finished before the node continues. The wait ends even if a call does not return, because a
//! separate thread makes the calls.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::sync::mpsc;
use std::time::Instant;

use super::{Exchanged, Offer};

/// The library, by the name that its versions 3 to 6 have.
const LIBRARY: &CStr = c"libpmix.so.2";

const KEY_BYTES: usize = 512;
const NAMESPACE_BYTES: usize = 256;
const SUCCESS: c_int = 0;
const SCOPE_GLOBAL: u8 = 3;
const RANK_WILDCARD: u32 = u32::MAX - 1;
const KIND_TRUTH: u16 = 1;
const KIND_TEXT: u16 = 3;
const KIND_NUMBER: u16 = 14;

/// `pmix_proc_t`.
#[repr(C)]
struct Process {
    namespace: [c_char; NAMESPACE_BYTES],
    rank: u32,
}

/// `pmix_value_t`: the kind says which member of the union is valid. Each member begins at the first byte of the union.
#[repr(C)]
struct Value {
    kind: u16,
    data: [u64; 3],
}

/// `pmix_info_t`.
#[repr(C)]
struct Info {
    key: [c_char; KEY_BYTES],
    flags: u32,
    value: Value,
}

const _: () = assert!(std::mem::offset_of!(Process, rank) == 256 && size_of::<Process>() == 260);
const _: () = assert!(std::mem::offset_of!(Value, data) == 8 && std::mem::offset_of!(Info, value) == 520);
const _: () = assert!(size_of::<Value>() == 32 && size_of::<Info>() == 552);

type Init = unsafe extern "C" fn(*mut Process, *const Info, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *const Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Process, usize, *const Info, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Process, *const c_char, *const Info, usize, *mut *const Value) -> c_int;
type Finalize = unsafe extern "C" fn(*const Info, usize) -> c_int;
type Describe = unsafe extern "C" fn(c_int) -> *const c_char;

/// The functions that are needed.
struct Library {
    init: Init,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    finalize: Finalize,
    describe: Describe,
}

/// Gives this node's text to all others and gets theirs.
pub(super) fn exchange(offer: Offer, until: Instant) -> Result<Exchanged, String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let talk = move || {
        // After the limit, the receiver is gone.
        let _ = sender.send(Library::open().and_then(|library| library.exchange(&offer)));
    };
    let thread = std::thread::Builder::new().name("trellis-pmix".to_owned()).spawn(talk);
    thread.map_err(|error| format!("a thread cannot be started: {error}"))?;
    receiver.recv_timeout(until.saturating_duration_since(Instant::now())).unwrap_or_else(|_| {
        Err("not all nodes of the job came within start_seconds_max; is every process of it this program?".to_owned())
    })
}

impl Library {
    fn open() -> Result<Library, String> {
        // SAFETY: the library's own start does nothing but set up itself. Its plug-ins find its symbols.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            return Err(format!(
                "{} cannot be opened ({}); install it (Debian: libpmix2), add its folder to LD_LIBRARY_PATH, or set the \
                 key rendezvous",
                LIBRARY.to_string_lossy(),
                // SAFETY: after a failure there is a text.
                unsafe { text_of(libc::dlerror()) }.unwrap_or_default()
            ));
        }
        let find = |name: &CStr| {
            // SAFETY: the handle is open, and is never closed.
            let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if symbol.is_null() { Err(format!("libpmix has no {}", name.to_string_lossy())) } else { Ok(symbol) }
        };
        // SAFETY: the standard gives the functions of these names these types.
        unsafe {
            Ok(Library {
                init: transmute::<*mut c_void, Init>(find(c"PMIx_Init")?),
                put: transmute::<*mut c_void, Put>(find(c"PMIx_Put")?),
                commit: transmute::<*mut c_void, Commit>(find(c"PMIx_Commit")?),
                fence: transmute::<*mut c_void, Fence>(find(c"PMIx_Fence")?),
                get: transmute::<*mut c_void, Get>(find(c"PMIx_Get")?),
                finalize: transmute::<*mut c_void, Finalize>(find(c"PMIx_Finalize")?),
                describe: transmute::<*mut c_void, Describe>(find(c"PMIx_Error_string")?),
            })
        }
    }

    fn exchange(&self, offer: &Offer) -> Result<Exchanged, String> {
        let mut process = Process { namespace: [0; NAMESPACE_BYTES], rank: 0 };
        // SAFETY: `process` has the layout that it is written with.
        self.check("PMIx_Init", unsafe { (self.init)(&raw mut process, std::ptr::null(), 0) })?;
        let exchanged = self.exchange_as(&mut process, offer);
        // SAFETY: PMIx was initialised.
        let finished = self.check("PMIx_Finalize", unsafe { (self.finalize)(std::ptr::null(), 0) });
        let exchanged = exchanged?;
        finished.map(|()| exchanged)
    }

    fn exchange_as(&self, process: &mut Process, offer: &Offer) -> Result<Exchanged, String> {
        let node = process.rank as usize;
        let text = CString::new(offer.of(node)).expect("texts of this crate have no zero");
        let value = Value { kind: KIND_TEXT, data: [text.as_ptr() as u64, 0, 0] };
        let key = key("trellis");
        let collect =
            Info { key: self::key("pmix.collect"), flags: 0, value: Value { kind: KIND_TRUTH, data: [1, 0, 0] } };
        // SAFETY: key, value and information have the layouts of the standard, and PMIx copies them.
        unsafe {
            self.check("PMIx_Put", (self.put)(SCOPE_GLOBAL, key.as_ptr(), &raw const value))?;
            self.check("PMIx_Commit", (self.commit)())?;
            self.check("PMIx_Fence", (self.fence)(std::ptr::null(), 0, &raw const collect, 1))?;
        }
        process.rank = RANK_WILDCARD;
        let nodes = self.get(process, "pmix.job.size", KIND_NUMBER)?.data[0] as u32;
        let texts = (0..nodes).map(|peer| {
            process.rank = peer;
            let value = self.get(process, "trellis", KIND_TEXT)?;
            // SAFETY: a value of this kind has a text, which is never freed.
            unsafe { text_of(value.data[0] as *const c_char) }.ok_or_else(|| format!("node {peer} said nothing"))
        });
        Ok(Exchanged { node, texts: texts.collect::<Result<_, _>>()? })
    }

    /// The value stays until the process ends: PMIx allocated it, and there are only a few.
    fn get(&self, process: &Process, name: &str, kind: u16) -> Result<&'static Value, String> {
        let mut value: *const Value = std::ptr::null();
        // SAFETY: `value` is written only if the call succeeds.
        let got = unsafe { (self.get)(process, key(name).as_ptr(), std::ptr::null(), 0, &raw mut value) };
        self.check(&format!("PMIx_Get of {name}"), got)?;
        // SAFETY: PMIx allocated the value, and nobody frees it.
        let value = unsafe { value.as_ref() }.filter(|value| value.kind == kind);
        value.ok_or_else(|| format!("PMIx has another kind of {name} than the standard"))
    }

    fn check(&self, call: &str, code: c_int) -> Result<(), String> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: the call returns a text for every number.
        let why = unsafe { text_of((self.describe)(code)) }.unwrap_or_default();
        Err(format!("{call} failed with {code} ({why})"))
    }
}

/// # Safety
///
/// `text` is null, or ends with a zero.
unsafe fn text_of(text: *const c_char) -> Option<String> {
    // SAFETY: as above.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// A key in as many bytes as the standard gives it.
fn key(name: &str) -> [c_char; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key.iter_mut().zip(name.bytes()).for_each(|(place, byte)| *place = byte as c_char);
    key
}
