/* radix_kernel.h - the steps of a radix sort of integers, each for one processor's part.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Blelloch et al., "A comparison of sorting algorithms for the Connection Machine CM-2", SPAA 1991: one pass for each
 * digit, the lowest first. A pass here, for memory in pages:
 *   permute  each processor sorts its part of the keys by the digit, into a buffer of its own, and publishes how many
 *            keys it has of each digit
 *   barrier
 *   collect  from all counts each processor calculates which keys belong into its part, and copies them there: they
 *            are one piece of every buffer, read from front to back
 *   barrier
 * The usual way, storing each key at its place in the whole, has every processor write into nearly every page; here a
 * page has one writer, and a key crosses from one processor to another at most once in a pass. All processors calculate
 * the sums of the counts, instead of a tree of them: with so few processors that costs less than one step of a tree.
 * The next digit is counted while keys are copied. One processor copies nothing: its two buffers change places.
 *
 * Any number of processors works; more than pages of keys are idle. */
#ifndef RADIX_KERNEL_H
#define RADIX_KERNEL_H

#include "../program.h"

typedef uint32_t radix_key;

struct radix {
    size_t processors, me, count; /* of keys */
    size_t begin, end;            /* this processor's part */
    unsigned bits;                /* of a digit */
    unsigned passes;
    radix_key *keys, *buffer;     /* shared */
    uint32_t *counts;             /* shared: radix_counts_pitch values for each processor */
    uint32_t *own;                /* private: keys of this processor with each digit */
    uint32_t *next;               /* private: where the next key with each digit goes */
};

/* ----------------------------------------------------------------------------------------------------- layout -- */

static inline size_t radix_keys_bytes(size_t count) {
    return pages_of(count * sizeof(radix_key));
}

/* The counts of a processor fill pages of their own. */
static inline size_t radix_counts_pitch(unsigned bits) {
    return pages_of(((size_t)1 << bits) * sizeof(uint32_t)) / sizeof(uint32_t);
}

static inline size_t radix_begin(size_t count, size_t processor, size_t processors) {
    return part_begin(count, PAGE_BYTES / sizeof(radix_key), processor, processors);
}

static inline struct radix radix_plan(size_t count, unsigned bits, unsigned key_bits, size_t me, size_t processors) {
    struct radix plan;
    memset(&plan, 0, sizeof plan);
    plan.processors = processors;
    plan.me = me;
    plan.count = count;
    plan.begin = radix_begin(count, me, processors);
    plan.end = radix_begin(count, me + 1, processors);
    plan.bits = bits;
    plan.passes = (key_bits + bits - 1) / bits;
    plan.own = (uint32_t *)private_memory(sizeof(uint32_t) << bits);
    plan.next = (uint32_t *)private_memory(sizeof(uint32_t) << bits);
    return plan;
}

static inline void radix_plan_free(struct radix *plan) {
    free(plan->own);
    free(plan->next);
}

/* ------------------------------------------------------------------------------------------------------ steps -- */

static inline size_t radix_digit(const struct radix *plan, radix_key key, unsigned pass) {
    return (size_t)((uint64_t)key >> (pass * plan->bits)) & (((size_t)1 << plan->bits) - 1);
}

/* Before the first pass: how many keys there are of each value of the lowest digit. */
static inline void radix_step_count(const struct radix *plan) {
    memset(plan->own, 0, sizeof(uint32_t) << plan->bits);
    for (size_t i = plan->begin; i < plan->end; ++i) ++plan->own[radix_digit(plan, plan->keys[i], 0)];
}

/* This processor's keys go into its part of the buffer, in the order of the digit. With one processor that is their
 * place in the whole, and the next digit is counted by the way. */
static inline void radix_step_permute(const struct radix *plan, unsigned pass) {
    const size_t digits = (size_t)1 << plan->bits;
    uint32_t *const published = plan->counts + plan->me * radix_counts_pitch(plan->bits);
    const radix_key *const keys = plan->keys;
    radix_key *const buffer = plan->buffer;
    uint32_t *const next = plan->next, *const own = plan->own;
    uint32_t at = (uint32_t)plan->begin;
    for (size_t digit = 0; digit < digits; ++digit) {
        next[digit] = at;
        at += own[digit];
    }
    if (plan->processors > 1) memcpy(published, own, digits * sizeof(uint32_t));
    if (plan->processors > 1 || pass + 1 == plan->passes) {
        for (size_t i = plan->begin; i < plan->end; ++i) buffer[next[radix_digit(plan, keys[i], pass)]++] = keys[i];
        return;
    }
    memset(own, 0, digits * sizeof(uint32_t));
    for (size_t i = plan->begin; i < plan->end; ++i) {
        buffer[next[radix_digit(plan, keys[i], pass)]++] = keys[i];
        ++own[radix_digit(plan, keys[i], pass + 1)];
    }
}

/* Copies keys to their place and counts the digit of the next pass, if there is one. */
static inline void radix_take(const struct radix *plan, const radix_key *from, radix_key *to, size_t count,
                              unsigned pass) {
    uint32_t *const own = plan->own;
    if (pass == plan->passes) {
        memcpy(to, from, count * sizeof *to);
        return;
    }
    for (size_t i = 0; i < count; ++i) {
        to[i] = from[i];
        ++own[radix_digit(plan, from[i], pass)];
    }
}

/* The keys that belong into this processor's part: for each digit the pieces of all processors, one after the other. */
static inline void radix_step_collect(struct radix *plan, unsigned pass) {
    if (plan->processors == 1) {
        radix_key *const sorted = plan->buffer;
        plan->buffer = plan->keys;
        plan->keys = sorted;
        return;
    }
    const size_t digits = (size_t)1 << plan->bits, pitch = radix_counts_pitch(plan->bits);
    size_t at = 0; /* in the whole */
    size_t *const from = (size_t *)private_memory(plan->processors * sizeof(size_t));
    for (size_t other = 0; other < plan->processors; ++other)
        from[other] = radix_begin(plan->count, other, plan->processors);
    memset(plan->own, 0, digits * sizeof(uint32_t));
    for (size_t digit = 0; digit < digits && at < plan->end; ++digit)
        for (size_t other = 0; other < plan->processors; ++other) {
            const size_t count = plan->counts[other * pitch + digit];
            const size_t first = at < plan->begin ? plan->begin : at;
            const size_t last = at + count < plan->end ? at + count : plan->end;
            if (first < last)
                radix_take(plan, plan->buffer + from[other] + (first - at), plan->keys + first, last - first, pass + 1);
            from[other] += count;
            at += count;
        }
    free(from);
}

/* --------------------------------------------------------------------------------------- input and verification -- */

static inline radix_key radix_input(size_t number, uint64_t limit) {
    return (radix_key)(bits_of(number) % limit);
}

/* Sets this processor's part, touches its buffer and its counts, so that they are where they are written, and returns
 * the sum that radix_sum must return for the sorted keys of all. */
static inline uint64_t radix_fill(const struct radix *plan, uint64_t limit) {
    uint64_t sum = 0;
    for (size_t i = plan->begin; i < plan->end; ++i) {
        plan->keys[i] = radix_input(i, limit);
        sum += bits_of(~(uint64_t)plan->keys[i]);
    }
    memset(plan->buffer + plan->begin, 0, (plan->end - plan->begin) * sizeof(radix_key));
    const size_t pitch = radix_counts_pitch(plan->bits);
    memset(plan->counts + plan->me * pitch, 0, pitch * sizeof(uint32_t));
    return sum;
}

/* A sum over the keys that does not depend on their order, but, except for one chance in 2^64, on everything else. */
static inline uint64_t radix_sum(const struct radix *plan) {
    uint64_t sum = 0;
    for (size_t i = plan->begin; i < plan->end; ++i) sum += bits_of(~(uint64_t)plan->keys[i]);
    return sum;
}

/* Whether this processor's part is in order, and behind the part before it. */
static inline int radix_is_sorted(const struct radix *plan) {
    for (size_t i = plan->begin > 0 ? plan->begin : 1; i < plan->end; ++i)
        if (plan->keys[i - 1] > plan->keys[i]) return 0;
    return 1;
}

#endif
