/* hello.c: every node writes one line into shared memory; node 0 prints them all.
 *
 *     cc hello.c $(pkg-config --cflags --libs trellis) -o hello
 *     trellis run -n 4 ./hello
 */
#include <stdio.h>
#include <trellis.h>

enum { LINE_BYTES = 64 };

static int failed(void) {
    fprintf(stderr, "hello: %s\n", trellis_last_error());
    return 1;
}

int main(void) {
    trellis_cluster *cluster;
    if (trellis_join(NULL, &cluster) != TRELLIS_OK) return failed();

    size_t node = trellis_node(cluster), nodes = trellis_nodes(cluster);

    /* The region is plain memory at one address in every process: index it, point into it. All lines share one page
     * here, and that is correct, only slower than a page per node: the page travels from writer to writer. */
    char(*lines)[LINE_BYTES] = trellis_base(cluster);
    snprintf(lines[node], LINE_BYTES, "hello from node %zu of %zu", node, nodes);

    /* Nobody reads before everybody has written. */
    if (trellis_barrier(cluster, 0) != TRELLIS_OK) return failed();

    if (node == 0)
        for (size_t i = 0; i < nodes; i++) puts(lines[i]);

    /* Leaving waits for the others too: node 0 may still be reading what they wrote. */
    return trellis_leave(cluster) == TRELLIS_OK ? 0 : failed();
}
