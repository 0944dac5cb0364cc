/* Processes that share a structure in a region in a store, and wait for each other. The first argument says what this
 * one does; all first find the structure, which one of them makes. Exit 0 when all is right. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <trellis/stored.h>

enum { TIMES = 50, ITEMS = 50 };

struct shared {
    /* Addresses of objects; nothing is ever stored here. */
    char lock, changed, table, phase, full, room, ready;
    int count;
    int turn;
    int item;
};

static void check(int condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "wrong: %s; last error: %s\n", what, trellis_last_error());
    exit(1);
}

#define IS(call, answer) check((call) == (answer), #call)

static struct shared *find(void) {
    const void *once = trellis_store_name("setup");
    if (trellis_store_once_begin(once) == 1) {
        struct shared *made = trellis_store_malloc(sizeof *made);
        check(made != NULL, "memory of the region");
        memset(made, 0, sizeof *made);
        IS(trellis_store_semaphore_set(&made->room, 1), TRELLIS_OK);
        IS(trellis_store_set_root("shared", made), 1);
        IS(trellis_store_once_done(once), TRELLIS_OK);
    }
    void *found = NULL;
    IS(trellis_store_root("shared", &found), TRELLIS_OK);
    check(found != NULL, "the structure");
    return found;
}

static uint64_t calls(void) {
    trellis_store_statistics_t statistics;
    IS(trellis_store_statistics(&statistics), TRELLIS_OK);
    return statistics.calls;
}

/* Two of these. */
static void count(struct shared *shared) {
    for (int i = 0; i < TIMES; i++) {
        IS(trellis_store_lock(&shared->lock), TRELLIS_OK);
        shared->count++;
        IS(trellis_store_unlock(&shared->lock), TRELLIS_OK);
    }
    check(trellis_store_barrier_of(&shared->phase, 2) >= 0, "the barrier");
    IS(trellis_store_rwlock_read(&shared->table), TRELLIS_OK);
    check(shared->count == 2 * TIMES, "every increment");
    IS(trellis_store_rwlock_end_read(&shared->table), TRELLIS_OK);

    /* In turns, each woken by the other. */
    IS(trellis_store_lock(&shared->lock), TRELLIS_OK);
    const int mine = shared->turn++;
    IS(trellis_store_unlock_and_notify_all(&shared->lock, &shared->changed), TRELLIS_OK);
    for (int turn = 2 + mine; turn < 12; turn += 2) {
        IS(trellis_store_lock(&shared->lock), TRELLIS_OK);
        while (shared->turn != turn) IS(trellis_store_condition_wait(&shared->changed, &shared->lock), TRELLIS_OK);
        shared->turn++;
        IS(trellis_store_unlock_and_notify_all(&shared->lock, &shared->changed), TRELLIS_OK);
    }
    if (mine == 0) IS(trellis_store_event_wait(&shared->ready), TRELLIS_OK);
    check(shared->turn >= 11, "all turns");
    if (mine == 1) IS(trellis_store_event_set(&shared->ready), TRELLIS_OK);
    printf("counted\n");
}

static void pass_items(struct shared *shared, int produces) {
    /* The page is here before the first item, whatever it says yet. */
    int sum = 0 * *(volatile int *)&shared->item;
    const uint64_t before = calls();
    for (int item = 1; item <= ITEMS; item++) {
        IS(trellis_store_semaphore_acquire(produces ? &shared->room : &shared->full), TRELLIS_OK);
        if (produces) {
            shared->item = item;
        } else {
            check(shared->item == item, "the item");
            sum += item;
        }
        IS(trellis_store_semaphore_release(produces ? &shared->full : &shared->room, 1), TRELLIS_OK);
    }
    printf("calls %d\n", (int)(calls() - before));
    check(produces || sum == ITEMS * (ITEMS + 1) / 2, "the sum");
}

/* Holds the lock, and what it stored, until somebody ends it. */
static void hold(struct shared *shared) {
    IS(trellis_store_lock(&shared->lock), TRELLIS_OK);
    shared->count = -1;
    printf("holds\n");
    fflush(stdout);
    IS(trellis_store_event_wait(&shared->ready), TRELLIS_OK);
}

static void replace(struct shared *shared) {
    uint64_t token = 0;
    IS(trellis_store_lock(&shared->lock), TRELLIS_OK);
    IS(trellis_store_lock_token(&shared->lock, &token), TRELLIS_OK);
    check(token == 2, "the second taking");
    check(shared->count == 0, "nothing of who was killed");
    IS(trellis_store_unlock(&shared->lock), TRELLIS_OK);
    printf("replaced\n");
}

int main(int arguments, char **values) {
    check(arguments == 2, "an argument");
    check(trellis_store_lock(&arguments) == TRELLIS_ERROR_ARGUMENT, "no address of a region");
    IS(trellis_store_open(NULL), TRELLIS_OK);
    struct shared *shared = find();
    const char *role = values[1];
    if (strcmp(role, "count") == 0) count(shared);
    else if (strcmp(role, "hold") == 0) hold(shared);
    else if (strcmp(role, "replace") == 0) replace(shared);
    else pass_items(shared, strcmp(role, "produce") == 0);
    IS(trellis_store_close(), TRELLIS_OK);
    return 0;
}
