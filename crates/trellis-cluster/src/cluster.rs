//! The public interface of a node: joining, the region, leaving. Waiting for other nodes is in
//! [`crate::synchronisation`].

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::config::Config;
use crate::join;
pub use crate::join::JoinError;
use crate::launch::Activity;
use crate::runtime::Node;
use crate::waits::Wait;
use trellis_memory::Parts;
use trellis_output::lines::complain;
use trellis_record::{Area, Counters};

/// One process's part in a cluster. Clones are the same node.
///
/// Dropping the last clone leaves the cluster, which waits for the other nodes to leave too. A node that unwinds from a
/// panic does not wait, but ends the cluster.
#[derive(Clone)]
pub struct Cluster {
    handle: Arc<Handle>,
}

struct Handle {
    node: Arc<Node>,
    service: Mutex<Option<JoinHandle<()>>>,
}

/// Why a call that waited could not be completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// A peer is gone or silent, or this node failed: the sentence says which and why.
    #[error("the cluster failed: {0}")]
    Failed(String),
    /// `wait_seconds_max` passed.
    #[error("gave up after {seconds} s {what}: {whom}")]
    TooLong {
        /// The wait, in words.
        what: String,
        /// Its limit in seconds.
        seconds: u64,
        /// The node or thread for which the call waited, in words.
        whom: String,
    },
    /// The call cannot be carried out as the program made it; the sentence says why.
    #[error("{0}")]
    Misuse(String),
}

impl Cluster {
    /// Joins the cluster that `config` describes and waits for its other nodes.
    ///
    /// # Errors
    ///
    /// [`JoinError`] says what this node lacks (memory, address, catcher, secret) or which nodes did not come.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?; // a cluster of one node
    /// // SAFETY: no other thread uses these bytes.
    /// let numbers = unsafe { cluster.region().slice_mut::<u64>(0, 100) };
    /// numbers[99] = 7;
    /// cluster.barrier(0)?;
    /// cluster.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn join(config: Config) -> Result<Cluster, JoinError> {
        join::join(config, &Parts::default()).map(Cluster::new)
    }

    /// Joins like [`Cluster::join`], with a region of which some parts are different, the same at every node: pieces for
    /// the variables of a program, for example. Nothing is mapped there before [`Region::occupy`]. A process that joins a
    /// running cluster has no such parts.
    ///
    /// # Errors
    ///
    /// As [`Cluster::join`].
    ///
    /// # Panics
    ///
    /// If a part is not made of whole pages, or the region does not have so many.
    pub fn join_in_parts(config: Config, parts: &Parts) -> Result<Cluster, JoinError> {
        join::join(config, parts).map(Cluster::new)
    }

    /// Joins over a link that already exists, for tests and for programs with their own transport. `config.nodes` only
    /// names the nodes in messages.
    pub fn join_over(config: Config, link: Box<dyn trellis_transport::Link>) -> Result<Cluster, JoinError> {
        join::join_over(config, link).map(Cluster::new)
    }

    fn new((node, service): (Arc<Node>, JoinHandle<()>)) -> Cluster {
        node.breakdown.begin(node.now());
        Cluster { handle: Arc::new(Handle { node, service: Mutex::new(Some(service)) }) }
    }

    /// This node's number, from 0.
    pub fn node(&self) -> usize {
        usize::from(self.inner().me.0)
    }

    /// The number of founders: the nodes from the start, which stay to the end and meet in barriers, with the numbers 0
    /// to `nodes() - 1`. A node that joined later has a higher number and is not counted; see [`Cluster::members`].
    pub fn nodes(&self) -> usize {
        usize::from(self.inner().founders)
    }

    /// The number of nodes that are present now, including those that joined later. It may change at any moment.
    pub fn members(&self) -> usize {
        self.inner().members_present()
    }

    /// Whether this node joined a running cluster. Such a node is in no barrier of all nodes, and may leave at any
    /// time.
    pub fn has_joined_later(&self) -> bool {
        self.inner().is_joined_node()
    }

    /// Whether a user asked this node, by `trellis leave`, to finish its piece of work and leave.
    pub fn is_leave_requested(&self) -> bool {
        self.inner().status.is_leave_requested()
    }

    /// The number of the configured manager.
    pub fn manager(&self) -> usize {
        self.inner().config.manager
    }

    /// The configuration of this node.
    pub fn config(&self) -> &Config {
        &self.inner().config
    }

    /// The shared memory.
    pub fn region(&self) -> Region<'_> {
        Region { node: self.inner() }
    }

    /// Fetches bytes `[offset, offset + bytes)` of the region before they are touched, in large pieces; with `write`,
    /// also the right to write them. This is a hint: other nodes may take the pages away again.
    ///
    /// # Errors
    ///
    /// [`WaitError::Misuse`] if the range leaves the region.
    pub fn prefetch(&self, offset: usize, bytes: usize, write: bool) -> Result<(), WaitError> {
        let node = self.inner();
        node.check_range(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        node.prefetch(node.pages_of(offset, bytes), write)
    }

    /// Names the part of the run that begins now, for the record and the report.
    pub fn phase(&self, name: &str) {
        let node = self.inner();
        let now = node.now();
        node.breakdown.begin_phase(now);
        node.recorder.phase(name, now, node.count());
    }

    /// The counters of this node so far.
    pub fn counters(&self) -> Counters {
        self.inner().count_of_link();
        self.inner().count()
    }

    /// Ends the cluster because this node's program cannot continue. The waits of every node fail and name this node,
    /// and processes that do not react are ended after a second.
    pub fn abandon(&self, why: &str) {
        self.inner().fail(why.to_owned());
    }

    /// Writes this node's record of the run until now, if one was requested. [`leave`](Cluster::leave) does so, too.
    /// This is for a process that ends while threads still use the memory, which therefore cannot leave.
    pub fn write_record(&self) {
        let node = self.inner();
        node.count();
        node.breakdown.end();
        node.count_of_link();
        node.recorder.write(node);
    }

    /// Sets how messages name the object of a number, for a library whose numbers mean nothing to users. Only the first
    /// call has an effect.
    pub fn name_objects(&self, name: fn(u64) -> String) {
        let _ = self.inner().object_names.set(name);
    }

    /// Whether this run leaves a record, in which parts of the region may have names.
    pub fn has_record(&self) -> bool {
        self.inner().recorder.is_wanted()
    }

    /// Names parts of the region for the record and for advice, such as the variables that lie there.
    pub fn name_memory(&self, areas: impl IntoIterator<Item = Area>) {
        self.inner().recorder.name(areas);
    }

    /// The calling thread is none of the program's, but of a library under it: it is not counted, and neither is what it
    /// waits for. It calls this before anything else.
    pub fn leave_thread_uncounted() {
        crate::runtime::leave_uncounted();
    }

    /// Calls `work`, in which waits with a limit of their own end early while `interrupt` is set, as if their time were over.
    pub fn interruptible<T>(interrupt: &'static AtomicBool, work: impl FnOnce() -> T) -> T {
        crate::runtime::interruptible(interrupt, work)
    }

    /// Threads that wait look at their interrupts, which were set before.
    pub fn interrupt(&self) {
        self.inner().waiters.rouse_all();
    }

    /// Calls this function when a thread is about to sleep in a wait (true), and when it has slept (false). It holds no lock
    /// then, so a handler of a signal may do what the thread may do.
    pub fn tell_of_sleeps(function: extern "C" fn(bool)) {
        crate::runtime::tell_of_sleeps(function);
    }

    /// Turns off reports of long waits for locks and other objects, for a program whose threads wait while others
    /// compute, as those of one process do.
    pub fn expect_long_waits(&self) {
        self.inner().waits_are_normal.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Says where the number of the program's threads at this node stands. A thread that waits while as many others compute
    /// as this node has cores then sleeps, and takes no core from them.
    pub fn count_threads(&self, threads: &'static std::sync::atomic::AtomicUsize) {
        // The first number stays.
        let _ = self.inner().threads.set(threads);
    }

    /// Leaves the cluster. A founder serves the other nodes until their programs are done too. A node that joined later
    /// hands its pages and locks on and leaves at once. No thread of a node that joined later may use the region from
    /// this call on, and no thread of a founder after it. Leaving twice does nothing.
    ///
    /// # Errors
    ///
    /// [`WaitError::Failed`] if a node died before all were done. [`WaitError::Misuse`] while the program has a handle
    /// to [memory with a name](crate::named), or if a node that joined later still holds or waits for a lock or another
    /// object. Nothing has changed then; the sentence names the object, and the node can leave when it has given it
    /// back.
    pub fn leave(&self) -> Result<(), WaitError> {
        let service = lock_service(&self.handle).take();
        match service {
            Some(service) => {
                let handles = &self.inner().handles;
                if let Err(refused) = handles.close().and_then(|()| self.inner().may_leave()) {
                    handles.reopen();
                    *lock_service(&self.handle) = Some(service);
                    return Err(refused);
                }
                self.inner().leave(service)
            }
            None => Ok(()),
        }
    }

    pub(crate) fn inner(&self) -> &Node {
        &self.handle.node
    }
}

fn lock_service(handle: &Handle) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
    handle.service.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Drop for Handle {
    fn drop(&mut self) {
        let service = self.service.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let Some(service) = service else { return };
        if std::thread::panicking() {
            self.node.fail("the program panicked".to_owned());
        } else if let Err(refused) = self.node.may_leave() {
            // Others may wait for it, and no thread is left to give it back.
            self.node.fail(format!("the program ended its part in the cluster although {refused}"));
        } else if let Err(error) = self.node.leave(service) {
            complain(format_args!("node {}: {error}", self.node.me.0));
        }
    }
}

impl Node {
    fn leave(&self, service: JoinHandle<()>) -> Result<(), WaitError> {
        // The end of the process says the same.
        let _ = join::say_not_ready(&self.config);
        self.doing(Activity::Waiting(Wait::Leave));
        self.count();
        self.breakdown.end();
        self.unlock_all_ranges();
        if !self.failure.is_set() {
            self.flush_leases();
        }
        if self.is_joined_node() {
            self.hand_over_and_go();
        } else {
            self.member_leave();
        }
        self.wait_until_all_left();
        self.end_leases();
        self.count_of_link();
        self.recorder.write(self);
        let ended = self.close(service);
        if self.config.statistics {
            self.print_statistics();
        }
        if self.failure.is_set() {
            return Err(WaitError::Failed(self.failure.sentence()));
        }
        self.doing(Activity::Left);
        ended.map_err(|_| WaitError::Failed("the service thread panicked".to_owned()))
    }

    fn print_statistics(&self) {
        let counters = self.counters().load();
        let shown = counters.entries().filter(|(_, count)| *count > 0);
        let words: Vec<String> = shown.map(|(name, count)| format!("{name}={count}")).collect();
        complain(format_args!("node {}: {}", self.me.0, words.join(" ")));
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Cluster(node {} of {})", self.node(), self.nodes())
    }
}

/// The shared memory, as it is mapped in this process: at the same address in every process of the cluster.
#[derive(Clone, Copy)]
pub struct Region<'a> {
    pub(crate) node: &'a Node,
}

impl<'a> Region<'a> {
    /// The address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.node.region.base()
    }

    /// Maps the pieces at their addresses and replaces what is mapped there; see [`Cluster::join_in_parts`].
    ///
    /// # Errors
    ///
    /// The kernel refused; what was mapped there may be gone.
    ///
    /// # Safety
    ///
    /// The caller owns what is mapped there, and nothing uses it meanwhile. The pieces stay mapped after the node has
    /// left.
    pub unsafe fn occupy(&self) -> Result<(), trellis_memory::MapError> {
        // SAFETY: the caller's promise.
        unsafe { self.node.region.occupy() }
    }

    /// Maps pages of a vacant piece at their addresses and replaces what is mapped there.
    ///
    /// # Errors
    ///
    /// The same as for [`Region::occupy`].
    ///
    /// # Panics
    ///
    /// If the addresses are not those of whole pages of the region.
    ///
    /// # Safety
    ///
    /// As for [`Region::occupy`], and no node has used these pages of the region.
    pub unsafe fn occupy_part(&self, addresses: std::ops::Range<usize>) -> Result<(), trellis_memory::MapError> {
        // SAFETY: the caller's promise.
        unsafe { self.node.region.occupy_part(addresses) }
    }

    /// The size of the region in bytes.
    pub fn bytes(&self) -> usize {
        self.node.region.bytes()
    }

    /// The unit of coherence in bytes.
    pub fn page_bytes(&self) -> usize {
        self.node.region.page_bytes()
    }

    /// The catcher in use, as configuration and reports name it.
    pub fn catcher(&self) -> String {
        self.node.region.catcher().to_string()
    }

    /// The `length` values of `T` that begin at `offset_bytes`.
    ///
    /// # Panics
    ///
    /// If the values are not inside the region, or reach into the shared heap ([`Region::heap_start`]), or if
    /// `offset_bytes` is not aligned for `T`.
    ///
    /// # Safety
    ///
    /// Any bytes must be a valid `T`, and for the lifetime of the slice no thread of any node may write to it.
    pub unsafe fn slice<T>(&self, offset_bytes: usize, length: usize) -> &'a [T] {
        let pointer = self.place::<T>(offset_bytes, length);
        // SAFETY: `place` checked bounds and alignment; the region lives as long as the node; the rest is the caller's.
        unsafe { std::slice::from_raw_parts(pointer, length) }
    }

    /// The `length` values of `T` that begin at `offset_bytes`, for reading and writing.
    ///
    /// # Panics
    ///
    /// As [`Region::slice`].
    ///
    /// # Safety
    ///
    /// Any bytes must be a valid `T`, and for the lifetime of the slice no other thread of any node may use it.
    pub unsafe fn slice_mut<T>(&self, offset_bytes: usize, length: usize) -> &'a mut [T] {
        let pointer = self.place::<T>(offset_bytes, length);
        // SAFETY: as in `slice`; the caller promises that nothing else uses it.
        unsafe { std::slice::from_raw_parts_mut(pointer, length) }
    }

    /// Changes bytes `[offset, offset + bytes)` atomically: locks the range, calls `change` with it, and gives the lock
    /// back. Other nodes see all of what `change` stored, or nothing. Two updates with a page in common, by any threads
    /// of any nodes, happen one after the other.
    ///
    /// # Errors
    ///
    /// As [`Region::lock_range`].
    ///
    /// # Safety
    ///
    /// While `change` runs, no thread of this node may use these bytes except by `update` or with
    /// [`Region::lock_range`]. The lock excludes other nodes and other calls, but not plain loads and stores of this
    /// node's threads.
    pub unsafe fn update<R>(
        &self,
        offset: usize,
        bytes: usize,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, WaitError> {
        let _guard = self.lock_range(offset, bytes)?;
        // SAFETY: any bytes are valid; no other node and no other call has them while the guard lives; the caller
        // promises that no thread of this node uses them otherwise.
        Ok(change(unsafe { std::slice::from_raw_parts_mut(self.base().wrapping_add(offset), bytes) }))
    }

    fn place<T>(&self, offset_bytes: usize, length: usize) -> *mut T {
        let what = || format!("{length} values of {} bytes from byte {offset_bytes} on", size_of::<T>());
        let (bytes, heap_start) = (self.bytes(), self.heap_start());
        let end = length.checked_mul(size_of::<T>()).and_then(|length| length.checked_add(offset_bytes));
        let end = end.unwrap_or(usize::MAX);
        assert!(
            end <= bytes,
            "{} do not fit into the region of {bytes} bytes; make them fewer, or set region_bytes \
             (trellis run --set region_bytes=1GiB)",
            what()
        );
        assert!(
            end <= heap_start,
            "{} reach into the shared heap, which has bytes {heap_start} to {bytes} of the region; give it less \
             (trellis run --set heap_bytes=0, or a multiple of page_bytes), or make the region larger (region_bytes)",
            what()
        );
        let align = align_of::<T>();
        assert!(
            offset_bytes.is_multiple_of(align),
            "byte {offset_bytes} is not aligned for values that need a multiple of {align}; byte {} is",
            offset_bytes.next_multiple_of(align)
        );
        self.base().wrapping_add(offset_bytes).cast()
    }
}
