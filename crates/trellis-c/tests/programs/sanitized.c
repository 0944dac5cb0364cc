/* A program that shares a page and uses private memory; its argument is the byte of 10 to which it stores. */

#include <stdio.h>
#include <stdlib.h>
#include <trellis.h>

int main(int count, char **arguments)
{
    trellis_cluster *cluster;
    if (trellis_join(NULL, &cluster) != TRELLIS_OK) {
        fprintf(stderr, "%s\n", trellis_last_error());
        return 1;
    }
    volatile unsigned long *shared = trellis_base(cluster);
    if (trellis_node(cluster) == 0)
        shared[5] = 7;
    trellis_barrier(cluster, 1);
    printf("node %zu sees %lu\n", trellis_node(cluster), shared[5]);
    volatile char *block = malloc(10);
    block[count > 1 ? atoi(arguments[1]) : 3] = 1;
    free((void *)block);
    return trellis_leave(cluster) != TRELLIS_OK;
}
