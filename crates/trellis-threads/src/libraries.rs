//! Libraries that the program loads after its start (dlopen(3)).
//!
//! Node 0 loads a library, with those that it needs, and has every other node load the same at the same addresses. Then
//! the variables of all become pages of the region (`trellis_threads_share_libraries`), and node 0 runs their constructors
//! in the thread that wants the library, or in one that stands for it.
//!
//! The loader of glibc does the work on private memory. While it does, its system calls come to [`made`]: it chooses the
//! addresses, and takes constructors and destructors out of a library's dynamic section (elf(5)) before the loader sees it.
//! Libraries of the process, such as that of mathematics, keep theirs, because every node has its own variables of them.
//!
//! The handle of a library is that of node 0, whichever node a thread uses it at.
//!
//! Promises: a library is at one address on every node, or the run ends with a sentence. A constructor runs once, after
//! those of the libraries that its own needs, when all nodes have the library. A library stays until the program ends, when
//! its destructors run in the opposite order. One thread loads at a time; a constructor may load other libraries.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{Elf64_Ehdr, Elf64_Phdr};
use trellis_base::is_c_library;

use crate::context::{aside, is_of_program, own_slot};
use crate::control::{SLOTS, control};
use crate::kernel::{Arguments, call};
use crate::runtime::{self, Begin};
use crate::system_calls;
use crate::table::reals;
use crate::{start, threads};

type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
type Error = unsafe extern "C" fn() -> *mut c_char;
type Constructor = unsafe extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char);
type Destructor = unsafe extern "C" fn();

unsafe extern "C" {
    fn __cxa_atexit(function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void, library: *mut c_void) -> c_int;
}

/// Libraries lie at multiples of this; no loader wants more.
const ALIGNMENT: usize = 2 << 20;
/// What is free between two: a node that streams through variables may get pages of the region that lie behind them.
const GAP_BYTES: usize = 4 << 20;
/// The most libraries that are loaded by one call.
const AT_ONCE_MAX: usize = 256;

/// The address for the next library, which node 0 knows, and the end of all.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// One more than the slot of the thread of this node that loads, or looks for a library; 0 if there is none.
static OWNER: AtomicUsize = AtomicUsize::new(0);
/// What a thread of this node loads now.
static LOADING: AtomicPtr<Loading> = AtomicPtr::new(null_mut());
/// What [`error`] says next in each thread: a text of the region.
static ERRORS: [AtomicPtr<c_char>; SLOTS] = [const { AtomicPtr::new(null_mut()) }; SLOTS];

/// From now on there is room for libraries.
pub(crate) fn begin(begin: &Begin) {
    NEXT.store(begin.libraries, Ordering::Relaxed);
    END.store(begin.libraries + begin.libraries_bytes, Ordering::Relaxed);
}

/// A library that every node is to load: a value on the stack of a thread of the program.
struct Request {
    /// Its name at node 0, and at the others, which have working folders of their own.
    files: [*const c_char; 2],
    how: c_int,
    /// The address for it.
    at: AtomicUsize,
    /// The handle at node 0, where it is loaded first.
    handle: AtomicUsize,
    /// What tells its files and places at the last node that has loaded it.
    identity: AtomicU64,
    /// What dlerror(3) is to say, a text of the region; null if it was loaded.
    error: AtomicPtr<c_char>,
}

/// Opens a library, as dlopen(3).
///
/// # Safety
/// As dlopen(3); `real` is that function.
pub(crate) unsafe fn open(real: Open, file: *const c_char, how: c_int) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        if start::nodes() == 1 {
            return real(file, how);
        }
        let is_only_asked = file.is_null() || how & libc::RTLD_NOLOAD != 0;
        // A library that another thread is loading is not shared yet, and its constructors have not run.
        let here = alone(|| if is_only_asked { real(file, how) } else { real(file, how | libc::RTLD_NOLOAD) });
        if start::node() == 0 && !here.is_null() || is_only_asked && here.is_null() {
            return here;
        }
        if !here.is_null() {
            let arguments = [file as usize, (how | libc::RTLD_NOLOAD) as usize, 0, 0, 0, 0];
            let handle = start::at_first_node(reals::dlopen.address(), arguments) as usize;
            learn(handle, here as usize);
            return handle as *mut c_void;
        }
        let request = Request {
            files: [file, absolute(file)],
            how,
            at: AtomicUsize::new(0),
            handle: AtomicUsize::new(0),
            identity: AtomicU64::new(0),
            error: AtomicPtr::new(null_mut()),
        };
        let at = (&raw const request) as *mut c_void;
        if start::node() == 0 {
            load_at_first_node(at);
        } else if let Err(error) = threads::run_at(0, load_at_first_node, at as usize) {
            let why = std::io::Error::from_raw_os_error(error);
            runtime::stop(&format!("a library cannot be loaded: no thread of node 0 can be made: {why}"));
        }
        let error = request.error.load(Ordering::Acquire);
        if error.is_null() {
            return request.handle.load(Ordering::Acquire) as *mut c_void;
        }
        // The loader has said the same when it looked whether the library is there.
        std::mem::transmute::<*mut c_void, Error>(reals::dlerror.address())();
        ERRORS[own_slot()].store(error, Ordering::Relaxed);
        null_mut()
    }
}

/// The name of a file, which means the same in every working folder: other nodes have one of their own.
///
/// # Safety
/// A text of the program.
unsafe fn absolute(file: *const c_char) -> *const c_char {
    // SAFETY: the caller's promise; a folder of this size at most.
    unsafe {
        let name = CStr::from_ptr(file).to_bytes();
        let mut folder = [0u8; libc::PATH_MAX as usize];
        if name.starts_with(b"/")
            || !name.contains(&b'/')
            || libc::getcwd(folder.as_mut_ptr().cast(), folder.len()).is_null()
        {
            return file;
        }
        let folder = CStr::from_ptr(folder.as_ptr().cast()).to_bytes();
        in_region(&[folder, b"/", name].concat())
    }
}

/// A copy of a text in the region, which every node can read.
fn in_region(text: &[u8]) -> *mut c_char {
    let place = runtime::allocate(text.len() + 1, 1, true, false) as *mut u8;
    if !place.is_null() {
        // SAFETY: a new block of this size, which is zero.
        unsafe { place.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    }
    place.cast()
}

/// Handles of node 0 and those of this node for the same libraries, at other nodes.
static HANDLES: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// A library has these handles, at node 0 and at this one.
fn learn(there: usize, here: usize) {
    aside(|| {
        let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
        if !handles.contains(&(there, here)) {
            handles.push((there, here));
        }
    });
}

/// The C library's dlsym(3); null before it is asked for the first time.
static SYMBOL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// dlsym(3). Who calls it matters if there is no handle, so the C library's function gets the call as it came, except one
/// with a handle of another node.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlsym() {
    std::arch::naked_asm!(
        "mov rax, [rip + {symbol}]",
        "test rax, rax",
        "jnz 2f",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "2:",
        // RTLD_NEXT is -1, and RTLD_DEFAULT 0.
        "lea rcx, [rdi + 1]",
        "cmp rcx, 1",
        "jbe 3f",
        "cmp qword ptr [rip + {node}], 0",
        "jne 4f",
        "3:",
        "jmp rax",
        "4:",
        "jmp {elsewhere}",
        symbol = sym SYMBOL,
        node = sym start::NODE,
        find = sym find_symbol,
        elsewhere = sym symbol,
    );
}

/// The same.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlsym() {
    std::arch::naked_asm!(
        "adrp x16, {symbol}",
        "ldr x16, [x16, :lo12:{symbol}]",
        "cbnz x16, 2f",
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {find}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "2:",
        "add x9, x0, #1",
        "cmp x9, #1",
        "b.ls 3f",
        "adrp x9, {node}",
        "ldr x9, [x9, :lo12:{node}]",
        "cbnz x9, 4f",
        "3:",
        "br x16",
        "4:",
        "b {elsewhere}",
        symbol = sym SYMBOL,
        node = sym start::NODE,
        find = sym find_symbol,
        elsewhere = sym symbol,
    );
}

/// Finds the C library's function, by the versions that its name has had.
extern "C" fn find_symbol() -> *mut c_void {
    let found = |version: &CStr| {
        // SAFETY: constant texts.
        unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) }
    };
    let of_version = [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"].into_iter().map(found).find(|at| !at.is_null());
    SYMBOL.store(of_version.unwrap_or(null_mut()), Ordering::Release);
    of_version.unwrap_or(null_mut())
}

/// A symbol of a library with a handle, at another node than node 0.
extern "C" fn symbol(handle: usize, name: *const c_char) -> *mut c_void {
    type Symbol = unsafe extern "C" fn(usize, *const c_char) -> *mut c_void;
    let own =
        || HANDLES.lock().unwrap_or_else(PoisonError::into_inner).iter().find(|(there, _)| *there == handle).copied();
    // SAFETY: the C library's function has this type, and gets a handle of this node.
    let real =
        |handle| unsafe { std::mem::transmute::<*mut c_void, Symbol>(SYMBOL.load(Ordering::Acquire))(handle, name) };
    if !is_of_program() {
        return real(handle);
    }
    if let Some((_, here)) = aside(own) {
        return real(here);
    }
    let arguments = [handle, name as usize, 0, 0, 0, 0];
    // SAFETY: the C library's function takes a handle of node 0 there, and a text of the program.
    let found = unsafe { start::at_first_node(SYMBOL.load(Ordering::Acquire), arguments) } as *mut c_void;
    if found.is_null() {
        // SAFETY: the text of the program.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        ERRORS[own_slot()].store(in_region(&[b"undefined symbol: ", name].concat()), Ordering::Relaxed);
    }
    found
}

/// The last error of the functions for libraries in the calling thread, as dlerror(3).
///
/// # Safety
/// It is that function.
pub(crate) unsafe fn error(real: Error) -> *mut c_char {
    match ERRORS[own_slot()].swap(null_mut(), Ordering::Relaxed) {
        // SAFETY: the caller's promise.
        error if error.is_null() => unsafe { real() },
        error => error,
    }
}

/// Loads a library, in a thread of the program at node 0.
extern "C-unwind" fn load_at_first_node(request: *mut c_void) -> *mut c_void {
    // SAFETY: the request of a thread that waits.
    let request = unsafe { &*request.cast::<Request>() };
    alone(|| match load_everywhere(request) {
        Ok(libraries) => initialise(&libraries),
        Err(error) => request.error.store(in_region(error.as_bytes()), Ordering::Release),
    });
    null_mut()
}

/// Calls `work` while no other thread of any node loads a library. A constructor may call this again.
fn alone<T>(work: impl FnOnce() -> T) -> T {
    let owner = own_slot() + 1;
    if OWNER.load(Ordering::Relaxed) == owner {
        return work();
    }
    let lock = (&raw const control().libraries) as usize;
    runtime::once_lock(lock);
    OWNER.store(owner, Ordering::Relaxed);
    let result = work();
    OWNER.store(0, Ordering::Relaxed);
    runtime::once_unlock(lock);
    result
}

/// Loads a library at every node, and shares its variables; what the loader of node 0 says if it cannot.
fn load_everywhere(request: &Request) -> Result<Vec<Library>, String> {
    let at = NEXT.load(Ordering::Relaxed);
    request.at.store(at, Ordering::Relaxed);
    let Loading { next, libraries, handle, .. } = place(request)?;
    request.handle.store(handle, Ordering::Release);
    NEXT.store(next, Ordering::Relaxed);
    let identity = runtime::share_libraries(at, next);
    for node in 1..start::nodes() {
        let done = threads::run_at(node, load_there, std::ptr::from_ref(request) as usize);
        if done.is_err() || request.identity.load(Ordering::Acquire) != identity {
            // SAFETY: the text of the program.
            let file = unsafe { CStr::from_ptr(request.files[0]) }.to_string_lossy().into_owned();
            let why = match done {
                Ok(()) => "every node needs the same files".to_owned(),
                Err(error) => std::io::Error::from_raw_os_error(error).to_string(),
            };
            runtime::stop(&format!("{file} is not loaded at node {node} as at node 0; {why}"));
        }
    }
    Ok(libraries)
}

/// Loads a library in a thread of another node.
extern "C-unwind" fn load_there(request: *mut c_void) -> *mut c_void {
    // SAFETY: the request of a thread that waits.
    let request = unsafe { &*request.cast::<Request>() };
    match place(request) {
        Ok(Loading { next, handle, .. }) => {
            learn(request.handle.load(Ordering::Acquire), handle);
            let identity = runtime::share_libraries(request.at.load(Ordering::Relaxed), next);
            request.identity.store(identity, Ordering::Release);
        }
        Err(error) => runtime::stop(&format!("a library that node 0 has loaded cannot be loaded here: {error}")),
    }
    null_mut()
}

/// What the loader does for one call.
struct Loading {
    slot: usize,
    /// The address for the next library.
    next: usize,
    libraries: Vec<Library>,
    handle: usize,
}

/// A library that the loader has mapped.
struct Library {
    base: usize,
    /// The file's name without the folder.
    name: String,
    is_of_process: bool,
    dynamic: Option<Dynamic>,
}

/// Entries of the dynamic section of a library (elf(5)).
#[derive(Clone, Copy)]
struct Dynamic {
    entries: usize,
    count: usize,
    /// The distance from an address in the file to the same place in memory.
    distance: usize,
    /// The values of [`OF_LIFE`].
    of_life: [usize; 6],
}

const DT_NEEDED: usize = 1;
const DT_STRTAB: usize = 5;
const DT_SONAME: usize = 14;
/// The tags of constructors and destructors: `DT_INIT`, `DT_INIT_ARRAY`, `DT_INIT_ARRAYSZ`, and the same of `DT_FINI`.
const OF_LIFE: [usize; 6] = [12, 25, 27, 13, 26, 28];
/// The tag of an entry that no loader looks at.
const NOTHING: usize = 0x6000_0001;

/// Loads a library at this node, on private memory; what the loader says if it cannot.
fn place(request: &Request) -> Result<Loading, String> {
    let slot = own_slot();
    aside(|| {
        // SAFETY: the text of the program; the functions of the C library have these types.
        unsafe {
            let file = CString::from(CStr::from_ptr(request.files[usize::from(start::node() > 0)]));
            let open = std::mem::transmute::<*mut c_void, Open>(reals::dlopen.address());
            let how = request.how & !libc::RTLD_LAZY | libc::RTLD_NOW;
            let at = request.at.load(Ordering::Relaxed);
            let mut loading = Loading { slot, next: at, libraries: Vec::with_capacity(AT_ONCE_MAX), handle: 0 };
            LOADING.store(&mut loading, Ordering::Release);
            system_calls::let_pass(slot, false);
            let handle = open(file.as_ptr(), how);
            system_calls::let_pass(slot, true);
            LOADING.store(null_mut(), Ordering::Release);
            if handle.is_null() {
                let error = std::mem::transmute::<*mut c_void, Error>(reals::dlerror.address())();
                return Err(CStr::from_ptr(error).to_string_lossy().into_owned());
            }
            if let Some(strange) = loading.libraries.iter().find(|library| library.dynamic.is_none()) {
                runtime::unsupported(
                    &format!("loading {}, whose dynamic section is read-only, after the start", strange.name),
                    "have it loaded with LD_PRELOAD",
                );
            }
            loading.handle = handle as usize;
            Ok(loading)
        }
    })
}

/// The slot of the thread for which the loader works on private memory, at this node.
pub(crate) fn loader() -> usize {
    // SAFETY: the loader's own thread asks, whose value it is.
    let loading = unsafe { LOADING.load(Ordering::Acquire).as_ref() };
    loading.expect("system calls of private threads pass, except the loader's").slot
}

/// Makes a system call of the loader.
///
/// # Safety
/// As the loader makes it, in the thread of [`loader`].
pub(crate) unsafe fn made(number: i64, mut arguments: Arguments) -> isize {
    let [address, bytes, protection, flags, descriptor, _] = arguments;
    let has = |flag: c_int| flags & flag as usize != 0;
    let has_file = descriptor as c_int >= 0;
    // SAFETY: the thread's own value; the system call is the loader's, and no other mapping is replaced.
    unsafe {
        let loading = &mut *LOADING.load(Ordering::Acquire);
        if number != libc::SYS_mmap {
            return call(number, arguments);
        }
        // The whole of a library: its file, or its addresses if it wants a great alignment.
        let is_library = if has_file { has(libc::MAP_DENYWRITE) } else { protection == 0 && !has(libc::MAP_NORESERVE) };
        if !has(libc::MAP_FIXED) && is_library {
            let at = loading.next;
            if at + bytes > END.load(Ordering::Relaxed) || loading.libraries.len() == AT_ONCE_MAX {
                return -(libc::ENOMEM as isize);
            }
            arguments[0] = at;
            arguments[3] |= libc::MAP_FIXED_NOREPLACE as usize;
            let answer = call(number, arguments);
            if answer as usize == at {
                loading.next = (at + bytes + GAP_BYTES).next_multiple_of(ALIGNMENT);
                let mut library = Library { base: at, name: String::new(), is_of_process: false, dynamic: None };
                library.name_by(descriptor as c_int);
                loading.libraries.push(library);
            }
            return answer;
        }
        let answer = call(number, arguments);
        if answer >= 0
            && has(libc::MAP_FIXED)
            && has_file
            && let Some(library) = loading.libraries.last_mut()
        {
            library.name_by(descriptor as c_int);
            if protection & libc::PROT_WRITE as usize != 0 {
                library.take_out_life(address, bytes);
            }
        }
        answer
    }
}

impl Library {
    fn name_by(&mut self, descriptor: c_int) {
        if self.name.is_empty()
            && let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{descriptor}"))
            && let Some(name) = path.file_name()
        {
            self.name = name.to_string_lossy().into_owned();
            self.is_of_process = is_c_library(&self.name);
        }
    }

    /// Takes constructors and destructors out, if the dynamic section lies in these bytes, which have just been mapped.
    ///
    /// # Safety
    /// The bytes are writable, and the file's headers are mapped at the base.
    unsafe fn take_out_life(&mut self, start: usize, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let header = &*(self.base as *const Elf64_Ehdr);
            let first = (self.base + header.e_phoff as usize) as *const Elf64_Phdr;
            let headers = std::slice::from_raw_parts(first, usize::from(header.e_phnum));
            let of_kind = |kind: u32| headers.iter().find(move |header| header.p_type == kind);
            let (Some(load), Some(section)) = (of_kind(libc::PT_LOAD), of_kind(libc::PT_DYNAMIC)) else { return };
            let distance = self.base - (load.p_vaddr as usize & !(crate::memory::PAGE - 1));
            let entries = distance + section.p_vaddr as usize;
            if !(start..start + bytes).contains(&entries) {
                return;
            }
            let mut dynamic = Dynamic { entries, count: section.p_memsz as usize / 16, distance, of_life: [0; 6] };
            if !self.is_of_process {
                for entry in dynamic.entries_mut() {
                    if let Some(place) = OF_LIFE.iter().position(|tag| *tag == entry[0]) {
                        dynamic.of_life[place] = entry[1];
                        entry[0] = NOTHING;
                    }
                }
            }
            self.dynamic = Some(dynamic);
        }
    }

    /// Whether this is the library that another one needs by this name, which may be that of a file.
    fn is_named(&self, name: &[u8]) -> bool {
        let name = name.rsplit(|letter| *letter == b'/').next().unwrap_or(name);
        let own = self.dynamic.and_then(|dynamic| dynamic.texts(DT_SONAME).next());
        self.name.as_bytes() == name || own == Some(name)
    }
}

impl Dynamic {
    /// # Safety
    /// The section is mapped, writable, and nobody else's.
    unsafe fn entries_mut(&self) -> &'static mut [[usize; 2]] {
        // SAFETY: the caller's promise.
        let entries = unsafe { std::slice::from_raw_parts_mut(self.entries as *mut [usize; 2], self.count) };
        let end = entries.iter().position(|entry| entry[0] == 0).unwrap_or(self.count);
        &mut entries[..end]
    }

    fn entries(&self) -> impl Iterator<Item = [usize; 2]> + use<> {
        // SAFETY: the section of a library, which stays, and which nothing changes any more.
        let entries = unsafe { std::slice::from_raw_parts(self.entries as *const [usize; 2], self.count) };
        entries.iter().copied().take_while(|[tag, _]| *tag != 0)
    }

    /// The texts of entries with a tag.
    fn texts(&self, wanted: usize) -> impl Iterator<Item = &'static [u8]> + use<> {
        let names = self.entries().find(|[tag, _]| *tag == DT_STRTAB).map_or(0, |[_, at]| at);
        // The loader has added the distance already.
        let names = if names < self.distance { names + self.distance } else { names };
        let wanted = self.entries().filter(move |[tag, _]| *tag == wanted && names != 0);
        // SAFETY: the section names texts of the library's own table.
        wanted.map(move |[_, at]| unsafe { CStr::from_ptr((names + at) as *const c_char) }.to_bytes())
    }

    /// The functions that begin (0) or end (3) the life of the library: one, and a list.
    fn functions(&self, first: usize) -> (Option<usize>, &'static [usize]) {
        let [one, list, bytes] = [0, 1, 2].map(|place| self.of_life[first + place]);
        let list = match list {
            0 => &[],
            // SAFETY: the section names the list, whose addresses the loader has set.
            list => unsafe {
                std::slice::from_raw_parts((self.distance + list) as *const usize, bytes / size_of::<usize>())
            },
        };
        ((one != 0).then_some(self.distance + one), list)
    }
}

/// Runs the constructors of libraries in the calling thread, and has their destructors run when the program ends.
fn initialise(libraries: &[Library]) {
    for library in in_order(libraries) {
        let Some(dynamic) = library.dynamic else { continue };
        let (one, list) = dynamic.functions(0);
        let (count, arguments, environment) = start::arguments();
        for function in one.into_iter().chain(list.iter().copied()) {
            // SAFETY: a constructor of the library, which all nodes have.
            unsafe { std::mem::transmute::<usize, Constructor>(function)(count, arguments, environment) };
        }
        // SAFETY: a function of this library, which is never unloaded, and a value that stays.
        unsafe { __cxa_atexit(finish, Box::into_raw(Box::new(dynamic)).cast(), null_mut()) };
    }
}

/// Runs the destructors of a library.
unsafe extern "C" fn finish(dynamic: *mut c_void) {
    // SAFETY: the value that `initialise` gave.
    let (one, list) = unsafe { *dynamic.cast::<Dynamic>() }.functions(3);
    for function in list.iter().rev().copied().chain(one) {
        // SAFETY: a destructor of the library, which is still loaded.
        unsafe { std::mem::transmute::<usize, Destructor>(function)() };
    }
}

/// The libraries, each after those that it needs.
fn in_order(libraries: &[Library]) -> Vec<&Library> {
    fn visit<'a>(libraries: &'a [Library], number: usize, seen: &mut [bool], order: &mut Vec<&'a Library>) {
        if std::mem::replace(&mut seen[number], true) {
            return;
        }
        let needed = libraries[number].dynamic.into_iter().flat_map(|dynamic| dynamic.texts(DT_NEEDED));
        for name in needed {
            if let Some(other) = libraries.iter().position(|library| library.is_named(name)) {
                visit(libraries, other, seen, order);
            }
        }
        order.push(&libraries[number]);
    }
    let (mut seen, mut order) = (vec![false; libraries.len()], Vec::new());
    (0..libraries.len()).for_each(|number| visit(libraries, number, &mut seen, &mut order));
    order
}
