/* POSIX threads: mutexes, conditions, semaphores, read-write locks, barriers, on the heap and in globals. */
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

struct shared {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_rwlock_t many;
    pthread_barrier_t barrier;
    sem_t slots, items;
    int queue[4], head, tail, done;
    long sum, seen;
};

static pthread_mutex_t global_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int onces;

static void run_once(void) { onces++; }

static void *produce(void *with) {
    struct shared *shared = with;
    pthread_once(&once, run_once);
    for (int i = 1; i <= 100; i++) {
        sem_wait(&shared->slots);
        shared->queue[shared->head++ % 4] = i;
        sem_post(&shared->items);
    }
    pthread_barrier_wait(&shared->barrier);
    return with;
}

static void *consume(void *with) {
    struct shared *shared = with;
    pthread_once(&once, run_once);
    for (int i = 1; i <= 100; i++) {
        sem_wait(&shared->items);
        shared->sum += shared->queue[shared->tail++ % 4];
        sem_post(&shared->slots);
    }
    pthread_mutex_lock(&shared->lock);
    shared->done = 1;
    pthread_cond_broadcast(&shared->changed);
    pthread_mutex_unlock(&shared->lock);
    pthread_barrier_wait(&shared->barrier);
    return NULL;
}

static void *look(void *with) {
    struct shared *shared = with;
    pthread_mutex_lock(&shared->lock);
    while (!shared->done)
        pthread_cond_wait(&shared->changed, &shared->lock);
    pthread_mutex_unlock(&shared->lock);
    for (int i = 0; i < 50; i++) {
        pthread_mutex_lock(&global_lock);
        shared->seen++;
        pthread_mutex_unlock(&global_lock);
        pthread_rwlock_rdlock(&shared->many);
        pthread_rwlock_unlock(&shared->many);
    }
    pthread_barrier_wait(&shared->barrier);
    return NULL;
}

int main(void) {
    struct shared *shared = calloc(1, sizeof *shared);
    pthread_mutex_init(&shared->lock, NULL);
    pthread_cond_init(&shared->changed, NULL);
    pthread_rwlock_init(&shared->many, NULL);
    pthread_barrier_init(&shared->barrier, NULL, 4);
    sem_init(&shared->slots, 0, 4);
    sem_init(&shared->items, 0, 0);
    void *(*functions[4])(void *) = {produce, consume, look, look};
    pthread_t *threads = malloc(sizeof(pthread_t) * 4);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], i % 2 ? &attributes : NULL, functions[i], shared);
    void *results[4];
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], &results[i]);
    int value;
    sem_getvalue(&shared->slots, &value);
    printf("%ld %ld %d %d %d %d\n", shared->sum, shared->seen, onces, value, results[0] == shared, results[1] == NULL);
    pthread_mutex_destroy(&shared->lock);
    pthread_cond_destroy(&shared->changed);
    pthread_rwlock_destroy(&shared->many);
    pthread_barrier_destroy(&shared->barrier);
    sem_destroy(&shared->slots);
    sem_destroy(&shared->items);
    free(threads);
    free(shared);
}
