/* A heap larger than the cache, which the next run finds: checks what the run before left, writes as many bytes again,
 * checks them after they had to leave the cache, and leaves them.
 *
 *     trellis store run --store URL --region NAME --cache 1MiB ./left_behind BYTES
 *
 * Prints one line: which run this is. Ends with 1 and a sentence when a byte is wrong, or when nothing left the
 * cache. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <trellis/stored.h>

struct left {
    uint64_t run, words;
    uint64_t *numbers;
};

static void check(int status) {
    if (status >= 0) return;
    fprintf(stderr, "left_behind: %s\n", trellis_last_error());
    exit(1);
}

/* Another word for each place and each run. */
static uint64_t number(uint64_t run, uint64_t index) {
    uint64_t mixed = (index + (run << 40)) * 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 29)) * 0xbf58476d1ce4e5b9u;
    return mixed ^ (mixed >> 32);
}

static void check_numbers(const struct left *left) {
    for (uint64_t i = 0; i < left->words; ++i) {
        if (left->numbers[i] == number(left->run, i)) continue;
        fprintf(stderr, "left_behind: word %llu of run %llu is %#llx, not %#llx\n", (unsigned long long)i,
                (unsigned long long)left->run, (unsigned long long)left->numbers[i],
                (unsigned long long)number(left->run, i));
        exit(1);
    }
}

int main(int argc, char **argv) {
    uint64_t words = argc > 1 ? strtoull(argv[1], NULL, 10) / sizeof(uint64_t) : 0;
    if (words == 0) {
        fprintf(stderr, "usage: left_behind BYTES\n");
        return 2;
    }
    void *found;
    check(trellis_store_root("left", &found));
    struct left *left = found;
    if (left) {
        check_numbers(left);
        free(left->numbers);
    } else {
        left = calloc(1, sizeof *left);
        if (!left) return 1;
    }
    left->run += 1;
    left->words = words;
    left->numbers = malloc(words * sizeof *left->numbers);
    if (!left->numbers) return 1;
    for (uint64_t i = 0; i < words; ++i) left->numbers[i] = number(left->run, i);
    check_numbers(left);
    check(found ? trellis_store_release() : trellis_store_set_root("left", left));
    trellis_store_statistics_t statistics;
    check(trellis_store_statistics(&statistics));
    if (statistics.pages_evicted == 0) {
        fprintf(stderr, "left_behind: nothing left the cache\n");
        return 1;
    }
    printf("run %llu\n", (unsigned long long)left->run);
    return 0;
}
