//! The one region of this process: opened by `__trellis_start` or by `trellis_store_open`, closed at exit.
//!
//! Promises: the heap and the locks of the process are those of its region. What was released is in the store when
//! the process ends. With TRELLIS_STORE_STATISTICS=1 the counts are then written to standard error. It must never
//! open a second region.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use trellis::stored::StoredError;
use trellis::stored::coherence::Shared;
use trellis::stored::end::end_process;
use trellis::stored::heap::{self, Heap, Share};
use trellis::stored::launched;
use trellis::stored::memory::{HeapMemory, Memory, Mode};
use trellis::stored::settings::Settings;
use trellis::stored::synchronisation::{self, Session};
use trellis::stored::words::Words;

/// `TRELLIS_COMPILED_ABI`
pub const COMPILED_ABI: u32 = 1;

const MODES: [(u32, &str, Mode); 4] =
    [(1, "full", Mode::Full), (2, "heap", Mode::Words), (3, "line", Mode::Lines), (4, "page", Mode::Pages)];

/// `struct trellis_compiled_program`
#[repr(C)]
pub struct CompiledProgram {
    abi: u32,
    mode: u32,
    version: *const c_char,
}

const _: () = assert!(std::mem::size_of::<CompiledProgram>() == 16);

struct Process {
    memory: Arc<Memory>,
    settings: Settings,
    /// Whether the environment chose the region, before the program could.
    by_environment: bool,
}

impl Process {
    fn title(&self) -> String {
        let named = |name: &String| format!("region `{name}`");
        self.settings.region.as_ref().map_or_else(|| "a region of its own".to_owned(), named)
    }

    /// Whether the process has what a program asks for: `trellis store run` and `trellis cc` open regions before
    /// `main`.
    fn is_what_is_wanted(&self, settings: Option<&Settings>, mode: Mode) -> bool {
        let has = self.memory.mode();
        match settings {
            None => has == mode,
            Some(wanted) => {
                let is_cached = |mode| matches!(mode, Mode::Pages | Mode::Lines);
                let is_mode = has == mode || is_cached(has) && is_cached(mode);
                let names = |settings: &Settings| (settings.store.clone(), settings.region.clone());
                is_mode && self.by_environment && names(wanted) == names(&self.settings)
            }
        }
    }
}

static PROCESS: OnceLock<Process> = OnceLock::new();
static OPENING: Mutex<()> = Mutex::new(());
/// The words of the process, for the functions that are called for each access; null in modes without words.
static WORDS: AtomicPtr<Words> = AtomicPtr::new(std::ptr::null_mut());
/// Whether this is a child of the process that opened the region.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// The region of this process, if it has one.
pub(crate) fn memory() -> Option<&'static Arc<Memory>> {
    PROCESS.get().filter(|_| !IS_CHILD.load(Ordering::Relaxed)).map(|process| &process.memory)
}

/// The words of this process. A process without words is started in mode `heap`, which is the mode of callers that
/// have not called `__trellis_start`.
pub(crate) fn words() -> &'static Words {
    let words = WORDS.load(Ordering::Acquire);
    if words.is_null() || IS_CHILD.load(Ordering::Relaxed) {
        return words_slowly();
    }
    // SAFETY: the words of the memory that `PROCESS` keeps forever.
    unsafe { &*words }
}

#[cold]
fn words_slowly() -> &'static Words {
    if IS_CHILD.load(Ordering::Relaxed) {
        end_process(&"a forked child touched memory that is in a store; it belongs to the parent, use exec after fork");
    }
    if let Err(error) = open(None, Mode::Words) {
        end_process(&error);
    }
    match memory().and_then(|memory| memory.words()) {
        Some(words) => words,
        None => end_process(
            &"a word of the store was used in a process whose region is kept in pages; compile the whole \
                              program with one --mode",
        ),
    }
}

/// Opens the region of this process. If it already has one, that must be the one asked for.
///
/// # Errors
///
/// If the region cannot be opened, or differs from the open one.
pub(crate) fn open(settings: Option<Settings>, mode: Mode) -> Result<&'static Arc<Memory>, StoredError> {
    let _one = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if IS_CHILD.load(Ordering::Relaxed) {
        let why = "the region was opened by the parent of this process; open it again after exec";
        return Err(StoredError::Argument(why.to_owned()));
    }
    if let Some(process) = PROCESS.get() {
        if !process.is_what_is_wanted(settings.as_ref(), mode) {
            let (has, wants) = (name_of(process.memory.mode()), name_of(mode));
            return Err(StoredError::Argument(format!(
                "this process has {} open in mode `{has}`, and cannot open another in mode `{wants}`: a process has one; \
                 compile the whole program with one --mode, open once, and name the same store and region where the \
                 environment names them",
                process.title()
            )));
        }
        return Ok(&process.memory);
    }
    let by_environment = settings.is_none();
    if by_environment && let Some(why) = launched::hindrance() {
        return Err(StoredError::Argument(why));
    }
    let settings = settings.map_or_else(Settings::from_environment, Ok)?;
    let memory = Memory::open(&settings, mode)?;
    install_heap(&memory)?;
    let for_session = Arc::clone(&memory);
    let (is_alone, wait_max) = (memory.region().header.is_private, settings.wait_max);
    synchronisation::process::install_with(move || {
        let options = synchronisation::Options { is_alone, wait_max, ..synchronisation::Options::default() };
        Session::new(Arc::clone(&for_session) as Arc<dyn Shared>, options)
    });
    let process = PROCESS.get_or_init(|| Process { memory, settings, by_environment });
    if let Some(words) = process.memory.words() {
        WORDS.store(std::ptr::from_ref(words).cast_mut(), Ordering::Release);
    }
    // SAFETY: the function may be called at any fork from now on; it uses only statics.
    unsafe { libc::pthread_atfork(None, None, Some(note_child)) };
    Ok(&process.memory)
}

fn name_of(mode: Mode) -> &'static str {
    MODES.iter().find(|(_, _, of)| *of == mode).map_or("?", |(_, name, _)| name)
}

fn install_heap(memory: &Arc<Memory>) -> Result<(), StoredError> {
    let region = memory.region();
    let kind = match region.header.heap.as_str() {
        "" => heap::Kind::default(),
        name => name.parse().map_err(StoredError::Argument)?,
    };
    let over = Arc::new(HeapMemory(Arc::clone(memory)));
    let made = if region.header.is_private {
        Heap::local(memory.addresses(), kind, over)
    } else {
        let share = Share { store: Arc::clone(&region.store), region: region.number, member: region.member };
        Heap::shared(memory.addresses(), kind, over, share)
    };
    let made = made.map_err(|error| StoredError::Argument(error.to_string()))?;
    // An existing heap is over private memory, and was requested.
    if let Ok(heap) = heap::process::install(made) {
        memory.set_heap(heap);
    }
    memory.recover()
}

extern "C" fn note_child() {
    IS_CHILD.store(true, Ordering::SeqCst);
}

unsafe extern "C" {
    // From glibc: like `atexit`, but the function gets the status, and is not tied to the unloading of a library.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Registers [`at_exit`] when this library is loaded. If it is loaded with the program, that is before the C library
/// registers the destructors of all libraries, so `at_exit` runs after them: destructors of libraries, too, find
/// their memory. If a running program loads this library, the destructors of libraries that were loaded earlier run
/// after it.
#[used]
// SAFETY: the C library calls what this section names once, before any code of the program.
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;

extern "C" fn register() {
    // SAFETY: the function may be called at exit from now on; it uses only statics.
    unsafe { on_exit(at_exit, std::ptr::null_mut()) };
}

extern "C" fn at_exit(status: c_int, _: *mut c_void) {
    match end() {
        Ok(false) => {}
        // The C library's remaining work at exit has been done, and it might touch a page that is gone.
        // SAFETY: ends the process with its intended exit status.
        Ok(true) => unsafe { libc::_exit(status) },
        Err(error) => end_process(&error),
    }
}

/// The last step of a process; returns whether nothing may run after it.
fn end() -> Result<bool, StoredError> {
    let Some(process) = PROCESS.get().filter(|_| !IS_CHILD.load(Ordering::Relaxed)) else { return Ok(false) };
    before_close(process)?;
    process.memory.close_at_exit()
}

/// Closes the region; does nothing if there is none, or if it is closed.
pub(crate) fn close() -> Result<(), StoredError> {
    let Some(process) = PROCESS.get().filter(|_| !IS_CHILD.load(Ordering::Relaxed)) else { return Ok(()) };
    before_close(process)?;
    process.memory.close()
}

fn before_close(process: &Process) -> Result<(), StoredError> {
    // The C library's buffers may be in pages that will be gone.
    // SAFETY: NULL means all streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    static SAID: AtomicBool = AtomicBool::new(false);
    if process.settings.statistics && !SAID.swap(true, Ordering::SeqCst) {
        if !process.memory.region().header.is_private {
            process.memory.release(&[], None)?;
        }
        say(&process.memory);
    }
    Ok(())
}

fn say(memory: &Memory) {
    let statistics = memory.statistics();
    let mut line = format!("store {}: {}", memory.store().name(), statistics.calls);
    if memory.paging().is_some() {
        let pages = statistics.pages;
        line += &format!(
            "; pages: {} faults, {} fetched ({} ahead), {} given up, {} bytes written back",
            pages.faults, pages.pages_fetched, pages.pages_fetched_ahead, pages.pages_evicted, pages.bytes_written_back
        );
    }
    trellis::complain(format_args!("{line}"));
}

/// Starts a compiled program, or a compiled library.
///
/// # Safety
///
/// `program` points to a program's description.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_start(program: *const CompiledProgram) {
    // SAFETY: the caller's promise.
    let program = unsafe { &*program };
    let version = if program.version.is_null() {
        "unknown".into()
    } else {
        // SAFETY: the caller's promise: a string of the program.
        unsafe { CStr::from_ptr(program.version) }.to_string_lossy()
    };
    if program.abi != COMPILED_ABI {
        end_process(&format!(
            "the program was compiled by `trellis cc` of version {version} (interface {}), and this library is {} \
             (interface {COMPILED_ABI}); compile it again, or install the library of that version",
            program.abi,
            env!("CARGO_PKG_VERSION"),
        ));
    }
    let Some((_, _, mode)) = MODES.iter().find(|(number, ..)| *number == program.mode) else {
        end_process(&format!("the program was compiled for mode {}, which this library does not know", program.mode));
    };
    if let Err(error) = open(None, *mode) {
        end_process(&error);
    }
}
