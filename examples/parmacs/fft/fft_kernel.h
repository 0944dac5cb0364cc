/* fft_kernel.h - the steps of a six-step Fourier transform, each for one processor's part.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Bailey, "FFTs in external or hierarchical memory", J. Supercomputing 4 (1990): N = rows x columns points are a
 * matrix. Transpose; transform each row and multiply it by its twiddle factors; transpose; transform each row;
 * transpose. Rows are transformed by Stockham's self-sorting algorithm in radix 4 (Van Loan, "Computational Frameworks
 * for the Fast Fourier Transform", 1992, section 1.7), in private memory.
 *
 * A transposition is an exchange: each processor writes what it has for each other one into a panel of its own, already
 * transposed and starting on a page, and after a barrier each reads the panels that are for it, from front to back. So
 * a page has one writer and one reader, nobody stores into memory that another processor holds, and the transposition
 * costs no pass over memory of its own: rows are written from where they were transformed.
 *
 * Any number of processors works; more than rows are idle. */
#ifndef FFT_KERNEL_H
#define FFT_KERNEL_H

#include "../program.h"

/* So many rows are transformed before they are written: runs of 256 bytes in the panels, and the rows fit a cache. */
#define FFT_BATCH 16
/* Rows in private memory are so far apart that they do not fall into the same lines of a cache. */
#define FFT_PADDING 4

struct fft_value {
    double re, im;
};

struct fft {
    size_t processors, me, points;
    size_t rows, columns;               /* of the input: point n lies in row n / columns */
    struct fft_value *data;             /* shared: the points, before and afterwards in their order */
    struct fft_value *panels[2];        /* shared: see fft_panel */
    struct fft_value *roots;            /* private: exp(-2 pi i k / rows or columns), whichever is more, for each k */
    struct fft_value *coarse, *fine;    /* private: roots of order `points`, in steps of 2^fine_bits and of 1 */
    struct fft_value *batch, *scratch;  /* private: rows being transformed */
    size_t *write_at[2], *read_at[2];   /* private: where this processor's panels for each other begin, and theirs for
                                           it */
    unsigned fine_bits;
};

/* ----------------------------------------------------------------------------------------------------- layout -- */

static inline size_t fft_part_begin(size_t rows, size_t part, size_t processors) {
    return part_begin(rows, 4, part, processors);
}

/* Where the panel for processor `reader` begins among the panels of `writer`, in points, if `rows` rows of `columns`
 * points are exchanged. Panels of one writer follow each other, each from a page on. */
static inline size_t fft_panel(size_t rows, size_t columns, size_t writer, size_t reader, size_t processors) {
    const size_t page = PAGE_BYTES / sizeof(struct fft_value);
    size_t begin = 0;
    for (size_t w = 0; w <= writer; ++w) {
        const size_t height = fft_part_begin(rows, w + 1, processors) - fft_part_begin(rows, w, processors);
        for (size_t r = 0; r < (w < writer ? processors : reader); ++r) {
            const size_t width = fft_part_begin(columns, r + 1, processors) - fft_part_begin(columns, r, processors);
            begin += (height * width + page - 1) / page * page;
        }
    }
    return begin;
}

static inline size_t fft_row_bits(size_t points) {
    unsigned bits = 0;
    while ((size_t)1 << bits < points) ++bits;
    return bits / 2;
}

/* Shared bytes: the data, and each of the two sets of panels. */
static inline size_t fft_data_bytes(size_t points) {
    return pages_of(points * sizeof(struct fft_value));
}

static inline size_t fft_panels_bytes(size_t points, size_t processors) {
    const size_t rows = (size_t)1 << fft_row_bits(points), columns = points / rows;
    const size_t there = fft_panel(rows, columns, processors, 0, processors);
    const size_t back = fft_panel(columns, rows, processors, 0, processors);
    return pages_of((there > back ? there : back) * sizeof(struct fft_value));
}

/* ----------------------------------------------------------------------------------------------------- tables -- */

static inline struct fft_value fft_root(size_t k, size_t order) {
    const double angle = -2 * 3.14159265358979323846 * (double)k / (double)order;
    const struct fft_value root = {cos(angle), sin(angle)};
    return root;
}

static inline struct fft_value fft_product(struct fft_value a, struct fft_value b) {
    const struct fft_value product = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    return product;
}

/* What a processor keeps for itself; data and panels are filled in by the program. */
static inline struct fft fft_plan(size_t points, size_t me, size_t processors) {
    struct fft plan;
    memset(&plan, 0, sizeof plan);
    plan.processors = processors;
    plan.me = me;
    plan.points = points;
    plan.rows = (size_t)1 << fft_row_bits(points);
    plan.columns = points / plan.rows; /* as many, or twice as many */
    const size_t longest = plan.columns;
    plan.fine_bits = (unsigned)fft_row_bits(points);
    const size_t fine = (size_t)1 << plan.fine_bits, coarse = points >> plan.fine_bits;
    plan.roots = (struct fft_value *)private_memory(longest * sizeof(struct fft_value));
    plan.coarse = (struct fft_value *)private_memory(coarse * sizeof(struct fft_value));
    plan.fine = (struct fft_value *)private_memory(fine * sizeof(struct fft_value));
    plan.batch = (struct fft_value *)private_memory(FFT_BATCH * (longest + FFT_PADDING) * sizeof(struct fft_value));
    plan.scratch = (struct fft_value *)private_memory(longest * sizeof(struct fft_value));
    for (int set = 0; set < 2; ++set) {
        const size_t rows = set == 0 ? plan.rows : plan.columns;
        plan.write_at[set] = (size_t *)private_memory((processors + 1) * sizeof(size_t));
        plan.read_at[set] = (size_t *)private_memory(processors * sizeof(size_t));
        for (size_t other = 0; other < processors; ++other) {
            plan.write_at[set][other] = fft_panel(rows, points / rows, me, other, processors);
            plan.read_at[set][other] = fft_panel(rows, points / rows, other, me, processors);
        }
        plan.write_at[set][processors] = fft_panel(rows, points / rows, me + 1, 0, processors);
    }
    for (size_t k = 0; k < longest; ++k) plan.roots[k] = fft_root(k, longest);
    for (size_t k = 0; k < coarse; ++k) plan.coarse[k] = fft_root(k << plan.fine_bits, points);
    for (size_t k = 0; k < fine; ++k) plan.fine[k] = fft_root(k, points);
    return plan;
}

static inline void fft_plan_free(struct fft *plan) {
    free(plan->roots);
    free(plan->coarse);
    free(plan->fine);
    free(plan->batch);
    free(plan->scratch);
    for (int set = 0; set < 2; ++set) {
        free(plan->write_at[set]);
        free(plan->read_at[set]);
    }
}

/* ------------------------------------------------------------------------------------------- one row, private -- */

/* One pass of radix 4 over sequences of `length` values that lie `stride` apart. */
static inline void fft_pass_of_four(const struct fft_value *__restrict__ from, struct fft_value *__restrict__ to,
                                    size_t length, size_t stride, const struct fft_value *roots, size_t step) {
    const size_t quarter = length / 4;
    for (size_t p = 0; p < quarter; ++p) {
        const struct fft_value w1 = roots[p * step], w2 = roots[2 * p * step], w3 = roots[3 * p * step];
        const struct fft_value *const a = from + stride * p, *const b = a + stride * quarter;
        const struct fft_value *const c = b + stride * quarter, *const d = c + stride * quarter;
        struct fft_value *const out = to + stride * 4 * p;
        for (size_t q = 0; q < stride; ++q) {
            const struct fft_value ac = {a[q].re + c[q].re, a[q].im + c[q].im};
            const struct fft_value a_c = {a[q].re - c[q].re, a[q].im - c[q].im};
            const struct fft_value bd = {b[q].re + d[q].re, b[q].im + d[q].im};
            const struct fft_value b_d = {b[q].re - d[q].re, b[q].im - d[q].im};
            const struct fft_value plus = {a_c.re + b_d.im, a_c.im - b_d.re};
            const struct fft_value minus = {a_c.re - b_d.im, a_c.im + b_d.re};
            const struct fft_value difference = {ac.re - bd.re, ac.im - bd.im};
            out[q].re = ac.re + bd.re;
            out[q].im = ac.im + bd.im;
            out[q + stride] = fft_product(w1, plus);
            out[q + stride * 2] = fft_product(w2, difference);
            out[q + stride * 3] = fft_product(w3, minus);
        }
    }
}

/* The transform of `length` values, a power of two; both arrays are used, and the result is in `row`. */
static inline void fft_row(const struct fft *plan, struct fft_value *row, size_t length) {
    struct fft_value *from = row, *to = plan->scratch;
    const size_t step = plan->columns / length;
    size_t left = length, stride = 1;
    for (; left >= 4; left /= 4, stride *= 4) {
        fft_pass_of_four(from, to, left, stride, plan->roots, stride * step);
        struct fft_value *const swap = from;
        from = to;
        to = swap;
    }
    if (left == 2) {
        for (size_t q = 0; q < stride; ++q) {
            const struct fft_value a = from[q], b = from[q + stride];
            to[q].re = a.re + b.re;
            to[q].im = a.im + b.im;
            to[q + stride].re = a.re - b.re;
            to[q + stride].im = a.im - b.im;
        }
        from = to;
    }
    if (from != row) memcpy(row, from, length * sizeof *row);
}

/* Multiply value k of row `number` by the root of order `points` to the power number * k. */
static inline void fft_twiddle(const struct fft *plan, struct fft_value *row, size_t length, size_t number) {
    const size_t mask = ((size_t)1 << plan->fine_bits) - 1;
    for (size_t k = 1, power = number; k < length; ++k, power += number)
        row[k] = fft_product(row[k], fft_product(plan->coarse[power >> plan->fine_bits], plan->fine[power & mask]));
}

/* --------------------------------------------------------------------------------------------------- exchange -- */

/* The rows that this processor transforms, of a matrix with so many. */
static inline size_t fft_first(const struct fft *plan, size_t rows) {
    return fft_part_begin(rows, plan->me, plan->processors);
}

static inline size_t fft_end(const struct fft *plan, size_t rows) {
    return fft_part_begin(rows, plan->me + 1, plan->processors);
}

/* Write `count` of this processor's rows, from row `first` on, into its panels of a set, transposed. */
static inline void fft_scatter(const struct fft *plan, int set, const struct fft_value *batch, size_t pitch,
                               size_t first, size_t count) {
    const size_t rows = set == 0 ? plan->rows : plan->columns, columns = plan->points / rows;
    const size_t my_first = fft_first(plan, rows), height = fft_end(plan, rows) - my_first;
    for (size_t reader = 0; reader < plan->processors; ++reader) {
        struct fft_value *out = plan->panels[set] + plan->write_at[set][reader] + (first - my_first);
        const size_t end = fft_part_begin(columns, reader + 1, plan->processors);
        for (size_t c = fft_part_begin(columns, reader, plan->processors); c < end; ++c, out += height)
            for (size_t t = 0; t < count; ++t) out[t] = batch[t * pitch + c];
    }
}

/* Read one of this processor's rows of the matrix that a set of panels holds: one run from each writer. */
static inline void fft_gather(const struct fft *plan, int set, size_t row, struct fft_value *out) {
    const size_t rows = set == 0 ? plan->rows : plan->columns, my_row = row - fft_first(plan, plan->points / rows);
    for (size_t writer = 0; writer < plan->processors; ++writer) {
        const size_t from = fft_part_begin(rows, writer, plan->processors);
        const size_t height = fft_part_begin(rows, writer + 1, plan->processors) - from;
        memcpy(out + from, plan->panels[set] + plan->read_at[set][writer] + my_row * height, height * sizeof *out);
    }
}

/* ---------------------------------------------------------------- the steps; a barrier between each and the next -- */

/* Step 1: the input goes into panels 0. */
static inline void fft_step_in(const struct fft *plan) {
    const size_t end = fft_end(plan, plan->rows);
    for (size_t row = fft_first(plan, plan->rows); row < end; row += FFT_BATCH)
        fft_scatter(plan, 0, plan->data + row * plan->columns, plan->columns, row,
                    end - row < FFT_BATCH ? end - row : FFT_BATCH);
}

/* Steps 2 to 4 (from = 0): the rows of the transposed matrix in panels 0 are transformed, get their twiddle factors,
 * and go into panels 1. Step 5 (from = 1): the rows in panels 1 are transformed and go into panels 0. */
static inline void fft_step_rows(const struct fft *plan, int from) {
    const size_t length = from == 0 ? plan->rows : plan->columns, rows = plan->points / length;
    const size_t end = fft_end(plan, rows), pitch = length + FFT_PADDING;
    for (size_t first = fft_first(plan, rows); first < end; first += FFT_BATCH) {
        const size_t count = end - first < FFT_BATCH ? end - first : FFT_BATCH;
        for (size_t t = 0; t < count; ++t) {
            struct fft_value *const row = plan->batch + t * pitch;
            fft_gather(plan, from, first + t, row);
            fft_row(plan, row, length);
            if (from == 0) fft_twiddle(plan, row, length, first + t);
        }
        fft_scatter(plan, 1 - from, plan->batch, pitch, first, count);
    }
}

/* Step 6: the result comes out of panels 0. It has as many rows as the input has columns. */
static inline void fft_step_out(const struct fft *plan) {
    const size_t end = fft_end(plan, plan->columns);
    for (size_t row = fft_first(plan, plan->columns); row < end; ++row)
        fft_gather(plan, 0, row, plan->data + row * plan->rows);
}

/* --------------------------------------------------------------------------------------- input and verification -- */

static inline struct fft_value fft_input(size_t n) {
    const struct fft_value value = {2 * fraction_of(2 * n) - 1, 2 * fraction_of(2 * n + 1) - 1};
    return value;
}

/* The points that a processor sets, conjugates and compares: whole pages. */
static inline size_t fft_points_begin(const struct fft *plan, size_t processor) {
    return part_begin(plan->points, PAGE_BYTES / sizeof(struct fft_value), processor, plan->processors);
}

/* Sets this processor's part, and touches its panels first, so that they are where they are written. */
static inline void fft_fill(const struct fft *plan) {
    const size_t end = fft_points_begin(plan, plan->me + 1);
    for (size_t n = fft_points_begin(plan, plan->me); n < end; ++n) plan->data[n] = fft_input(n);
    for (int set = 0; set < 2; ++set) {
        const size_t from = plan->write_at[set][0], to = plan->write_at[set][plan->processors];
        memset(plan->panels[set] + from, 0, (to - from) * sizeof(struct fft_value));
    }
}

/* Conjugates this processor's part and divides it: around a transform, that makes it the inverse one. */
static inline void fft_conjugate(const struct fft *plan, double divisor) {
    const size_t end = fft_points_begin(plan, plan->me + 1);
    for (size_t n = fft_points_begin(plan, plan->me); n < end; ++n) {
        plan->data[n].re /= divisor;
        plan->data[n].im /= -divisor;
    }
}

/* The largest difference between this processor's part and the input. */
static inline double fft_distance_from_input(const struct fft *plan) {
    const size_t end = fft_points_begin(plan, plan->me + 1);
    double most = 0;
    for (size_t n = fft_points_begin(plan, plan->me); n < end; ++n) {
        const struct fft_value input = fft_input(n);
        const double distance = fabs(plan->data[n].re - input.re) + fabs(plan->data[n].im - input.im);
        if (!(distance <= most)) most = distance;
    }
    return most;
}

/* One point of the transform by its definition. Shares no table with the steps above. */
static inline struct fft_value fft_direct(size_t points, size_t k) {
    struct fft_value sum = {0, 0}, root = {1, 0};
    const struct fft_value step = fft_root(k, points);
    for (size_t n = 0; n < points; ++n) {
        if (n % 64 == 0) root = fft_root(n * k % points, points);
        const struct fft_value term = fft_product(fft_input(n), root);
        sum.re += term.re;
        sum.im += term.im;
        root = fft_product(root, step);
    }
    return sum;
}

/* Whether some points of the result are what the definition says. The sums are about sqrt(N) large; their rounding
 * errors stay far below 1e-12 of that for each of 64 steps of the root. */
static inline int fft_samples_are_right(const struct fft *plan, size_t samples) {
    for (size_t sample = 0; sample < samples; ++sample) {
        const size_t k = bits_of(sample) % plan->points;
        const struct fft_value sum = fft_direct(plan->points, k);
        const double distance = fabs(sum.re - plan->data[k].re) + fabs(sum.im - plan->data[k].im);
        if (!(distance <= 64e-12 * sqrt((double)plan->points))) return 0;
    }
    return 1;
}

#endif
