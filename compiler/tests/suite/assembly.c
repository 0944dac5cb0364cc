/* Inline assembly on memory: refused where accesses are words, done by the processor where lines are cached. */
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    int *number = malloc(sizeof *number);
    *number = 5;
    printf("%d\n", *number);
    __asm__ volatile("lock; addl $7, %0" : "+m"(*number));
    printf("%d\n", *number);
    free(number);
}
