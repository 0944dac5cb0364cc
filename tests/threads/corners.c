// What is easily done wrong, each seen from threads of several nodes. Ends with status 0 if all results are right.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_rwlock_t shared = PTHREAD_RWLOCK_INITIALIZER;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static sem_t step;
static FILE *opened, *waiting;

static void run(void *(*function)(void *)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, function, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void *nothing(void *unused) { return unused; }

// A thread that has a lock to read gets it again, although a writer waits.
static void *write_once(void *unused) {
    sem_post(&step);
    pthread_rwlock_wrlock(&shared);
    pthread_rwlock_unlock(&shared);
    return unused;
}

static void *read_twice(void *unused) {
    pthread_rwlock_rdlock(&shared);
    pthread_t writer;
    pthread_create(&writer, NULL, write_once, NULL);
    sem_wait(&step);
    usleep(20000);
    CHECK(pthread_rwlock_rdlock(&shared) == 0);
    pthread_rwlock_unlock(&shared);
    pthread_rwlock_unlock(&shared);
    pthread_join(writer, NULL);
    return unused;
}

// A stream that one node opens and another closes; many, so that their memory is used again.
static void *open_stream(void *unused) {
    opened = fopen("stream", "w");
    CHECK(opened && fputs("from another node, ", opened) >= 0);
    return unused;
}

static void *close_stream(void *unused) {
    CHECK(fputs("closed elsewhere\n", opened) >= 0 && fclose(opened) == 0);
    return unused;
}

// A stream with something in it, of a thread that never ends.
static void *wait_with_stream(void *unused) {
    waiting = fopen("waiting", "w");
    CHECK(waiting && fputs("important\n", waiting) >= 0);
    sem_post(&step);
    pthread_mutex_lock(&mutex);
    for (;;) pthread_cond_wait(&never, &mutex);
    return unused;
}

// A child has the signals of the thread that starts it, and a failed one ends alone.
static void *start_children(void *unused) {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    run(nothing);
    char *arguments[] = {"grep", "SigBlk:", "/proc/self/status", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "signals", O_CREAT | O_WRONLY, 0600);
    pid_t child;
    int status;
    CHECK(posix_spawnp(&child, "grep", &actions, NULL, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return unused;
}

static void *named_semaphore(void *unused) {
    char name[40];
    snprintf(name, sizeof name, "/trellis-corners-%d", (int)getpid());
    sem_t *semaphore = sem_open(name, O_CREAT | O_EXCL, 0600, 1);
    CHECK(semaphore != SEM_FAILED && sem_wait(semaphore) == 0 && sem_trywait(semaphore) != 0);
    CHECK(sem_post(semaphore) == 0 && sem_close(semaphore) == 0 && sem_unlink(name) == 0);
    return unused;
}

static void *last_words(void *unused) {
    char *text = malloc(100);
    strcpy(text, "of a thread");
    pthread_exit(text);
    return unused;
}

int main(void) {
    sem_init(&step, 0, 0);
    read_twice(NULL);
    for (int i = 0; i < 20; i++) {
        run(open_stream);
        run(nothing);
        run(close_stream);
        FILE *own = fopen("stream", "r");
        char text[100] = "";
        CHECK(own && fgets(text, sizeof text, own) && !strcmp(text, "from another node, closed elsewhere\n"));
        fclose(own);
    }
    run(start_children);
    named_semaphore(NULL);
    pid_t child = vfork();
    if (child == 0) {
        execl("/no/such/program", "program", (char *)NULL);
        _exit(127);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 127);
    // Memory that held a locked lock holds a new one.
    pthread_mutex_lock(&mutex);
    pthread_mutex_init(&mutex, NULL);
    CHECK(pthread_mutex_lock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
    for (int i = 0; i < 100; i++) {
        pthread_t thread;
        void *text;
        CHECK(pthread_create(&thread, NULL, last_words, NULL) == 0 && pthread_join(thread, &text) == 0);
        CHECK(!strcmp(text, "of a thread"));
        free(text);
    }
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, wait_with_stream, NULL);
        sem_wait(&step);
    }
    puts("corners: all right");
    return 0;
}
