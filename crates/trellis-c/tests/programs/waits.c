/* Every way to wait together of trellis.h, on a cluster of any size. Exit 0 when all is right. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <trellis.h>

static void check(int condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "wrong: %s; last error: %s\n", what, trellis_last_error());
    exit(1);
}

#define IS(call, answer) check((call) == (answer), #call)

static void add_one(void *counter) { *(uint64_t *)counter += 1; }

static void reduce(trellis_cluster *cluster) {
    const uint64_t me = trellis_node(cluster), nodes = trellis_nodes(cluster);
    uint64_t sum = me + 1, bits = UINT64_C(1) << me, word = me * 7 + 1;
    int64_t least = -(int64_t)me;
    double greatest = 0.5 * (double)me;
    IS(trellis_barrier_reduce_u64(cluster, 1, TRELLIS_SUM, &sum), 0);
    IS(trellis_barrier_reduce_u64(cluster, 1, TRELLIS_OR, &bits), 0);
    IS(trellis_barrier_reduce_i64(cluster, 1, TRELLIS_LEAST, &least), 0);
    IS(trellis_barrier_reduce_double(cluster, 1, TRELLIS_GREATEST, &greatest), 0);
    IS(trellis_broadcast(cluster, 1, nodes - 1, &word), 0);
    check(sum == nodes * (nodes + 1) / 2 && bits == (UINT64_C(1) << nodes) - 1, "unsigned numbers");
    check(least == -(int64_t)(nodes - 1) && greatest == 0.5 * (double)(nodes - 1), "signed and floating numbers");
    check(word == (nodes - 1) * 7 + 1, "a broadcast");
    IS(trellis_barrier_reduce_u64(cluster, 1, 17, &sum), TRELLIS_ERROR_ARGUMENT);
    IS(trellis_barrier_reduce_double(cluster, 1, TRELLIS_XOR, &greatest), TRELLIS_ERROR_STATE);
    IS(trellis_broadcast(cluster, 1, nodes, &word), TRELLIS_ERROR_STATE);
    IS(trellis_broadcast(cluster, 1, 0, NULL), TRELLIS_ERROR_ARGUMENT);
}

static void take_turns(trellis_cluster *cluster, uint64_t *numbers) {
    for (int i = 0; i < 30; i++) {
        if (trellis_try_lock(cluster, 2) == 0) IS(trellis_try_lock_for(cluster, 2, 60000000), 1);
        numbers[0]++;
        IS(trellis_unlock(cluster, 2), 0);
        IS(trellis_rwlock_write(cluster, 2), 0);
        numbers[1]++;
        IS(trellis_rwlock_end_write(cluster, 2), 0);
        IS(trellis_rwlock_read(cluster, 2), 0);
        check(numbers[1] > (uint64_t)i, "what is read under a lock");
        IS(trellis_rwlock_end_read(cluster, 2), 0);
        if (trellis_rwlock_try_write(cluster, 2) == 1) IS(trellis_rwlock_end_write(cluster, 2), 0);
        if (trellis_rwlock_try_read(cluster, 2) == 1) IS(trellis_rwlock_end_read(cluster, 2), 0);
    }
    IS(trellis_rwlock_try_read_for(cluster, 2, 60000000), 1);
    IS(trellis_rwlock_end_read(cluster, 2), 0);
    IS(trellis_rwlock_try_write_for(cluster, 2, 60000000), 1);
    IS(trellis_rwlock_end_write(cluster, 2), 0);
    IS(trellis_rwlock_end_write(cluster, 2), TRELLIS_ERROR_STATE);
    trellis_barrier_of(cluster, 3, (uint32_t)trellis_nodes(cluster));
    check(numbers[0] == 30 * trellis_nodes(cluster), "a lock lost an increment");
    check(numbers[1] == 30 * trellis_nodes(cluster), "a read-write lock lost an increment");
    IS(trellis_barrier_of(cluster, 3, 0), TRELLIS_ERROR_STATE);
}

/* Node 0 hands a token to every other node, one by one, and each gives it back. */
static void wait_for_notifications(trellis_cluster *cluster, uint64_t *turn) {
    const uint64_t me = trellis_node(cluster), nodes = trellis_nodes(cluster);
    IS(trellis_lock(cluster, 4), 0);
    while (*turn != me) IS(trellis_condition_wait(cluster, 4, 4), 0);
    *turn = me + 1;
    IS(trellis_condition_notify_all(cluster, 4), 0);
    IS(trellis_unlock(cluster, 4), 0);
    trellis_barrier(cluster, 4);
    check(*turn == nodes, "everybody had a turn");
    IS(trellis_condition_wait(cluster, 4, 4), TRELLIS_ERROR_STATE);
    IS(trellis_lock(cluster, 5 + me), 0);
    IS(trellis_condition_wait_for(cluster, 5 + me, 5 + me, 1000), 0);
    IS(trellis_unlock(cluster, 5 + me), 0);
    IS(trellis_condition_notify_one(cluster, 5 + me), 0);
}

static void count_and_flag(trellis_cluster *cluster, uint64_t *once) {
    const uint64_t me = trellis_node(cluster), nodes = trellis_nodes(cluster);
    uint64_t value = 99;
    if (me == 0) IS(trellis_semaphore_release(cluster, 6, nodes), 0);
    IS(trellis_semaphore_acquire(cluster, 6), 0);
    trellis_barrier(cluster, 6);
    IS(trellis_semaphore_try_acquire(cluster, 6), 0);
    IS(trellis_semaphore_try_acquire_for(cluster, 6, 1000), 0);
    IS(trellis_semaphore_value(cluster, 6, &value), 0);
    check(value == 0, "the semaphore is used up");
    IS(trellis_semaphore_value(cluster, 6, NULL), TRELLIS_ERROR_ARGUMENT);

    IS(trellis_event_is_set(cluster, 7), 0);
    IS(trellis_event_wait_for(cluster, 7, 1000), 0);
    trellis_barrier(cluster, 6);
    if (me == nodes - 1) IS(trellis_event_set(cluster, 7), 0);
    IS(trellis_event_wait(cluster, 7), 0);
    IS(trellis_event_wait_for(cluster, 7, 60000000), 1);
    trellis_barrier(cluster, 6);
    IS(trellis_event_clear(cluster, 7), 0);
    IS(trellis_event_is_set(cluster, 7), 0);

    check(trellis_once(cluster, 8, add_one, once) >= 0, "what is done once");
    check(*once == 1, "it was done once");
    IS(trellis_once(cluster, 8, add_one, once), 0);
    IS(trellis_once(cluster, 8, NULL, NULL), TRELLIS_ERROR_ARGUMENT);
    IS(trellis_once_done(cluster, 8), TRELLIS_ERROR_STATE);
    IS(trellis_once_begin(cluster, 100 + me), 1);
    IS(trellis_once_failed(cluster, 100 + me), 0);
    IS(trellis_once_begin(cluster, 100 + me), 1);
    IS(trellis_once_done(cluster, 100 + me), 0);
    IS(trellis_once_begin(cluster, 100 + me), 0);
}

int main(void) {
    trellis_cluster *cluster;
    IS(trellis_try_lock(NULL, 1), TRELLIS_ERROR_ARGUMENT);
    IS(trellis_join(NULL, &cluster), 0);
    uint64_t *numbers = trellis_base(cluster);
    reduce(cluster);
    take_turns(cluster, numbers);
    wait_for_notifications(cluster, numbers + 512);
    count_and_flag(cluster, numbers + 1024);
    IS(trellis_leave(cluster), 0);
    puts("waits complete");
    return 0;
}
