/* Vector types and intrinsics, aligned and across lines. */
#include <emmintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int four __attribute__((vector_size(16)));
typedef float eight __attribute__((vector_size(32)));
typedef unsigned char sixteen __attribute__((vector_size(16), aligned(1)));
typedef short two __attribute__((vector_size(4)));
typedef double many __attribute__((vector_size(128)));

int main(void) {
    four *fours = aligned_alloc(16, 8 * sizeof *fours);
    for (int i = 0; i < 8; i++)
        fours[i] = (four){i, i + 1, i + 2, i * 3};
    four sum = {0};
    for (int i = 0; i < 8; i++)
        sum += fours[i] * fours[7 - i];
    printf("%d %d %d %d\n", sum[0], sum[1], sum[2], sum[3]);
    fours[3][2] = 99;
    printf("%d %d\n", fours[3][1], fours[3][2]);
    eight *eights = aligned_alloc(64, 4 * sizeof *eights);
    eights[1] = (eight){1, 2, 3, 4, 5, 6, 7, 8};
    eights[2] = eights[1] / 2;
    printf("%f %f\n", eights[2][0], eights[2][7]);
    unsigned char *bytes = malloc(300);
    for (int i = 0; i < 300; i++)
        bytes[i] = (unsigned char)i;
    for (int at = 45; at < 130; at += 3) {
        *(sixteen *)(bytes + at) += (sixteen){1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2};
        __m128i loaded = _mm_loadu_si128((__m128i *)(bytes + at + 1));
        _mm_storeu_si128((__m128i *)(bytes + at + 1), _mm_add_epi8(loaded, _mm_set1_epi8(3)));
    }
    unsigned check = 0;
    for (int i = 0; i < 300; i++)
        check = check * 31 + bytes[i];
    printf("%u\n", check);
    two *twos = malloc(4 * sizeof *twos);
    twos[0] = (two){3, 4};
    twos[1] = twos[0] * twos[0];
    printf("%d %d\n", twos[1][0], twos[1][1]);
    many *large = aligned_alloc(128, 2 * sizeof *large);
    for (int i = 0; i < 16; i++)
        large[0][i] = i;
    large[1] = large[0] + large[0];
    printf("%f %f\n", large[1][0], large[1][15]);
    double *reals = aligned_alloc(16, 4 * sizeof *reals);
    _mm_store_pd(reals, _mm_set_pd(2.0, 1.0));
    _mm_storeh_pd(reals + 2, _mm_load_pd(reals));
    _mm_stream_pd(reals, _mm_set1_pd(reals[2]));
    printf("%f %f %f\n", reals[0], reals[1], reals[2]);
    free(reals);
    free(large);
    free(twos);
    free(bytes);
    free(eights);
    free(fours);
}
