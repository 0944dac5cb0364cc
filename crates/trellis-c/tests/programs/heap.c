/* Every function of the shared heap on a cluster of any size. Exit 0 when all is right. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trellis.h>

static void check(int condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "wrong: %s; last error: %s\n", what, trellis_last_error());
    _Exit(1);
}

static int all(const unsigned char *bytes, size_t count, int value) {
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != value) return 0;
    }
    return 1;
}

/* What C programs know from malloc. */
static void as_in_c(trellis_cluster *cluster) {
    unsigned char *block = trellis_malloc(cluster, 1000);
    check(block != NULL && (uintptr_t)block % 16 == 0, "malloc");
    check(trellis_usable_size(cluster, block) >= 1000, "usable size");
    memset(block, 7, trellis_usable_size(cluster, block));
    block = trellis_realloc(cluster, block, 100000);
    check(block != NULL && all(block, 1000, 7), "a block that grew has its contents");
    block = trellis_realloc(cluster, block, 10);
    check(block != NULL && all(block, 10, 7), "a block that shrank has its contents");
    check(trellis_free(cluster, block) == TRELLIS_OK, "free");
    check(trellis_free(cluster, NULL) == TRELLIS_OK, "NULL is nothing");
    for (int i = 0; i < 3; i++) {
        unsigned char *zeros = trellis_calloc(cluster, 100, 10);
        check(zeros != NULL && all(zeros, 1000, 0), "calloc");
        memset(zeros, 9, 1000);
        check(trellis_free(cluster, zeros) == TRELLIS_OK, "free what calloc gave");
    }
    unsigned char *empty = trellis_malloc(cluster, 0);
    unsigned char *other = trellis_realloc(cluster, NULL, 0);
    check(empty != NULL && other != NULL && empty != other, "a block of nothing is a block");
    check(trellis_free(cluster, empty) == TRELLIS_OK && trellis_free(cluster, other) == TRELLIS_OK, "free nothing");
    for (size_t alignment = 1; alignment <= 65536; alignment *= 2) {
        void *aligned = trellis_aligned_alloc(cluster, alignment, 100);
        check(aligned != NULL && (uintptr_t)aligned % alignment == 0, "alignment");
        check(trellis_free(cluster, aligned) == TRELLIS_OK, "free what is aligned");
    }
}

static void where_it_lies(trellis_cluster *cluster) {
    const size_t page = trellis_page_bytes(cluster);
    void *first = trellis_malloc_padded(cluster, 100, TRELLIS_PER_PAGE);
    void *line = trellis_malloc_padded(cluster, 100, TRELLIS_PER_CACHE_LINE);
    void *there = trellis_malloc_at(cluster, 100, trellis_nodes(cluster) - 1);
    void *large = trellis_allocate(cluster, 300000, 4096, TRELLIS_HOME_INTERLEAVED, TRELLIS_PACKED);
    void *zeros = trellis_allocate_zeroed(cluster, 5000, 64, TRELLIS_HOME_HERE, TRELLIS_PER_PAGE);
    check(first && (uintptr_t)first % page == 0 && trellis_usable_size(cluster, first) == page, "pages of its own");
    check(line && (uintptr_t)line % 64 == 0 && there && large, "padded, at a node, interleaved");
    check(zeros && all(zeros, 5000, 0), "zeros");
    check((size_t)((char *)first - (char *)trellis_base(cluster)) >= trellis_heap_start(cluster), "where the heap is");
    void *blocks[] = {first, line, there, large, zeros};
    for (size_t i = 0; i < 5; i++) check(trellis_free(cluster, blocks[i]) == TRELLIS_OK, "free");
}

static void what_is_refused(trellis_cluster *cluster) {
    int local = 0;
    char *block = trellis_malloc(cluster, 100);
    check(trellis_free(cluster, block + 16) == TRELLIS_ERROR_ARGUMENT, "the middle of a block");
    check(trellis_free(cluster, block) == TRELLIS_OK, "the block is still there");
    check(trellis_free(cluster, block) == TRELLIS_ERROR_ARGUMENT, "a block that was freed before");
    check(strstr(trellis_last_error(), "freed before") != NULL, "the sentence says so");
    check(trellis_free(cluster, &local) == TRELLIS_ERROR_ARGUMENT, "what is not in the region");
    check(trellis_realloc(cluster, &local, 10) == NULL, "realloc of what is not in the region");
    check(trellis_usable_size(cluster, block) == 0 && trellis_usable_size(cluster, NULL) == 0, "no block");
    check(trellis_malloc(cluster, SIZE_MAX / 2) == NULL, "more than there is");
    check(trellis_calloc(cluster, SIZE_MAX / 2, 3) == NULL, "more than a number");
    check(trellis_malloc(cluster, trellis_bytes(cluster) + 1) == NULL, "more than the region");
    check(strstr(trellis_last_error(), "region_bytes") != NULL, "the sentence names the key");
    check(trellis_aligned_alloc(cluster, 48, 100) == NULL, "an alignment that is not a power of two");
    check(trellis_malloc_padded(cluster, 100, 7) == NULL, "an unknown padding");
    check(trellis_malloc_at(cluster, 100, trellis_nodes(cluster)) == NULL, "a node that is not there");
    check(trellis_malloc(NULL, 1) == NULL && trellis_heap_start(NULL) == 0, "no cluster");
    check(trellis_heap_statistics(cluster, NULL, 8) == TRELLIS_ERROR_ARGUMENT, "no place for the counts");
}

int main(void) {
    trellis_cluster *cluster;
    check(trellis_current() == NULL, "no cluster before joining");
    check(trellis_join(NULL, &cluster) == TRELLIS_OK, "join");
    check(trellis_current() == cluster, "the cluster of this process");
    char **slots = trellis_base(cluster);
    const size_t me = trellis_node(cluster), nodes = trellis_nodes(cluster);
    as_in_c(cluster);
    where_it_lies(cluster);
    what_is_refused(cluster);

    /* Pointers mean the same everywhere: each node frees what the node before it allocated. */
    slots[me] = trellis_malloc(cluster, 100);
    sprintf(slots[me], "from node %zu", me);
    check(trellis_barrier(cluster, 0) == TRELLIS_OK, "barrier");
    char *theirs = slots[(me + 1) % nodes], expected[32];
    sprintf(expected, "from node %zu", (me + 1) % nodes);
    check(strcmp(theirs, expected) == 0, "what another node wrote");
    check(trellis_free(cluster, theirs) == TRELLIS_OK, "free what another node allocated");
    check(trellis_barrier(cluster, 1) == TRELLIS_OK, "barrier");

    trellis_heap_counts counts;
    check(trellis_heap_statistics(cluster, &counts, sizeof counts) == TRELLIS_OK, "statistics");
    check(counts.blocks == 0 && counts.block_bytes == 0 && counts.allocations > 10, "everything was freed");
    check(counts.frees_by_others == (nodes > 1), "who freed");
    check(trellis_barrier(cluster, 2) == TRELLIS_OK, "barrier");
    check(trellis_leave(cluster) == TRELLIS_OK, "leave");
    check(trellis_current() == NULL, "no cluster after leaving");
    puts("heap complete");
    return 0;
}
