/* A program that knows nothing of Trellis, run with libtrellis_malloc.so: where its memory lies, and that all of the
 * C library that allocates works: before main, in threads, in children, across dlopen. */
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "line %d: %s is false\n", __LINE__, #condition);   \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static int is_of_region(const void *address) { return (uintptr_t)address >> 40 == 0x20; }

static char *early;
__attribute__((constructor)) static void before_main(void) { early = strdup("before main"); }

static void *allocate_much(void *into) {
    char **blocks = into;
    for (int turn = 0; turn < 5000; turn++) {
        int at = turn * 7 % 500;
        free(blocks[at]);
        blocks[at] = malloc(turn % 3000 + 1);
        CHECK(blocks[at] && is_of_region(blocks[at]));
        blocks[at][turn % 3000] = (char)turn;
    }
    return NULL;
}

static void threads(void) {
    static char *blocks[4][500];
    pthread_t running[4];
    for (int round = 0; round < 2; round++) {
        for (int thread = 0; thread < 4; thread++)
            CHECK(pthread_create(&running[thread], NULL, allocate_much, blocks[(thread + round) % 4]) == 0);
        for (int thread = 0; thread < 4; thread++)
            CHECK(pthread_join(running[thread], NULL) == 0);
    }
    for (int at = 0; at < 2000; at++)
        free(blocks[at / 500][at % 500]);
}

static void *fork_often(void *nothing) {
    for (int turn = 0; turn < 10; turn++) {
        char *mine = strdup("the parent's");
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            /* Other threads of the parent were allocating; here everything must be in order. */
            char *more = malloc(10000);
            if (!more || strcmp(mine, "the parent's") != 0)
                _exit(2);
            free(mine);
            free(realloc(more, 100000));
            _exit(0);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(strcmp(mine, "the parent's") == 0);
        free(mine);
    }
    return nothing;
}

static void children(void) {
    static char *blocks[500];
    pthread_t allocating, forking;
    CHECK(pthread_create(&allocating, NULL, allocate_much, blocks) == 0);
    CHECK(pthread_create(&forking, NULL, fork_often, NULL) == 0);
    CHECK(pthread_join(forking, NULL) == 0 && pthread_join(allocating, NULL) == 0);
    CHECK(system("exit 3") >> 8 == 3);
    FILE *pipe = popen("echo from a child", "r");
    char line[100];
    CHECK(pipe && fgets(line, sizeof line, pipe) && strcmp(line, "from a child\n") == 0 && pclose(pipe) == 0);
}

static void library_functions(void) {
    char *line = NULL;
    size_t bytes = 0;
    FILE *file = tmpfile();
    CHECK(file && fputs("a line that is longer than what getline begins with", file) >= 0);
    rewind(file);
    CHECK(getline(&line, &bytes, file) > 0 && is_of_region(line));
    free(line);
    fclose(file);
    char *printed = NULL;
    CHECK(asprintf(&printed, "%d %s", 42, "forty-two") > 0 && is_of_region(printed));
    CHECK(strcmp(printed, "42 forty-two") == 0);
    free(printed);
    char *folder = getcwd(NULL, 0);
    CHECK(folder && is_of_region(folder));
    free(folder);
    void *mathematics = dlopen("libm.so.6", RTLD_NOW);
    CHECK(mathematics);
    double (*cosine)(double) = (double (*)(double))(uintptr_t)dlsym(mathematics, "cos");
    CHECK(cosine && cosine(0) == 1);
    CHECK(dlclose(mathematics) == 0);
}

int main(void) {
    CHECK(strcmp(early, "before main") == 0);
    free(early);
    unsigned char *block = malloc(100);
    CHECK(is_of_region(block) && (uintptr_t)block % 16 == 0);
    memset(block, 9, 100);
    block = realloc(block, 100000);
    CHECK(is_of_region(block) && block[0] == 9 && block[99] == 9);
    block = reallocarray(block, 10, 20);
    CHECK(block && block[99] == 9);
    CHECK(reallocarray(block, SIZE_MAX / 2, 3) == NULL && errno == ENOMEM);
    free(block);
    block = calloc(1000, 7);
    CHECK(is_of_region(block) && block[0] == 0 && memcmp(block, block + 1, 6999) == 0);
    free(block);
    free(NULL);
    CHECK(malloc(PTRDIFF_MAX) == NULL && errno == ENOMEM);
    void *aligned;
    CHECK(posix_memalign(&aligned, 4096, 100) == 0 && is_of_region(aligned) && (uintptr_t)aligned % 4096 == 0);
    CHECK(posix_memalign(&aligned, 3, 100) == EINVAL);
    free(aligned);
    for (size_t alignment = 16; alignment <= 1 << 16; alignment *= 4) {
        aligned = aligned_alloc(alignment, alignment);
        CHECK(is_of_region(aligned) && (uintptr_t)aligned % alignment == 0);
        free(aligned);
    }
    aligned = valloc(10);
    CHECK(is_of_region(aligned) && (uintptr_t)aligned % 4096 == 0);
    free(aligned);
    block = malloc(333);
    const char *kind = getenv("TRELLIS_STORE_HEAP");
    CHECK(malloc_usable_size(block) >= 333 || (kind && strcmp(kind, "bump") == 0));
    CHECK(malloc_usable_size(NULL) == 0);
    free(block);
    library_functions();
    threads();
    children();
    puts("ok");
    return 0;
}
