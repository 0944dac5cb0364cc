/* Inline assembly that touches no memory: empty barriers, register-only code, fences. */
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    int *number = malloc(sizeof *number);
    *number = 5;
    __asm__ volatile("" ::: "memory");
    __asm__ volatile("" : "+r"(number) : : "memory");
    __asm__ volatile("mfence" ::: "memory");
    __asm__ volatile("pause");
    unsigned low = (unsigned)*number, result;
    __asm__("leal 3(%1), %0" : "=r"(result) : "r"(low));
    __asm__ volatile("" : "+m"(*number));
    printf("%d %u\n", *number, result);
    free(number);
}
