// Cancellation of threads on every node, as pthread_cancel(3p) has it. It is C and C++.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, TURNS = 40 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t never, ready;
static pthread_key_t key;
static pthread_t sleeper;
static int ends[2], sockets[2];
static int cleaned, destroyed, unwound;

static void clean(void *what) { __atomic_fetch_add((int *)what, 1, __ATOMIC_SEQ_CST); }

static void unlock(void *what) {
    CHECK(pthread_mutex_unlock((pthread_mutex_t *)what) == 0);
    clean(&cleaned);
}

#ifdef __cplusplus
struct Guard {
    ~Guard() { clean(&unwound); }
};
#define GUARD Guard guard
#else
#define GUARD int guard __attribute__((cleanup(note), unused)) = 0
static void note(int *guard) {
    (void)guard;
    clean(&unwound);
}
#endif

static void soon(struct timespec *time, int seconds) {
    clock_gettime(CLOCK_REALTIME, time);
    time->tv_sec += seconds;
}

// What threads wait for, for ever or for a very long time. Each is a cancellation point.
static void in_sleep(void) { sleep(1000); }
static void in_nanosleep(void) {
    struct timespec time = {1000, 0};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}
static void in_pause(void) { pause(); }
static void in_read(void) {
    char c;
    (void)!read(ends[0], &c, 1);
}
static void in_recv(void) {
    char *heap = (char *)malloc(100000);
    recv(sockets[0], heap, 100000, 0);
}
static void in_poll(void) {
    struct pollfd list = {ends[0], POLLIN, 0};
    poll(&list, 1, -1);
}
static void in_select(void) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    select(ends[0] + 1, &set, NULL, NULL, NULL);
}
static void in_epoll(void) {
    struct epoll_event event;
    epoll_wait(epoll_create1(0), &event, 1, -1);
}
static void in_sigwait(void) {
    sigset_t set;
    int got;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sigwait(&set, &got);
}
static void in_semaphore(void) { sem_wait(&never); }
static void in_semaphore_for(void) {
    struct timespec time;
    soon(&time, 1000);
    sem_timedwait(&never, &time);
}
static void in_join(void) { pthread_join(sleeper, NULL); }
static void in_condition(void) {
    pthread_mutex_lock(&mutex);
    pthread_cleanup_push(unlock, &mutex);
    for (;;) pthread_cond_wait(&condition, &mutex);
    pthread_cleanup_pop(0);
}
static void in_condition_for(void) {
    struct timespec time;
    soon(&time, 1000);
    pthread_mutex_lock(&mutex);
    pthread_cleanup_push(unlock, &mutex);
    for (;;) pthread_cond_timedwait(&condition, &mutex, &time);
    pthread_cleanup_pop(0);
}
static void in_stream(void) { fgetc(fdopen(dup(ends[0]), "r")); }
static void in_loop(void) {
    for (;;) pthread_testcancel();
}
static void in_asynchronous_loop(void) {
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
    for (volatile long turns = 0;; turns++) {
    }
}
static void in_itself(void) {
    CHECK(pthread_cancel(pthread_self()) == 0);
    pthread_testcancel();
}

static const struct {
    const char *name;
    void (*wait)(void);
} POINTS[] = {
    {"sleep", in_sleep},
    {"clock_nanosleep", in_nanosleep},
    {"pause", in_pause},
    {"read", in_read},
    {"recv", in_recv},
    {"poll", in_poll},
    {"select", in_select},
    {"epoll_wait", in_epoll},
    {"sigwait", in_sigwait},
    {"sem_wait", in_semaphore},
    {"sem_timedwait", in_semaphore_for},
    {"pthread_join", in_join},
    {"pthread_cond_wait", in_condition},
    {"pthread_cond_timedwait", in_condition_for},
    {"fgetc", in_stream},
    {"pthread_testcancel", in_loop},
    {"asynchronous", in_asynchronous_loop},
    {"itself", in_itself},
};

static void wait_at(void (*wait)(void)) {
    GUARD;
    wait();
}

static void *waits(void *number) {
    pthread_setspecific(key, &destroyed);
    pthread_cleanup_push(clean, &cleaned);
    sem_post(&ready);
    wait_at(POINTS[(intptr_t)number].wait);
    CHECK(!"it was cancelled");
    pthread_cleanup_pop(0);
    return NULL;
}

static void *sleeps(void *nothing) {
    in_sleep();
    return nothing;
}

// Threads of all nodes are cancelled while they wait, or are about to.
static void every_point(void) {
    CHECK(pthread_create(&sleeper, NULL, sleeps, NULL) == 0);
    for (size_t point = 0; point < sizeof POINTS / sizeof *POINTS; point++) {
        cleaned = destroyed = unwound = 0;
        int locks = strncmp(POINTS[point].name, "pthread_cond", 12) == 0;
        pthread_t threads[THREADS];
        for (intptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, waits, (void *)point) == 0);
        for (int i = 0; i < THREADS; i++) sem_wait(&ready);
        // Half of them have probably begun to wait.
        usleep(point % 2 * 30000);
        for (int i = 0; i < THREADS; i++) {
            void *result = NULL;
            int asked = pthread_cancel(threads[i]);
            CHECK(asked == 0 || asked == ESRCH);
            CHECK(pthread_join(threads[i], &result) == 0);
            CHECK(result == PTHREAD_CANCELED);
        }
        if (cleaned != THREADS * (1 + locks) || destroyed != THREADS || unwound != THREADS) {
            fprintf(stderr, "%s: %d, %d, %d\n", POINTS[point].name, cleaned, destroyed, unwound);
            exit(1);
        }
    }
    CHECK(pthread_mutex_trylock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
    CHECK(pthread_cancel(sleeper) == 0 && pthread_join(sleeper, NULL) == 0);
}

// A thread that ignores requests goes on, and its calls are not disturbed; it ends when it wants to.
static void *ignores(void *nothing) {
    int before;
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0 && before == PTHREAD_CANCEL_ENABLE);
    sem_post(&ready);
    CHECK(sem_wait(&never) == 0);
    pthread_testcancel();
    char c = 0;
    CHECK(read(ends[0], &c, 1) == 1 && c == 'x');
    clean(&cleaned);
    CHECK(pthread_setcancelstate(before, NULL) == 0);
    pthread_testcancel();
    CHECK(!"it was cancelled");
    return nothing;
}

static void those_that_ignore_it(void) {
    for (int turn = 0; turn < THREADS; turn++) {
        pthread_t thread;
        void *result;
        cleaned = 0;
        CHECK(pthread_create(&thread, NULL, ignores, NULL) == 0);
        sem_wait(&ready);
        CHECK(pthread_cancel(thread) == 0);
        sem_post(&never);
        usleep(10000);
        CHECK(write(ends[1], "x", 1) == 1);
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED && cleaned == 1);
    }
}

// Handlers may wait, although the thread was cancelled; it is not cancelled again.
static void waits_again(void *nothing) {
    char c = 0;
    (void)nothing;
    CHECK(read(ends[0], &c, 1) == 1 && c == 'y');
    CHECK(sem_wait(&never) == 0);
    clean(&cleaned);
}

static void *has_patient_handler(void *nothing) {
    pthread_cleanup_push(waits_again, NULL);
    sem_post(&ready);
    in_recv();
    pthread_cleanup_pop(0);
    return nothing;
}

static void handlers_that_wait(void) {
    for (int turn = 0; turn < THREADS; turn++) {
        pthread_t thread;
        cleaned = 0;
        CHECK(pthread_create(&thread, NULL, has_patient_handler, NULL) == 0);
        sem_wait(&ready);
        usleep(turn % 2 * 10000);
        CHECK(pthread_cancel(thread) == 0);
        usleep(10000);
        CHECK(write(ends[1], "y", 1) == 1);
        usleep(turn % 2 * 10000);
        sem_post(&never);
        CHECK(pthread_join(thread, NULL) == 0 && cleaned == 1);
    }
}

// A byte was read, or it is still there: whenever the request comes, no call loses what it has done.
static int taken;

static void *takes(void *nothing) {
    for (;;) {
        char c;
        if (read(ends[0], &c, 1) == 1) __atomic_fetch_add(&taken, 1, __ATOMIC_SEQ_CST);
    }
    return nothing;
}

static void nothing_is_lost(void) {
    int written = 0, left = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, takes, NULL) == 0);
        for (int i = 0; i < turn % 7; i++, written++) CHECK(write(ends[1], "z", 1) == 1);
        CHECK(pthread_cancel(thread) == 0);
        for (int i = 0; i < turn % 3; i++, written++) CHECK(write(ends[1], "z", 1) == 1);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    struct pollfd list = {ends[0], POLLIN, 0};
    for (char c; poll(&list, 1, 0) == 1; left++) CHECK(read(ends[0], &c, 1) == 1);
    CHECK(taken + left == written);
}

// A permit of a semaphore is taken, or still there.
static sem_t permits;

static void *takes_permits(void *nothing) {
    for (;;) {
        if (sem_wait(&permits) == 0) __atomic_fetch_add(&taken, 1, __ATOMIC_SEQ_CST);
    }
    return nothing;
}

static void no_permit_is_lost(void) {
    int posted = 0, left;
    taken = 0;
    CHECK(sem_init(&permits, 0, 0) == 0);
    for (int turn = 0; turn < TURNS; turn++) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, takes_permits, NULL) == 0);
        for (int i = 0; i < turn % 7; i++, posted++) sem_post(&permits);
        for (int i = 0; i < 2; i++) CHECK(pthread_cancel(threads[i]) == 0);
        for (int i = 0; i < turn % 3; i++, posted++) sem_post(&permits);
        for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(sem_getvalue(&permits, &left) == 0 && taken + left == posted);
}

static void *returns(void *value) { return value; }

static void those_that_have_ended(void) {
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, returns, &cleaned) == 0);
    usleep(20000);
    int asked = pthread_cancel(thread);
    CHECK(asked == 0 || asked == ESRCH);
    CHECK(pthread_join(thread, &result) == 0 && result == &cleaned);
}

// With an argument, it also tests what the C library does not promise by itself (its bug 12683).
int main(int count, char **arguments) {
    (void)arguments;
    CHECK(sem_init(&never, 0, 0) == 0 && sem_init(&ready, 0, 0) == 0 && pthread_key_create(&key, clean) == 0);
    CHECK(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    every_point();
    those_that_ignore_it();
    handlers_that_wait();
    if (count > 1) nothing_is_lost();
    no_permit_is_lost();
    those_that_have_ended();
    puts("cancel: all right");
    return 0;
}
