/* Prints what the header promises about sizes and numbers, for a comparison with the library. */
#include <stdio.h>
#include <trellis.h>

#define NUMBER(name) printf(#name " %lld\n", (long long)(name))
#define FIELD(name) printf(#name " %zu\n", offsetof(trellis_counters, name))

int main(void) {
    NUMBER(TRELLIS_OK);
    NUMBER(TRELLIS_ERROR_ARGUMENT);
    NUMBER(TRELLIS_ERROR_CONFIGURATION);
    NUMBER(TRELLIS_ERROR_JOIN);
    NUMBER(TRELLIS_ERROR_DEADLINE);
    NUMBER(TRELLIS_ERROR_NODE_LOST);
    NUMBER(TRELLIS_ERROR_STATE);
    NUMBER(TRELLIS_ERROR_INTERNAL);
    NUMBER(TRELLIS_READ);
    NUMBER(TRELLIS_WRITE);
    NUMBER(TRELLIS_OTHER);
    NUMBER(TRELLIS_UNSIGNED);
    NUMBER(TRELLIS_SIGNED);
    NUMBER(TRELLIS_FLOAT);
    NUMBER(TRELLIS_SUM);
    NUMBER(TRELLIS_LEAST);
    NUMBER(TRELLIS_GREATEST);
    NUMBER(TRELLIS_AND);
    NUMBER(TRELLIS_OR);
    NUMBER(TRELLIS_XOR);
    NUMBER(sizeof(trellis_counters));
    FIELD(read_faults);
    FIELD(write_faults);
    FIELD(upgrade_faults);
    FIELD(local_faults);
    FIELD(prefetched_pages);
    FIELD(pages_in);
    FIELD(pages_out);
    FIELD(bytes_in);
    FIELD(bytes_out);
    FIELD(messages_in);
    FIELD(messages_out);
    FIELD(invalidations);
    FIELD(lock_acquires);
    FIELD(lock_acquires_local);
    FIELD(barriers);
    FIELD(atomics);
    FIELD(fault_wait_ns);
    FIELD(lock_wait_ns);
    FIELD(barrier_wait_ns);
    FIELD(unauthenticated_refused);
    FIELD(nodes_refused);
    FIELD(packets_refused);
    FIELD(frames_refused);
    FIELD(upgrade_owner_faults);
    FIELD(retries);
    FIELD(redirects);
    FIELD(packets_in);
    FIELD(packets_out);
    FIELD(overhead_ns);
    FIELD(diffs_out);
    FIELD(diffs_in);
    FIELD(handler_ns);
    FIELD(program_ns);
    FIELD(program_threads);
    FIELD(pages_piggybacked_out);
    FIELD(pages_piggybacked_in);
    FIELD(pages_evicted);
    FIELD(pages_written_back);
    FIELD(recalls);
    return 0;
}
