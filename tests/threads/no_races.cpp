// A program without data races, whose threads order everything by calls: what they share lies in the heap and in large
// variables. It has no atomic instruction of its own.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <regex.h>
#include <semaphore.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "check.h"

enum { THREADS = 4, ROUNDS = 25, CELLS = 40000 };

static long cells[CELLS]; // large
static long *blocks[THREADS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_spinlock_t spin;
static pthread_barrier_t barrier;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static sem_t full[THREADS];
static pthread_once_t fills = PTHREAD_ONCE_INIT;
static std::vector<std::string> *made_once;
static long *existing;
static FILE *stream, *in_memory;
static regex_t expression;

struct message {
    message *next;
    long from, sum, words[100];
};
static message *queue;

static std::vector<std::string> words(int count) {
    std::vector<std::string> made;
    for (int i = 0; i < count; i++) made.push_back(std::string(50, static_cast<char>('a' + i % 26)));
    return made;
}

// The compiler looks at its guard itself.
static std::vector<std::string> &made_at_first_use() {
    static std::vector<std::string> made = words(500);
    return made;
}

static bool are_right(const std::vector<std::string> &made) {
    if (made.size() != 500) return false;
    for (size_t i = 0; i < made.size(); i++) {
        if (made[i] != std::string(50, static_cast<char>('a' + i % 26))) return false;
    }
    return true;
}

static void make_once() { made_once = new std::vector<std::string>(words(500)); }

static void fill(long value) {
    for (long i = 0; i < CELLS; i++) existing[i] = value;
}
static void fill_once() { fill(8); }
static bool fill_statically() { return fill(7), true; }

static long differing(long value) {
    long differing = 0;
    for (long i = 0; i < CELLS; i++) differing += existing[i] != value;
    return differing;
}

// Every node has the memory, which one thread then changes once. The others come later, and only look at a word.
static void changed_once(long me) {
    CHECK(differing(1) == 0);
    pthread_barrier_wait(&barrier);
    if (me != 1) usleep(50000);
    static bool is_filled = fill_statically();
    CHECK(is_filled && differing(7) == 0);
    pthread_barrier_wait(&barrier);
    if (me != 1) usleep(50000);
    pthread_once(&fills, fill_once);
    CHECK(differing(8) == 0);
}

// Each thread stores to its part, then reads that of another one.
static void phases(long me) {
    for (long round = 1; round <= ROUNDS; round++) {
        for (long i = me; i < CELLS; i += THREADS) cells[i] = round * i + me;
        for (long i = 0; i < 1000; i++) blocks[me][i] = round + i;
        pthread_barrier_wait(&barrier);
        long other = (me + round) % THREADS, wrong = 0;
        for (long i = other; i < CELLS; i += THREADS) wrong += cells[i] != round * i + other;
        for (long i = 0; i < 1000; i++) wrong += blocks[other][i] != round + i;
        CHECK(wrong == 0);
        pthread_barrier_wait(&barrier);
    }
}

// Counters beside each other, each under one of the locks.
static void locks(long me) {
    for (int round = 0; round < ROUNDS; round++) {
        pthread_mutex_lock(&lock);
        cells[0] += 1, blocks[0][0] += me;
        pthread_mutex_unlock(&lock);
        pthread_spin_lock(&spin);
        cells[1] += 1;
        pthread_spin_unlock(&spin);
        pthread_rwlock_wrlock(&rwlock);
        cells[2] += 1, blocks[1][7] = cells[2];
        pthread_rwlock_unlock(&rwlock);
        pthread_rwlock_rdlock(&rwlock);
        CHECK(blocks[1][7] == cells[2]);
        pthread_rwlock_unlock(&rwlock);
    }
}

// Blocks go from thread to thread, and come back to the heap elsewhere.
static void messages(long me) {
    for (int round = 0; round < ROUNDS; round++) {
        message *sent = new message{nullptr, me, 0, {}};
        for (long &word : sent->words) sent->sum += word = rand() % 1000;
        pthread_mutex_lock(&lock);
        sent->next = queue, queue = sent;
        pthread_cond_signal(&changed);
        pthread_mutex_unlock(&lock);
        pthread_mutex_lock(&lock);
        while (!queue) pthread_cond_wait(&changed, &lock);
        message *got = queue;
        queue = got->next;
        pthread_mutex_unlock(&lock);
        long sum = 0;
        for (long word : got->words) sum += word;
        CHECK(sum == got->sum);
        delete got;
    }
}

// A block is passed round the threads by semaphores.
static void passing(long me) {
    static long **passed = new long *[THREADS](); // one allocation, which all see
    for (int round = 0; round < ROUNDS; round++) {
        long *block = static_cast<long *>(malloc(5000 * sizeof(long)));
        for (long i = 0; i < 5000; i++) block[i] = me * round + i;
        long to = (me + 1) % THREADS, from = (me + THREADS - 1) % THREADS, wrong = 0;
        passed[to] = block;
        sem_post(&full[to]);
        while (sem_wait(&full[me])) {}
        block = static_cast<long *>(realloc(passed[me], 9000 * sizeof(long)));
        for (long i = 0; i < 5000; i++) wrong += block[i] != from * round + i;
        CHECK(wrong == 0);
        free(block);
        pthread_barrier_wait(&barrier);
    }
}

// One stream, and system calls with buffers in the heap.
static void files(long me) {
    for (int round = 0; round < ROUNDS; round++) {
        fprintf(stream, "%ld says %d\n", me, round);
        fprintf(in_memory, "%ld says %d\n", me, round);
        char text[50];
        regmatch_t parts[3];
        snprintf(text, sizeof text, "key%d_%ld=val%dxy", round, me, round * 7);
        CHECK(regexec(&expression, text, 3, parts, 0) == 0 && parts[1].rm_so == 0);
    }
    int ends[2];
    CHECK(pipe(ends) == 0);
    char *out = static_cast<char *>(malloc(3000)), *in = static_cast<char *>(malloc(3000));
    for (int round = 0; round < ROUNDS; round++) {
        memset(out, 'a' + round % 26, 3000);
        CHECK(write(ends[1], out, 3000) == 3000);
        CHECK(read(ends[0], in, 3000) == 3000 && memcmp(in, out, 3000) == 0);
    }
    close(ends[0]), close(ends[1]);
    free(in), free(out);
}

static void *work(void *argument) {
    long me = *static_cast<long *>(argument);
    delete static_cast<long *>(argument);
    phases(me);
    changed_once(me);
    CHECK(are_right(made_at_first_use()));
    pthread_once(&once, make_once);
    CHECK(are_right(*made_once));
    pthread_barrier_wait(&barrier);
    if (me == 0) memset(cells, 0, sizeof cells), memset(blocks[0], 0, 1000 * sizeof(long));
    pthread_barrier_wait(&barrier);
    locks(me);
    messages(me);
    passing(me);
    files(me);
    return new long(me * me);
}

int main() {
    char name[] = "no_races_XXXXXX";
    int descriptor = mkstemp(name);
    unlink(name);
    stream = fdopen(descriptor, "w+");
    CHECK(stream != nullptr);
    char *buffer = static_cast<char *>(malloc(8192)), *memory;
    size_t bytes;
    setvbuf(stream, buffer, _IOFBF, 8192);
    in_memory = open_memstream(&memory, &bytes);
    CHECK(regcomp(&expression, "^(key[0-9]+_[0-9]*)=([a-z]+[0-9]*)(xy|yx)?$", REG_EXTENDED) == 0);
    existing = static_cast<long *>(malloc(CELLS * sizeof(long)));
    fill(1);
    pthread_barrier_init(&barrier, nullptr, THREADS);
    pthread_spin_init(&spin, 0);
    for (auto &block : blocks) block = static_cast<long *>(calloc(1000, sizeof(long)));
    for (auto &one : full) sem_init(&one, 0, 0);
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], nullptr, work, new long(i)) == 0);
    for (long i = 0; i < THREADS; i++) {
        void *result;
        CHECK(pthread_join(threads[i], &result) == 0);
        CHECK(*static_cast<long *>(result) == i * i);
        delete static_cast<long *>(result);
    }
    CHECK(cells[0] == THREADS * ROUNDS && cells[1] == THREADS * ROUNDS && cells[2] == THREADS * ROUNDS);
    CHECK(blocks[0][0] == ROUNDS * (THREADS * (THREADS - 1) / 2));
    CHECK(queue == nullptr);
    rewind(stream);
    long lines = 0, from, round;
    while (fscanf(stream, "%ld says %ld\n", &from, &round) == 2) lines++;
    CHECK(lines == THREADS * ROUNDS);
    fclose(in_memory);
    for (size_t i = 0; i < bytes; i++) lines -= memory[i] == '\n';
    CHECK(lines == 0 && strlen(memory) == bytes);
    puts("no races: all right");
    return 0;
}
