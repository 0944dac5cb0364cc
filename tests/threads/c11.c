// Threads of C11. Ends with status 0 if all results are right.
#include "check.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <threads.h>
#include <time.h>

enum { THREADS = 5, ROUNDS = 100 };

static mtx_t mutex, timed;
static cnd_t changed;
static once_flag once = ONCE_FLAG_INIT;
static tss_t key;
static int count, called, destroyed, turn;
static atomic_int sum;
static thread_local int own = 1;

static void call(void) { called++; }

static void destroy(void *value) {
    CHECK(*(int *)value == own);
    mtx_lock(&mutex);
    destroyed++;
    mtx_unlock(&mutex);
}

static int work(void *argument) {
    int me = *(int *)argument;
    own = me + 10;
    call_once(&once, call);
    tss_set(key, &own);
    for (int i = 0; i < ROUNDS; i++) {
        mtx_lock(&mutex);
        count++;
        mtx_unlock(&mutex);
        atomic_fetch_add(&sum, me);
    }
    mtx_lock(&mutex);
    while (turn != me) cnd_wait(&changed, &mutex);
    turn++;
    cnd_broadcast(&changed);
    mtx_unlock(&mutex);
    CHECK(tss_get(key) == &own);
    if (me == 3) thrd_exit(33);
    return me * 2;
}

int main(void) {
    CHECK(mtx_init(&mutex, mtx_plain) == thrd_success && mtx_init(&timed, mtx_timed | mtx_recursive) == thrd_success);
    CHECK(cnd_init(&changed) == thrd_success && tss_create(&key, destroy) == thrd_success);
    thrd_t threads[THREADS];
    int numbers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        CHECK(thrd_create(&threads[i], work, &numbers[i]) == thrd_success);
    }
    for (int i = 0; i < THREADS; i++) {
        int result;
        CHECK(thrd_join(threads[i], &result) == thrd_success && result == (i == 3 ? 33 : i * 2));
    }
    CHECK(count == THREADS * ROUNDS && called == 1 && destroyed == THREADS && turn == THREADS && sum == 10 * ROUNDS);
    CHECK(mtx_lock(&timed) == thrd_success && mtx_trylock(&timed) == thrd_success);
    CHECK(mtx_unlock(&timed) == thrd_success && mtx_unlock(&timed) == thrd_success);
    struct timespec limit;
    timespec_get(&limit, TIME_UTC);
    limit.tv_sec -= 1;
    mtx_lock(&mutex);
    CHECK(cnd_timedwait(&changed, &mutex, &limit) == thrd_timedout);
    mtx_unlock(&mutex);
    puts("c11: all right");
    return 0;
}
