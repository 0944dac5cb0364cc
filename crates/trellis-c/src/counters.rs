//! The counters of a node as C sees them.

/// `struct trellis_counters`: the fields and their order are the header's; a test compares size and offsets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // each field is explained once, in trellis.h and at trellis::Counters
pub struct Counters {
    pub read_faults: u64,
    pub write_faults: u64,
    pub upgrade_faults: u64,
    pub local_faults: u64,
    pub prefetched_pages: u64,
    pub pages_in: u64,
    pub pages_out: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub messages_in: u64,
    pub messages_out: u64,
    pub invalidations: u64,
    pub lock_acquires: u64,
    pub lock_acquires_local: u64,
    pub barriers: u64,
    pub atomics: u64,
    pub fault_wait_ns: u64,
    pub lock_wait_ns: u64,
    pub barrier_wait_ns: u64,
    pub strangers_refused: u64,
    pub frames_refused: u64,
    pub upgrade_owner_faults: u64,
    pub retries: u64,
    pub redirects: u64,
    pub packets_in: u64,
    pub packets_out: u64,
    pub overhead_ns: u64,
    pub diffs_out: u64,
    pub diffs_in: u64,
    pub handler_ns: u64,
    pub program_ns: u64,
    pub program_threads: u64,
}

impl From<trellis::Counters> for Counters {
    fn from(from: trellis::Counters) -> Counters {
        Counters {
            read_faults: from.read_faults,
            write_faults: from.write_faults,
            upgrade_faults: from.upgrade_faults,
            local_faults: from.local_faults,
            prefetched_pages: from.prefetched_pages,
            pages_in: from.pages_in,
            pages_out: from.pages_out,
            bytes_in: from.bytes_in,
            bytes_out: from.bytes_out,
            messages_in: from.messages_in,
            messages_out: from.messages_out,
            invalidations: from.invalidations,
            lock_acquires: from.lock_acquires,
            lock_acquires_local: from.lock_acquires_local,
            barriers: from.barriers,
            atomics: from.atomics,
            fault_wait_ns: from.fault_wait_ns,
            lock_wait_ns: from.lock_wait_ns,
            barrier_wait_ns: from.barrier_wait_ns,
            strangers_refused: from.strangers_refused,
            frames_refused: from.frames_refused,
            upgrade_owner_faults: from.upgrade_owner_faults,
            retries: from.retries,
            redirects: from.redirects,
            packets_in: from.packets_in,
            packets_out: from.packets_out,
            overhead_ns: from.overhead_ns,
            diffs_out: from.diffs_out,
            diffs_in: from.diffs_in,
            handler_ns: from.handler_ns,
            program_ns: from.program_ns,
            program_threads: from.program_threads,
        }
    }
}
