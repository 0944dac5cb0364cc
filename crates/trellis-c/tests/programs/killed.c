/* One wait, named by the first argument, for a peer that never lets it through: node number argv[2] prepares it and
 * then does nothing more. The others go on when the file "go" is there, and print what the call told them. They end
 * when the file "over" is there: with status 70 after an error, as every Trellis program does, with 0 if the wait was
 * over without one. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <trellis.h>

#define PAGES 48
/* So many pages in a row have the same home with home = interleaved. */
#define CHUNK_PAGES 512
#define HOUR_US UINT64_C(3600000000)

static trellis_cluster *cluster;
static size_t me, victim, page_bytes;
/* An object whose home is the victim, one whose home is not, and one of this node's own with its home here. */
static uint64_t at_victim, at_other, own;
/* What another node allocated. */
static void **blocks;

static void must(int answer, const char *what) {
    if (answer >= 0) return;
    fprintf(stderr, "cannot prepare, %s: %s\n", what, trellis_last_error());
    exit(1);
}

#define MUST(call) must((call), #call)

/* Page `number`, whose home is node `number` modulo the nodes. */
static volatile uint64_t *page(size_t number) {
    size_t nodes = trellis_nodes(cluster);
    size_t index = number % nodes * CHUNK_PAGES + number / nodes;
    return (volatile uint64_t *)((char *)trellis_base(cluster) + index * page_bytes);
}

static int read_pages(void) {
    uint64_t sum = 0;
    for (size_t number = 0; number < PAGES; number++) sum += page(number)[1 + me];
    return sum == UINT64_MAX ? -1 : 0;
}

static int write_pages(void) {
    for (size_t number = 0; number < PAGES; number++) page(number)[1 + me] = number + 1;
    return 0;
}

static void until_there(const char *file) {
    while (access(file, F_OK) != 0) usleep(1000);
}

static void do_nothing(void *argument) { (void)argument; }

/* ---------------------------------------------------------------------------------------- what must be so before -- */

static void nothing(void) {}

static void hold_lock(void) {
    if (me == victim) MUST(trellis_lock(cluster, at_other));
    if (me == victim) MUST(trellis_lock(cluster, at_victim));
}

static void hold_write(void) {
    if (me == victim) MUST(trellis_rwlock_write(cluster, at_other));
}

static void hold_read(void) {
    if (me == victim) MUST(trellis_rwlock_read(cluster, at_other));
}

static void begin_once(void) {
    if (me == victim) MUST(trellis_once_begin(cluster, at_other));
}

static void lock_own(void) { MUST(trellis_lock(cluster, own)); }

/* Everybody has a copy of every page, and a lock to give back. */
static void copy_pages(void) {
    lock_own();
    read_pages();
    MUST(trellis_barrier(cluster, 1));
    read_pages();
}

static void allocate_there(void) {
    blocks = (void **)(uintptr_t)page(PAGES);
    if (me == victim) {
        for (size_t node = 0; node < trellis_nodes(cluster); node++) {
            blocks[node] = trellis_malloc(cluster, 100);
            must(blocks[node] == NULL ? -1 : 0, "trellis_malloc");
        }
    }
    MUST(trellis_barrier(cluster, 1));
    must(blocks[me] == NULL ? -1 : 0, "the victim's blocks");
}

/* ----------------------------------------------------------------------------------------------------- the waits -- */

static int barrier(void) { return trellis_barrier(cluster, 2); }
static int reduce(void) {
    uint64_t value = me;
    return trellis_barrier_reduce_u64(cluster, 2, TRELLIS_SUM, &value);
}
static int broadcast(void) {
    uint64_t value = me;
    return trellis_broadcast(cluster, 2, victim, &value);
}
static int count_at_victim(void) { return trellis_barrier_of(cluster, at_victim, 3); }
static int count_at_other(void) { return trellis_barrier_of(cluster, at_other, 3); }
static int lock(void) { return trellis_lock(cluster, at_other); }
static int lock_at_victim(void) { return trellis_lock(cluster, at_victim); }
static int try_lock_for(void) { return trellis_try_lock_for(cluster, at_other, HOUR_US); }
static int try_lock_for_at_victim(void) { return trellis_try_lock_for(cluster, at_victim, HOUR_US); }
static int rwlock_read(void) { return trellis_rwlock_read(cluster, at_other); }
static int rwlock_write(void) { return trellis_rwlock_write(cluster, at_other); }
static int rwlock_try_read_for(void) { return trellis_rwlock_try_read_for(cluster, at_other, HOUR_US); }
static int rwlock_try_write_for(void) { return trellis_rwlock_try_write_for(cluster, at_other, HOUR_US); }
static int rwlock_at_victim(void) { return trellis_rwlock_read(cluster, at_victim); }
static int condition(void) { return trellis_condition_wait(cluster, at_victim, own); }
static int condition_at_other(void) { return trellis_condition_wait(cluster, at_other, own); }
static int condition_for(void) { return trellis_condition_wait_for(cluster, at_other, own, HOUR_US); }
static int notify_at_victim(void) { return trellis_condition_notify_one(cluster, at_victim); }
static int semaphore(void) { return trellis_semaphore_acquire(cluster, at_other); }
static int semaphore_at_victim(void) { return trellis_semaphore_acquire(cluster, at_victim); }
static int semaphore_for(void) { return trellis_semaphore_try_acquire_for(cluster, at_other, HOUR_US); }
static int release_at_victim(void) { return trellis_semaphore_release(cluster, at_victim, 1); }
static int event(void) { return trellis_event_wait(cluster, at_other); }
static int event_at_victim(void) { return trellis_event_wait(cluster, at_victim); }
static int event_for(void) { return trellis_event_wait_for(cluster, at_other, HOUR_US); }
static int set_at_victim(void) { return trellis_event_set(cluster, at_victim); }
static int once(void) { return trellis_once(cluster, at_other, do_nothing, NULL); }
static int once_at_victim(void) { return trellis_once(cluster, at_victim, do_nothing, NULL); }
static int word_at_victim(void) { return trellis_atomic_fetch_add(cluster, at_victim, 1, NULL); }

/* Node 0 keeps the heap's pages, so whoever is not node 0 has to ask there. */
static int allocate(void) {
    for (;;) {
        if (trellis_malloc_at(cluster, 64 * page_bytes, victim) == NULL) return -1;
    }
}
static int free_at_victim(void) { return trellis_free(cluster, blocks[me]); }
static int measure_at_victim(void) { return trellis_usable_size(cluster, blocks[me]) == 0 ? -1 : 0; }

/* The copies are written without a message; that of the victim's pages cannot reach their home. */
static int publish(void) {
    write_pages();
    return trellis_unlock(cluster, own);
}

/* Pages whose home is not the victim, and of which it has copies. */
static int update(void) {
    for (;;) {
        for (size_t number = 0; number < PAGES; number++) {
            if (number % trellis_nodes(cluster) != victim) page(number)[1 + me]++;
        }
        int answer = trellis_unlock(cluster, own);
        if (answer >= 0) answer = trellis_lock(cluster, own);
        if (answer < 0) return answer;
    }
}

static int change_protocol(void) {
    return trellis_set_protocol(cluster, (const void *)page(0), 64 * page_bytes, "ivy");
}

static int leave(void) { return trellis_leave(cluster); }

static const struct {
    const char *name;
    void (*prepare)(void);
    int (*wait)(void);
} WAITS[] = {
    {"barrier", nothing, barrier},
    {"reduce", nothing, reduce},
    {"broadcast", nothing, broadcast},
    {"count", nothing, count_at_other},
    {"count-at-victim", nothing, count_at_victim},
    {"lock", hold_lock, lock},
    {"lock-at-victim", hold_lock, lock_at_victim},
    {"try-lock-for", hold_lock, try_lock_for},
    {"try-lock-for-at-victim", hold_lock, try_lock_for_at_victim},
    {"rwlock-read", hold_write, rwlock_read},
    {"rwlock-write", hold_read, rwlock_write},
    {"rwlock-try-read-for", hold_write, rwlock_try_read_for},
    {"rwlock-try-write-for", hold_read, rwlock_try_write_for},
    {"rwlock-at-victim", nothing, rwlock_at_victim},
    {"condition", lock_own, condition},
    {"condition-at-other", lock_own, condition_at_other},
    {"condition-for", lock_own, condition_for},
    {"notify-at-victim", nothing, notify_at_victim},
    {"semaphore", nothing, semaphore},
    {"semaphore-at-victim", nothing, semaphore_at_victim},
    {"semaphore-for", nothing, semaphore_for},
    {"release-at-victim", nothing, release_at_victim},
    {"event", nothing, event},
    {"event-at-victim", nothing, event_at_victim},
    {"event-for", nothing, event_for},
    {"set-at-victim", nothing, set_at_victim},
    {"once", begin_once, once},
    {"once-at-victim", nothing, once_at_victim},
    {"word-at-victim", nothing, word_at_victim},
    {"allocate", nothing, allocate},
    {"free-at-victim", allocate_there, free_at_victim},
    {"measure-at-victim", allocate_there, measure_at_victim},
    {"read-fault", nothing, read_pages},
    {"write-fault", nothing, write_pages},
    {"publish", copy_pages, publish},
    {"update", copy_pages, update},
    {"change-protocol", nothing, change_protocol},
    {"leave", nothing, leave},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count != 3) return 2;
    size_t which = 0;
    while (which < sizeof WAITS / sizeof *WAITS && strcmp(WAITS[which].name, arguments[1]) != 0) which++;
    if (which == sizeof WAITS / sizeof *WAITS) return 2;
    must(trellis_join(NULL, &cluster), "trellis_join");
    me = trellis_node(cluster);
    page_bytes = trellis_page_bytes(cluster);
    victim = strtoul(arguments[2], NULL, 10);
    const uint64_t nodes = trellis_nodes(cluster);
    at_victim = 100 * nodes + victim;
    at_other = 100 * nodes + (victim + 1) % nodes;
    own = 200 * nodes + me;
    WAITS[which].prepare();
    MUST(trellis_barrier(cluster, 0));
    puts("ready");
    if (me == victim) {
        for (;;) pause();
    }
    until_there("go");
    puts("waits");
    int answer = WAITS[which].wait();
    printf("told: %s\n", answer >= 0 ? "nothing" : trellis_last_error());
    until_there("over");
    return answer >= 0 ? 0 : 70;
}
