// Every kind of object of pthreads, shared by eight threads. Ends with status 0 if all results are right.
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 8, ROUNDS = 200 };

static pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t recursive, checking;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t shared = PTHREAD_RWLOCK_INITIALIZER;
static pthread_spinlock_t spin;
static pthread_barrier_t all;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static sem_t tickets;

static int counts[4], initialised, destroyed, serial, turn, readers_max;
static __thread int own = 7;
static __thread char large[5000] = "start";
static int *places[THREADS];

static void initialise(void) {
    usleep(1000);
    initialised++;
}

static void destroy(void *value) {
    CHECK(*(int *)value == 100 + own - 7);
    __atomic_add_fetch(&destroyed, 1, __ATOMIC_SEQ_CST);
    free(value);
}

static struct timespec in_ms(clockid_t clock, long ms) {
    struct timespec time;
    clock_gettime(clock, &time);
    time.tv_nsec += ms * 1000000;
    time.tv_sec += time.tv_nsec / 1000000000;
    time.tv_nsec %= 1000000000;
    return time;
}

static void *work(void *argument) {
    int me = *(int *)argument;
    own += me;
    CHECK(strcmp(large, "start") == 0);
    memset(large, me, sizeof large);
    CHECK(pthread_once(&once, initialise) == 0 && initialised == 1);
    int *value = malloc(sizeof *value);
    *value = 100 + me;
    CHECK(pthread_getspecific(key) == NULL && pthread_setspecific(key, value) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_mutex_lock(&plain);
        counts[0]++;
        pthread_mutex_unlock(&plain);
        pthread_mutex_lock(&recursive);
        pthread_mutex_lock(&recursive);
        counts[1]++;
        pthread_mutex_unlock(&recursive);
        pthread_mutex_unlock(&recursive);
        pthread_spin_lock(&spin);
        counts[2]++;
        pthread_spin_unlock(&spin);
        pthread_rwlock_rdlock(&shared);
        int seen = counts[3];
        CHECK(seen == counts[3]);
        pthread_rwlock_unlock(&shared);
        pthread_rwlock_wrlock(&shared);
        counts[3]++;
        pthread_rwlock_unlock(&shared);
    }
    int result = pthread_barrier_wait(&all);
    CHECK(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
    if (result != 0) __atomic_add_fetch(&serial, 1, __ATOMIC_SEQ_CST);
    // In turns, under a condition.
    pthread_mutex_lock(&plain);
    while (turn != me) pthread_cond_wait(&changed, &plain);
    turn++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&plain);
    // At most three at a time.
    static int inside;
    sem_wait(&tickets);
    int now = __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    CHECK(now <= 3);
    int before = __atomic_load_n(&readers_max, __ATOMIC_SEQ_CST);
    while (now > before &&
           !__atomic_compare_exchange_n(&readers_max, &before, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    usleep(500);
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    sem_post(&tickets);
    // A variable of each thread can be read by the others.
    places[me] = &own;
    pthread_barrier_wait(&all);
    for (int other = 0; other < THREADS; other++) CHECK(*places[other] == 7 + other);
    for (size_t i = 0; i < sizeof large; i++) CHECK(large[i] == me);
    CHECK(*(int *)pthread_getspecific(key) == 100 + me);
    pthread_barrier_wait(&all);
    if (me % 2) pthread_exit((void *)(long)(me * 3));
    return (void *)(long)(me * 3);
}

static void *hold(void *argument) {
    pthread_mutex_lock(argument);
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&all);
    pthread_mutex_unlock(argument);
    return NULL;
}

static void *sleep_a_little(void *argument) {
    usleep(20000);
    *(int *)argument += 1;
    return argument;
}

static void *detach_itself(void *argument) {
    CHECK(pthread_detach(pthread_self()) == 0);
    sem_post(argument);
    return NULL;
}

static pthread_mutex_t robust;

static void *ends_with_it(void *ready) {
    CHECK(pthread_mutex_lock(&robust) == 0);
    if (ready != NULL) {
        CHECK(sem_post((sem_t *)ready) == 0);
        usleep(20000);
    }
    return NULL;
}

static void *may_not_unlock(void *nothing) {
    CHECK(pthread_mutex_trylock(&robust) == EBUSY && pthread_mutex_unlock(&robust) == EPERM);
    return nothing;
}

static void run_in_thread(void *(*function)(void *)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, function, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

// A robust mutex tells the next owner that the last one has ended without unlocking it.
static void robust_mutexes(void) {
    pthread_mutexattr_t kind;
    sem_t ready;
    pthread_t thread;
    CHECK(pthread_mutexattr_init(&kind) == 0 && sem_init(&ready, 0, 0) == 0);
    CHECK(pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) == 0 && pthread_mutex_init(&robust, &kind) == 0);
    for (int turn = 0; turn < 4; turn++) {
        run_in_thread(ends_with_it);
        CHECK(pthread_mutex_lock(&robust) == EOWNERDEAD);
        run_in_thread(may_not_unlock);
        CHECK(pthread_mutex_consistent(&robust) == 0 && pthread_mutex_consistent(&robust) == EINVAL);
        CHECK(pthread_mutex_unlock(&robust) == 0 && pthread_mutex_unlock(&robust) == EPERM);
        CHECK(pthread_mutex_lock(&robust) == 0 && pthread_mutex_unlock(&robust) == 0);
    }
    for (int turn = 0; turn < 2; turn++) {
        CHECK(pthread_create(&thread, NULL, ends_with_it, &ready) == 0 && sem_wait(&ready) == 0);
        CHECK(pthread_mutex_lock(&robust) == EOWNERDEAD && pthread_mutex_consistent(&robust) == 0);
        CHECK(pthread_mutex_unlock(&robust) == 0 && pthread_join(thread, NULL) == 0);
    }
    run_in_thread(ends_with_it);
    CHECK(pthread_mutex_trylock(&robust) == EOWNERDEAD && pthread_mutex_unlock(&robust) == 0);
    CHECK(pthread_mutex_lock(&robust) == ENOTRECOVERABLE && pthread_mutex_trylock(&robust) == ENOTRECOVERABLE);
    CHECK(pthread_mutex_destroy(&robust) == 0);
}

static int handled, interrupted;

static void handle(int signal) {
    (void)signal;
    __atomic_add_fetch(&handled, 1, __ATOMIC_SEQ_CST);
}

static void *waits_for_a_signal(void *nothing) {
    sem_t never;
    CHECK(sem_init(&never, 0, 0) == 0 && sem_wait(&never) == -1 && errno == EINTR && handled > 0);
    __atomic_store_n(&interrupted, 1, __ATOMIC_SEQ_CST);
    return nothing;
}

// A handler without SA_RESTART ends the wait for a semaphore.
static void signals_interrupt(void) {
    struct sigaction action = {.sa_handler = handle};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int turn = 0; turn < 4; turn++) {
        pthread_t thread;
        handled = interrupted = 0;
        CHECK(pthread_create(&thread, NULL, waits_for_a_signal, NULL) == 0);
        for (; !__atomic_load_n(&interrupted, __ATOMIC_SEQ_CST); usleep(2000)) pthread_kill(thread, SIGUSR1);
        CHECK(pthread_join(thread, NULL) == 0);
    }
}

int main(void) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&recursive, &kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&checking, &kind);
    pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE);
    pthread_barrier_init(&all, NULL, THREADS);
    sem_init(&tickets, 0, 3);
    pthread_key_create(&key, destroy);

    pthread_t threads[THREADS];
    int numbers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, work, &numbers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        CHECK(pthread_join(threads[i], &result) == 0);
        CHECK((long)result == i * 3);
    }
    for (int i = 0; i < 4; i++) CHECK(counts[i] == THREADS * ROUNDS);
    CHECK(serial == 1 && destroyed == THREADS && turn == THREADS && readers_max <= 3 && own == 7);
    int value;
    CHECK(sem_getvalue(&tickets, &value) == 0 && value == 3);

    // Errors, tries and limits.
    CHECK(pthread_mutex_lock(&checking) == 0 && pthread_mutex_lock(&checking) == EDEADLK);
    CHECK(pthread_mutex_unlock(&checking) == 0 && pthread_mutex_unlock(&checking) == EPERM);
    CHECK(pthread_join(pthread_self(), NULL) == EDEADLK);
    pthread_barrier_destroy(&all);
    pthread_barrier_init(&all, NULL, 2);
    pthread_t holder;
    pthread_create(&holder, NULL, hold, &plain);
    pthread_barrier_wait(&all);
    CHECK(pthread_mutex_trylock(&plain) == EBUSY);
    struct timespec limit = in_ms(CLOCK_REALTIME, 20);
    CHECK(pthread_mutex_timedlock(&plain, &limit) == ETIMEDOUT);
    pthread_barrier_wait(&all);
    pthread_join(holder, NULL);
    CHECK(pthread_mutex_trylock(&plain) == 0);
    limit = in_ms(CLOCK_REALTIME, 20);
    CHECK(pthread_cond_timedwait(&changed, &plain, &limit) == ETIMEDOUT);
    pthread_mutex_unlock(&plain);
    for (int i = 0; i < 3; i++) CHECK(sem_trywait(&tickets) == 0);
    CHECK(sem_trywait(&tickets) == -1 && errno == EAGAIN);
    limit = in_ms(CLOCK_REALTIME, 20);
    CHECK(sem_timedwait(&tickets, &limit) == -1 && errno == ETIMEDOUT);
    int slept = 0;
    pthread_t sleeper;
    pthread_create(&sleeper, NULL, sleep_a_little, &slept);
    CHECK(pthread_tryjoin_np(sleeper, NULL) == EBUSY);
    limit = in_ms(CLOCK_REALTIME, 10000);
    void *result;
    CHECK(pthread_timedjoin_np(sleeper, &result, &limit) == 0 && result == &slept && slept == 1);
    sem_t done;
    sem_init(&done, 0, 0);
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, detach_itself, &done) == 0);
        sem_wait(&done);
    }
    robust_mutexes();
    signals_interrupt();
    puts("pthreads: all right");
    return 0;
}
