/* product.h - the product of two small matrices, added to a third: the inner loop of lu and matmul.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef PRODUCT_H
#define PRODUCT_H

#include <stddef.h>

/* c += sign * a * b, where a has `rows` rows and `depth` columns, b `columns` columns, and a row of each begins `pitch`
 * elements after the one before. Two rows by four terms at a time, so that each loaded element is used several
 * times. */
static inline void product_add(double *__restrict__ c, const double *__restrict__ a, const double *__restrict__ b,
                               double sign, size_t rows, size_t depth, size_t columns, size_t pitch) {
    for (size_t i = 0; i < rows; i += 2) {
        const int two = i + 1 < rows;
        const double *const a0 = a + i * pitch, *const a1 = two ? a0 + pitch : a0;
        double *const c0 = c + i * pitch, *const c1 = c0 + pitch;
        size_t k = 0;
        for (; two && k + 4 <= depth; k += 4) {
            const double a00 = sign * a0[k], a01 = sign * a0[k + 1], a02 = sign * a0[k + 2], a03 = sign * a0[k + 3];
            const double a10 = sign * a1[k], a11 = sign * a1[k + 1], a12 = sign * a1[k + 2], a13 = sign * a1[k + 3];
            const double *const b0 = b + k * pitch, *const b1 = b0 + pitch;
            const double *const b2 = b1 + pitch, *const b3 = b2 + pitch;
            for (size_t j = 0; j < columns; ++j) {
                c0[j] += a00 * b0[j] + a01 * b1[j] + (a02 * b2[j] + a03 * b3[j]);
                c1[j] += a10 * b0[j] + a11 * b1[j] + (a12 * b2[j] + a13 * b3[j]);
            }
        }
        for (; k < depth; ++k)
            for (size_t j = 0; j < columns; ++j) {
                c0[j] += sign * a0[k] * b[k * pitch + j];
                if (two) c1[j] += sign * a1[k] * b[k * pitch + j];
            }
    }
}

#endif
