/* stored.c - memory in a store from C: what the pass emits and what people write, one role a run. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <trellis/compiled.h>
#include <trellis/stored.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, trellis_last_error());                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static void start(uint32_t mode) {
    static struct trellis_compiled_program program = {TRELLIS_COMPILED_ABI, 0, "test"};
    program.mode = mode;
    __trellis_start(&program);
    __trellis_start(&program);
}

static uint64_t calls(void) {
    trellis_store_statistics_t statistics;
    CHECK(trellis_store_statistics(&statistics) == TRELLIS_OK);
    return statistics.calls;
}

static void words(void) {
    start(TRELLIS_MODE_HEAP);
    char *block = __trellis_malloc(10000);
    CHECK((uintptr_t)block - TRELLIS_REGION_BASE < TRELLIS_REGION_SPAN);
    uint64_t before = calls();
    __trellis_store_8(block + 1, 0x1122334455667788);
    __trellis_store_2(block + 2, 0xaabb);
    __trellis_store_1(block + 8, 9);
    CHECK(__trellis_load_8(block + 1) == 0x0922334455aabb88);
    CHECK(__trellis_load_4(block + 2) == 0x4455aabb && __trellis_load_1(block) == 0);
    double vector[3] = {1.5, 2.5, 3.5}, found[3];
    __trellis_store(block + 4090, vector, sizeof vector);
    __trellis_load(block + 4090, found, sizeof found);
    CHECK(memcmp(vector, found, sizeof found) == 0);
    CHECK(calls() - before == 8);
    char text[] = "some text of the program";
    __trellis_copy(block + 100, text, sizeof text);
    __trellis_move(block + 105, block + 100, sizeof text);
    memset(text, 0, sizeof text);
    __trellis_copy(text, block + 105, sizeof text);
    CHECK(strcmp(text, "some text of the program") == 0);
    __trellis_set(block + 100, 7, 5000);
    CHECK(__trellis_load_1(block + 5099) == 7 && __trellis_load_1(block + 5100) == 0);
    CHECK(__trellis_atomic_update(block + 8000, 5, 4, TRELLIS_ATOMIC_SUBTRACT) == 0);
    CHECK(__trellis_atomic_load(block + 8000, 4) == 0xfffffffb);
    uint64_t expected = 1;
    CHECK(!__trellis_atomic_compare_exchange(block + 8000, &expected, 3, 4) && expected == 0xfffffffb);
    CHECK(__trellis_atomic_compare_exchange(block + 8000, &expected, 3, 4));
    CHECK(__trellis_atomic_update(block + 8000, 8, 4, TRELLIS_ATOMIC_EXCHANGE) == 3);
    __trellis_atomic_store(block + 8000, 6, 8);
    __trellis_fence();
    CHECK(__trellis_atomic_load(block + 8000, 8) == 6);
    __trellis_free(block);
}

static int global = 77;

static void full(void) {
    start(TRELLIS_MODE_FULL);
    CHECK(trellis_store_open(NULL) == TRELLIS_ERROR_STATE); /* words, and pages are asked for */
    volatile int local = 5;
    CHECK(__trellis_load_4(&global) == 77 && __trellis_load_4((void *)&local) == 5);
    __trellis_store_4(&global, 78);
    __trellis_store_4((void *)&local, 6);
    CHECK(global == 77 && local == 5);
    CHECK(__trellis_load_4(&global) == 78 && __trellis_load_4((void *)&local) == 6);
    local = 7;
    __trellis_import((void *)&local, sizeof local);
    CHECK(__trellis_load_4((void *)&local) == 7);
    __trellis_export(&global, sizeof global);
    CHECK(global == 78);
    CHECK(__trellis_atomic_update(&global, 1, 4, TRELLIS_ATOMIC_ADD) == 78 && global == 78);
    __trellis_keep_native(&global, sizeof global);
    CHECK(global == 79);
    __trellis_store_4(&global, 80);
    CHECK(global == 80);
}

static void line(void) {
    start(TRELLIS_MODE_LINE);
    /* What the environment opened is there; another is not. */
    trellis_store_options other = {.region = "another"};
    CHECK(trellis_store_open(NULL) == TRELLIS_OK && trellis_store_base() == (void *)TRELLIS_REGION_BASE);
    CHECK(trellis_store_open(&other) == TRELLIS_ERROR_STATE);
    CHECK(strstr(trellis_last_error(), "a region of its own open in mode `line`") != NULL);
    volatile char *block = __trellis_malloc(100000);
    const volatile uint8_t *states =
        (const volatile uint8_t *)(TRELLIS_LINE_STATES +
                                   (((uintptr_t)block - TRELLIS_REGION_BASE) >> TRELLIS_LINE_SHIFT));
    CHECK(*states == 0);
    __trellis_line_write((void *)block, 1);
    CHECK(*states == (TRELLIS_LINE_READABLE | TRELLIS_LINE_WRITABLE));
    block[0] = 1;
    block[99999] = 2; /* without a check: a fault */
    __trellis_line_read((void *)(block + 99990), 10);
    CHECK(block[0] == 1 && block[99999] == 2);
    char native;
    __trellis_line_write(&native, 1);
    __trellis_free((void *)block);
}

static void page(void) {
    trellis_store_options options = {.store = "embedded:", .cache_bytes_max = 2 << 20, .region_bytes = 1 << 30};
    CHECK(trellis_store_release() == TRELLIS_ERROR_STATE && trellis_store_base() == NULL);
    CHECK(trellis_store_open(&options) == TRELLIS_OK);
    CHECK(trellis_store_open(&options) == TRELLIS_ERROR_STATE);
    CHECK(trellis_store_bytes() == 1 << 30 && trellis_store_base() == (void *)TRELLIS_REGION_BASE);
    CHECK(trellis_store_malloc((size_t)2 << 30) == NULL);
    CHECK(strstr(trellis_last_error(), "no room for 2147483648 bytes; free some of it") != NULL);
    size_t count = 1 << 20;
    uint64_t *numbers = trellis_store_malloc(count * sizeof *numbers);
    for (size_t i = 0; i < count; i++) numbers[i] = i * i;
    for (size_t i = 0; i < count; i++) CHECK(numbers[i] == i * i);
    trellis_store_statistics_t statistics;
    CHECK(trellis_store_statistics(&statistics) == TRELLIS_OK);
    CHECK(statistics.pages_evicted > 1000 && statistics.bytes_in_memory <= 2 << 20);
    void *found = &found;
    CHECK(trellis_store_root("numbers", &found) == TRELLIS_OK && found == NULL);
    CHECK(trellis_store_set_root("numbers", numbers) == 1 && trellis_store_set_root("numbers", numbers + 1) == 0);
    CHECK(trellis_store_root("numbers", &found) == TRELLIS_OK && found == numbers);
    CHECK(trellis_store_set_root("x", &found) == TRELLIS_ERROR_ARGUMENT);
    CHECK(trellis_store_acquire() == TRELLIS_OK);
    uint64_t before = calls();
    CHECK(trellis_store_release() == TRELLIS_OK && calls() == before);
    trellis_store_free(numbers);
    CHECK(trellis_store_close() == TRELLIS_OK && trellis_store_close() == TRELLIS_OK);
}

/* A child has no memory of the region; its parent goes on. */
static void forked(uint32_t mode) {
    start(mode);
    char *block = __trellis_malloc(100);
    if (mode == TRELLIS_MODE_HEAP) __trellis_store_1(block, 5);
    else *block = 5;
    pid_t child = fork();
    if (child == 0) {
        CHECK(trellis_store_release() == TRELLIS_ERROR_STATE);
        char *of_child = __trellis_malloc(10);
        CHECK((uintptr_t)of_child - TRELLIS_REGION_BASE >= TRELLIS_REGION_SPAN);
        if (mode == TRELLIS_MODE_HEAP) __trellis_load_1(block);
        else *(volatile char *)block = 6;
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (mode == TRELLIS_MODE_HEAP) CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 70);
    else CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK((mode == TRELLIS_MODE_HEAP ? (char)__trellis_load_1(block) : *block) == 5);
}

/* The store goes while a page is needed. */
static void lost(const char *server) {
    CHECK(trellis_store_open(NULL) == TRELLIS_OK);
    volatile char *base = trellis_store_base();
    base[0] = 1;
    CHECK(trellis_store_release() == TRELLIS_OK);
    CHECK(kill((pid_t)atol(server), SIGKILL) == 0);
    puts("asked");
    fflush(stdout);
    printf("%d\n", base[1 << 20]);
}

int main(int argc, char **argv) {
    const char *role = argc > 1 ? argv[1] : "";
    if (strcmp(role, "words") == 0) words();
    else if (strcmp(role, "full") == 0) full();
    else if (strcmp(role, "line") == 0) line();
    else if (strcmp(role, "page") == 0) page();
    else if (strcmp(role, "fork-words") == 0) forked(TRELLIS_MODE_HEAP);
    else if (strcmp(role, "fork-pages") == 0) forked(TRELLIS_MODE_PAGE);
    else if (strcmp(role, "lost") == 0 && argc > 2) lost(argv[2]);
    else return 2;
    puts("done");
    return 0;
}
