/* Arrays and objects with names from C, on a cluster of any size. Exit 0 when all is right. */
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

int main(void) {
    trellis_cluster *cluster;
    check(trellis_join(NULL, &cluster) == TRELLIS_OK, "joining");
    const size_t node = trellis_node(cluster), nodes = trellis_nodes(cluster), count = 1000 * nodes;
    double *numbers = trellis_array(cluster, "numbers", count, sizeof(double), TRELLIS_FLOAT);
    check(numbers != NULL, "an array");
    size_t first = 0, length = 0, covered = 0;
    for (size_t other = 0; other < nodes; other++) {
        check(trellis_partition(cluster, count, sizeof(double), other, &first, &length) == TRELLIS_OK, "a partition");
        check(first == covered, "partitions are adjacent");
        covered += length;
    }
    check(covered == count, "partitions cover the array");
    check(trellis_partition(cluster, count, sizeof(double), node, &first, &length) == TRELLIS_OK, "the own partition");
    for (size_t index = first; index < first + length; index++) numbers[index] = (double)index;
    check(trellis_barrier(cluster, trellis_id(cluster, "filled")) == TRELLIS_OK, "a barrier with a name");
    for (size_t index = 0; index < count; index++) check(numbers[index] == (double)index, "every partition is filled");

    check(trellis_array(cluster, "numbers", count, sizeof(float), TRELLIS_FLOAT) == NULL, "another type");
    check(strstr(trellis_last_error(), "array `numbers` has ") != NULL, "the sentence names the array");
    check(trellis_last_status() == TRELLIS_ERROR_ARGUMENT, "the code of a refused array");
    check(trellis_array(cluster, "large", SIZE_MAX / 16, sizeof(double), TRELLIS_FLOAT) == NULL, "no room");
    check(trellis_last_status() == TRELLIS_ERROR_STATE, "the code of no room");
    check(trellis_lock(cluster, UINT64_C(3) << 62) == TRELLIS_ERROR_STATE, "a number of Trellis itself");
    check(trellis_array(cluster, "numbers", count, sizeof(double), 4) == NULL, "no such type");
    check(trellis_array(cluster, NULL, count, sizeof(double), TRELLIS_FLOAT) == NULL, "no name");
    check(trellis_array(cluster, "x", count, 0, TRELLIS_FLOAT) == NULL, "no size");
    check(trellis_array(NULL, "x", count, 8, TRELLIS_FLOAT) == NULL, "no cluster");
    check(trellis_partition(cluster, count, 8, 0, NULL, &length) == TRELLIS_ERROR_ARGUMENT, "no place");
    check(trellis_id(cluster, NULL) == 0 && trellis_id(NULL, "x") == 0, "no name, no cluster");
    check(trellis_id(cluster, "a") != trellis_id(cluster, "b"), "names have different numbers");
    check(trellis_id(cluster, "a") >> 62 == 2, "numbers of names are from 2^63 on");

    const uint64_t lock = trellis_id(cluster, "lock");
    long *total = trellis_array(cluster, "total", 1, sizeof(long), TRELLIS_SIGNED);
    for (int i = 0; i < 50; i++) {
        check(trellis_lock(cluster, lock) == TRELLIS_OK, "a lock with a name");
        *total += 1;
        check(trellis_unlock(cluster, lock) == TRELLIS_OK, "its release");
    }
    check(trellis_barrier(cluster, 0) == TRELLIS_OK && *total == 50 * (long)nodes, "a lock loses nothing");
    check(trellis_barrier(cluster, 1) == TRELLIS_OK, "all have looked");
    check(trellis_leave(cluster) == TRELLIS_OK, "leaving");
    puts("names complete");
    return 0;
}
