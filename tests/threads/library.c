// A library of the program that allocates in its constructor, and whose memory threads of all nodes use. There it also
// makes a key of thread-specific data, and threads that work for it.
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

static int *counts;
static char *text;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t key;
static pthread_t workers[2];
static pthread_t copies[2];
static sem_t wanted;
static int done;

static void *work(void *amount) {
    sem_wait(&wanted);
    pthread_mutex_lock(&lock);
    done += *(int *)amount;
    pthread_mutex_unlock(&lock);
    return pthread_getspecific(key) ? NULL : amount;
}

__attribute__((constructor)) static void begin(void) {
    counts = calloc(100, sizeof *counts);
    text = strdup("from a constructor");
    text = realloc(text, 100);
    pthread_key_create(&key, NULL);
    pthread_setspecific(key, text);
    sem_init(&wanted, 0, 0);
    for (int i = 0; i < 2; i++) {
        counts[i] = 10 * (i + 1);
        pthread_create(&workers[i], NULL, work, &counts[i]);
        copies[i] = workers[i];
    }
}

static int join(pthread_t worker, int number) {
    void *result;
    if (pthread_join(worker, &result) != 0 || result != &counts[number]) return -1;
    counts[number] = 0;
    return 0;
}

// Whether the thread that loaded the library can end the work of the first worker.
int end_first(void) {
    if (pthread_getspecific(key) != text) return -1;
    for (int i = 0; i < 2; i++) sem_post(&wanted);
    return join(workers[0], 0);
}

// What the workers did, or -1. Called by any thread.
int end_second(void) { return join(copies[1], 1) == 0 ? done : -1; }

int add(int place) {
    pthread_mutex_lock(&lock);
    int count = ++counts[place];
    pthread_mutex_unlock(&lock);
    return count;
}

const char *say(void) { return text; }

void replace(const char *with) {
    free(text);
    text = strdup(with);
}
