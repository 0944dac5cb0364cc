//! `trellis_join` and all operations of a member of a cluster.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::Duration;

use trellis::{Cluster, JoinError, ToProtocol, WaitError};

use crate::config::ConfigHandle;
use crate::counters::Counters;
use crate::failure::{self, Failure, answer, value_or};
use crate::status;

/// `TRELLIS_READ`
pub const READ: c_int = 0;
/// `TRELLIS_WRITE`
pub const WRITE: c_int = 1;

/// `struct trellis_cluster`: a member. A process has at most one.
pub struct ClusterHandle {
    cluster: Cluster,
    _membership: Membership,
}

impl ClusterHandle {
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

/// The handle of this process, if it is a node.
static CURRENT: AtomicPtr<ClusterHandle> = AtomicPtr::new(std::ptr::null_mut());

/// The right to be a node: one per process, because a region has one address and a node one set of connections.
struct Membership;

static IS_MEMBER: AtomicBool = AtomicBool::new(false);
/// Whether this process was forked from one that had a handle: it has neither the region nor the connections.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

impl Membership {
    fn take() -> Result<Membership, Failure> {
        static WATCH_FORKS: Once = Once::new();
        // SAFETY: the function only stores a flag, which is allowed in a forked child.
        WATCH_FORKS.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        });
        if IS_MEMBER.swap(true, Ordering::SeqCst) {
            let why = "this process is a node already; leave that cluster first, a process is one node at a time";
            return Err(Failure::new(status::STATE, why));
        }
        Ok(Membership)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        IS_MEMBER.store(false, Ordering::SeqCst);
    }
}

extern "C" fn in_child() {
    IS_CHILD.store(IS_MEMBER.load(Ordering::SeqCst), Ordering::SeqCst);
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Failure {
        let status = match error {
            WaitError::Failed(_) => status::NODE_LOST,
            WaitError::TooLong { .. } => status::DEADLINE,
            WaitError::Misuse(_) => status::STATE,
            _ => status::INTERNAL,
        };
        Failure::new(status, error)
    }
}

pub(crate) fn refuse_in_child() -> Result<(), Failure> {
    if IS_CHILD.load(Ordering::Relaxed) {
        let why = "this is a forked child, which has no region and no connections; call Trellis in the parent only";
        return Err(Failure::new(status::STATE, why));
    }
    Ok(())
}

/// Runs the body of a function on a cluster that returns a status.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed.
pub(crate) unsafe fn on_cluster(
    cluster: *const ClusterHandle,
    body: impl FnOnce(&Cluster) -> Result<c_int, Failure>,
) -> c_int {
    answer(|| {
        refuse_in_child()?;
        // SAFETY: the caller's promise.
        let handle = unsafe { cluster.as_ref() }
            .ok_or_else(|| Failure::new(status::ARGUMENT, "cluster is NULL; give the handle of trellis_join"))?;
        body(&handle.cluster)
    })
}

/// Returns one fact about a cluster; `otherwise` for NULL.
///
/// # Safety
/// As for [`on_cluster`].
unsafe fn ask<T>(cluster: *const ClusterHandle, otherwise: T, question: impl FnOnce(&Cluster) -> T) -> T {
    // SAFETY: the caller's promise.
    value_or(otherwise, || unsafe { cluster.as_ref() }.map(|handle| question(&handle.cluster)))
}

/// Joins the cluster as a node.
///
/// # Safety
/// `config` is NULL or came from `trellis_config_load`; `cluster` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_join(config: *const ConfigHandle, cluster: *mut *mut ClusterHandle) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { failure::place(cluster, "cluster") }?;
        *place = std::ptr::null_mut();
        refuse_in_child()?;
        // SAFETY: the caller's promise.
        let config = match unsafe { config.as_ref() } {
            Some(config) => config.for_this_node()?,
            None => ConfigHandle::load(None)?.for_this_node()?,
        };
        let membership = Membership::take()?;
        let joined = Cluster::join(config).map_err(|error| match error {
            JoinError::Config(_) => Failure::new(status::CONFIGURATION, error),
            other => Failure::new(status::JOIN, other),
        })?;
        *place = Box::into_raw(Box::new(ClusterHandle { cluster: joined, _membership: membership }));
        CURRENT.store(*place, Ordering::Release);
        Ok(status::OK)
    })
}

/// Leaves together with the other nodes.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed; no other thread uses it or the region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_leave(cluster: *mut ClusterHandle) -> c_int {
    answer(|| {
        refuse_in_child()?;
        // SAFETY: the caller's promise.
        let handle = unsafe { cluster.as_ref() }
            .ok_or_else(|| Failure::new(status::ARGUMENT, "cluster is NULL; give the handle of trellis_join"))?;
        let left = handle.cluster.leave();
        if !matches!(left, Err(WaitError::Misuse(_))) {
            // SAFETY: the caller's promise; a node whose leave was refused is still a member and keeps its handle.
            drop(unsafe { take(cluster) });
        }
        left?;
        Ok(status::OK)
    })
}

/// Closes the connections at once, without waiting.
///
/// # Safety
/// As for [`trellis_leave`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_abandon(cluster: *mut ClusterHandle) {
    value_or((), || {
        refuse_in_child().ok()?;
        // SAFETY: the caller's promise.
        let handle = unsafe { take(cluster) }?;
        handle.cluster.abandon("the program gave up");
        // A failed node does not wait for the others when it is dropped.
        drop(handle);
        Some(())
    });
}

/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not taken before.
unsafe fn take(cluster: *mut ClusterHandle) -> Option<Box<ClusterHandle>> {
    // There is no other handle, and `trellis_current` must not return a freed one.
    let _ = CURRENT.compare_exchange(cluster, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    // SAFETY: not null, and made by Box::into_raw in trellis_join; otherwise the caller's promise.
    (!cluster.is_null()).then(|| unsafe { Box::from_raw(cluster) })
}

/// The handle of this process, or NULL if it is not a node.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_current() -> *mut ClusterHandle {
    CURRENT.load(Ordering::Acquire)
}

/// This node's index.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_node(cluster: *const ClusterHandle) -> usize {
    // SAFETY: the caller's promise.
    unsafe { ask(cluster, 0, Cluster::node) }
}

/// The number of nodes.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_nodes(cluster: *const ClusterHandle) -> usize {
    // SAFETY: the caller's promise.
    unsafe { ask(cluster, 0, Cluster::nodes) }
}

/// The number of nodes that take part now, including this one: founders, and nodes that joined and have not left.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_members(cluster: *const ClusterHandle) -> usize {
    // SAFETY: the caller's promise.
    unsafe { ask(cluster, 0, Cluster::members) }
}

/// Whether this node joined while the cluster was running, as 1 or 0.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_joined_later(cluster: *const ClusterHandle) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ask(cluster, 0, |cluster| cluster.has_joined_later().into()) }
}

/// Whether `trellis leave` asked this node to finish its piece of work and leave, as 1 or 0.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_leave_requested(cluster: *const ClusterHandle) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ask(cluster, 0, |cluster| cluster.is_leave_requested().into()) }
}

/// The manager's index.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_manager(cluster: *const ClusterHandle) -> usize {
    // SAFETY: the caller's promise.
    unsafe { ask(cluster, 0, Cluster::manager) }
}

/// The region's first byte.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_base(cluster: *const ClusterHandle) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { ask(cluster, std::ptr::null_mut(), |cluster| cluster.region().base().cast()) }
}

/// The region's size.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_bytes(cluster: *const ClusterHandle) -> usize {
    // SAFETY: the caller's promise.
    unsafe { ask(cluster, 0, |cluster| cluster.region().bytes()) }
}

/// The size of a page.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_page_bytes(cluster: *const ClusterHandle) -> usize {
    // SAFETY: the caller's promise.
    unsafe { ask(cluster, 0, |cluster| cluster.region().page_bytes()) }
}

/// Fetches a range in large steps.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed; `address` is only compared, never dereferenced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_prefetch(
    cluster: *mut ClusterHandle,
    address: *const c_void,
    bytes: usize,
    access: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            if access != READ && access != WRITE {
                let why = format!("access {access} is unknown; give TRELLIS_READ or TRELLIS_WRITE");
                return Err(Failure::new(status::ARGUMENT, why));
            }
            let offset_bytes = offset_of(cluster, address as usize, bytes)?;
            if bytes > 0 {
                cluster.prefetch(offset_bytes, bytes, access == WRITE)?;
            }
            Ok(status::OK)
        })
    }
}

/// Locks a range.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed; `address` is only compared, never dereferenced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_lock_range(
    cluster: *mut ClusterHandle,
    address: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_cluster(cluster, |cluster| lock_range(cluster, address as usize, bytes, None)) }
}

/// Locks a range for a time.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed; `address` is only compared, never dereferenced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_lock_range_for(
    cluster: *mut ClusterHandle,
    address: *const c_void,
    bytes: usize,
    microseconds: u64,
) -> c_int {
    let stay = Some(Duration::from_micros(microseconds));
    // SAFETY: the caller's promise.
    unsafe { on_cluster(cluster, |cluster| lock_range(cluster, address as usize, bytes, stay)) }
}

fn lock_range(cluster: &Cluster, address: usize, bytes: usize, stay: Option<Duration>) -> Result<c_int, Failure> {
    let offset_bytes = offset_of_some(cluster, address, bytes)?;
    cluster.region().lock_range_acquire(offset_bytes, bytes, stay)?;
    Ok(status::OK)
}

/// Unlocks a range.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed; `address` is only compared, never dereferenced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_unlock_range(
    cluster: *mut ClusterHandle,
    address: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            let offset_bytes = offset_of_some(cluster, address as usize, bytes)?;
            cluster.region().lock_range_release(offset_bytes, bytes)?;
            Ok(status::OK)
        })
    }
}

/// Sets the protocol of a range.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed; `address` is only compared, never dereferenced;
/// `protocol` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_set_protocol(
    cluster: *mut ClusterHandle,
    address: *const c_void,
    bytes: usize,
    protocol: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            let text = failure::text(protocol, "protocol")?;
            let protocol = text.to_protocol().map_err(|error| Failure::new(status::ARGUMENT, error))?;
            let offset_bytes = offset_of_some(cluster, address as usize, bytes)?;
            let page_bytes = cluster.region().page_bytes();
            if !offset_bytes.is_multiple_of(page_bytes) || !bytes.is_multiple_of(page_bytes) {
                let why = format!(
                    "{bytes} bytes at offset {offset_bytes} are not whole pages of {page_bytes} bytes; a protocol is \
                     chosen for whole pages"
                );
                return Err(Failure::new(status::ARGUMENT, why));
            }
            cluster.region().set_protocol(offset_bytes, bytes, protocol)?;
            Ok(status::OK)
        })
    }
}

/// The protocol of a byte, as text.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed; `address` is only compared, never dereferenced;
/// `text` is NULL or has room for `text_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_protocol_at(
    cluster: *const ClusterHandle,
    address: *const c_void,
    text: *mut c_char,
    text_bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            let offset_bytes = offset_of_some(cluster, address as usize, 1)?;
            failure::place(text, "text")?;
            let protocol = cluster.region().protocol(offset_bytes).to_string();
            let shown = protocol.len().min(text_bytes.saturating_sub(1));
            std::ptr::copy_nonoverlapping(protocol.as_ptr().cast(), text, shown);
            if text_bytes > 0 {
                text.add(shown).write(0);
            }
            Ok(protocol.len() as c_int)
        })
    }
}

/// The offset in the region of a range that is not empty.
fn offset_of_some(cluster: &Cluster, address: usize, bytes: usize) -> Result<usize, Failure> {
    if bytes == 0 {
        return Err(Failure::new(status::ARGUMENT, "the range is empty; give at least one byte"));
    }
    offset_of(cluster, address, bytes)
}

/// The offset of a range in the region.
fn offset_of(cluster: &Cluster, address: usize, bytes: usize) -> Result<usize, Failure> {
    let region = cluster.region();
    let base = region.base() as usize;
    address
        .checked_sub(base)
        .filter(|offset_bytes| *offset_bytes <= region.bytes() && bytes <= region.bytes() - offset_bytes)
        .ok_or_else(|| {
            let end = base + region.bytes();
            let why = format!("{bytes} bytes at {address:#x} are not inside the region {base:#x}-{end:#x}");
            Failure::new(status::ARGUMENT, why)
        })
}

/// Waits for every node.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_barrier(cluster: *mut ClusterHandle, id: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            cluster.barrier(id)?;
            Ok(status::OK)
        })
    }
}

/// Acquires a lock.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_lock(cluster: *mut ClusterHandle, id: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            cluster.mutex(id).acquire()?;
            Ok(status::OK)
        })
    }
}

/// Releases a lock.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_unlock(cluster: *mut ClusterHandle, id: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            cluster.mutex(id).release()?;
            Ok(status::OK)
        })
    }
}

/// Reads a word.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed; `value` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_atomic_load(cluster: *mut ClusterHandle, id: u64, value: *mut u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            *failure::place(value, "value")? = cluster.atomic(id).load()?;
            Ok(status::OK)
        })
    }
}

/// Writes a word.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_atomic_store(cluster: *mut ClusterHandle, id: u64, value: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            cluster.atomic(id).store(value)?;
            Ok(status::OK)
        })
    }
}

/// Replaces a word.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed; `before` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_atomic_exchange(
    cluster: *mut ClusterHandle,
    id: u64,
    value: u64,
    before: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_cluster(cluster, |cluster| give(before, cluster.atomic(id).exchange(value)?)) }
}

/// Adds to a word.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed; `before` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_atomic_fetch_add(
    cluster: *mut ClusterHandle,
    id: u64,
    addend: u64,
    before: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_cluster(cluster, |cluster| give(before, cluster.atomic(id).fetch_add(addend)?)) }
}

/// Stores a value for a caller who may not want it.
///
/// # Safety
/// `place` is NULL or valid for writing.
unsafe fn give(place: *mut u64, value: u64) -> Result<c_int, Failure> {
    if !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { place.write(value) };
    }
    Ok(status::OK)
}

/// Replaces a word if it has the expected value.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed; `expected` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_atomic_compare_exchange(
    cluster: *mut ClusterHandle,
    id: u64,
    expected: *mut u64,
    desired: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            let expected = failure::place(expected, "expected")?;
            match cluster.atomic(id).compare_exchange(*expected, desired)? {
                Ok(_) => Ok(1),
                Err(found) => {
                    *expected = found;
                    Ok(0)
                }
            }
        })
    }
}

/// Names the following part of the record.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed; `name` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_phase(cluster: *mut ClusterHandle, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            cluster.phase(failure::text(name, "name")?);
            Ok(status::OK)
        })
    }
}

/// Fills in the counters that the caller's structure has room for.
///
/// # Safety
/// `cluster` is NULL or came from [`trellis_join`] and was not freed; `counters` is NULL or has room for
/// `counters_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_read_counters(
    cluster: *const ClusterHandle,
    counters: *mut Counters,
    counters_bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            if counters.is_null() {
                return Err(Failure::new(status::ARGUMENT, "counters is NULL; give the address of a trellis_counters"));
            }
            let now = Counters::from(cluster.counters());
            let known_bytes = counters_bytes.min(size_of::<Counters>());
            let bytes = counters.cast::<u8>();
            bytes.write_bytes(0, counters_bytes);
            bytes.copy_from_nonoverlapping((&raw const now).cast(), known_bytes);
            Ok(status::OK)
        })
    }
}
