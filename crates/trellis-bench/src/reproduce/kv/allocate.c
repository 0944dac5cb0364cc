// Takes as many bytes as its argument says, says so, and stays until its standard input ends.
//
// Who started it looks at its memory meanwhile; the program itself never writes to what it took, as in the paper's
// figure 4.2.

#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    long bytes = count > 1 ? atol(arguments[1]) : 0;
    void *volatile taken = NULL;
    if (bytes > 0) {
        taken = malloc(bytes);
        if (!taken) {
            fprintf(stderr, "trellis: malloc has no %ld bytes\n", bytes);
            return 1;
        }
    }
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    free(taken);
    return 0;
}
