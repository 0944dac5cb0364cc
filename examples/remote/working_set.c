/* Goes over memory again and again, in order and here and there: an ordinary C program, which knows nothing of Trellis.
 *
 *     working_set BYTES                    the memory is one block from malloc
 *     working_set BYTES --in FILE          it is a new file that is mapped, without malloc
 *     working_set BYTES --touches N        so many words here and there; without, one for each page
 *
 * Standard output has a sum for each pass, the same ones wherever the memory is; standard error says how long each
 * took. `trellis store run --store memory-server:... --cache 32MiB ./working_set 128MiB` has 32 MiB of it here. */

#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096, PAGE_WORDS = PAGE_BYTES / 8 };

static void fail(const char *what) {
    fprintf(stderr, "working_set: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static uint64_t mixed(uint64_t number) { /* SplitMix64 */
    uint64_t z = number + 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* A number of bytes, or one with KiB, MiB or GiB. */
static size_t size(const char *text) {
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    unsigned shift = 0;
    if (!strcmp(end, "KiB")) shift = 10;
    else if (!strcmp(end, "MiB")) shift = 20;
    else if (!strcmp(end, "GiB")) shift = 30;
    else if (*end) errno = EINVAL;
    if (errno || end == text) {
        errno = EINVAL;
        fail(text);
    }
    return (size_t)number << shift;
}

static uint64_t *map_file(const char *path, size_t bytes) {
    int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes)) fail(path);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) fail(path);
    close(file);
    return memory;
}

static uint64_t fill(uint64_t *memory, size_t words, size_t unused) {
    (void)unused;
    for (size_t i = 0; i < words; ++i) memory[i] = mixed(i);
    return words;
}

/* In order, read. */
static uint64_t scan(uint64_t *memory, size_t words, size_t unused) {
    (void)unused;
    uint64_t sum = 0;
    for (size_t i = 0; i < words; ++i) sum = (sum << 1 | sum >> 63) ^ memory[i];
    return sum;
}

/* In order, every word changed. */
static uint64_t update(uint64_t *memory, size_t words, size_t unused) {
    (void)unused;
    uint64_t sum = 0;
    for (size_t i = 0; i < words; ++i) sum += memory[i] = memory[i] * 5 + 1;
    return sum;
}

/* In order, with something to do for each word. */
static uint64_t work(uint64_t *memory, size_t words, size_t unused) {
    (void)unused;
    uint64_t sum = 0;
    for (size_t i = 0; i < words; ++i) {
        for (int round = 0; round < 4; ++round) sum = mixed(sum ^ memory[i]);
    }
    return sum;
}

/* Here and there: one word of a page, every other one changed. */
static uint64_t touch(uint64_t *memory, size_t words, size_t touches) {
    uint64_t sum = 0;
    for (size_t i = 0; i < touches; ++i) {
        uint64_t drawn = mixed(~(uint64_t)i);
        uint64_t *word = &memory[drawn % (words / PAGE_WORDS) * PAGE_WORDS + (drawn >> 48) % PAGE_WORDS];
        sum += *word;
        if (i % 2) *word = sum;
    }
    return sum;
}

int main(int count, char **arguments) {
    const char *path = NULL;
    size_t bytes = 0, touches = 0;
    for (int i = 1; i < count; ++i) {
        if (!strcmp(arguments[i], "--in") && i + 1 < count) path = arguments[++i];
        else if (!strcmp(arguments[i], "--touches") && i + 1 < count) touches = size(arguments[++i]);
        else bytes = size(arguments[i]);
    }
    size_t words = bytes / PAGE_BYTES * PAGE_WORDS;
    if (!words) {
        fprintf(stderr, "usage: working_set BYTES [--in FILE] [--touches N]\n");
        return 2;
    }
    if (!touches) touches = words / PAGE_WORDS;
    uint64_t *memory = path ? map_file(path, bytes) : malloc(bytes);
    if (!memory) fail("no memory");
    const struct {
        const char *name;
        uint64_t (*pass)(uint64_t *, size_t, size_t);
    } passes[] = {{"fill", fill}, {"scan", scan}, {"update", update}, {"work", work}, {"touch", touch}};
    for (size_t i = 0; i < sizeof passes / sizeof *passes; ++i) {
        double begin = seconds();
        uint64_t sum = passes[i].pass(memory, words, touches);
        fprintf(stderr, "%s took %.6f s\n", passes[i].name, seconds() - begin);
        printf("%s %016" PRIx64 "\n", passes[i].name, sum);
        fflush(stdout);
    }
    return 0;
}
