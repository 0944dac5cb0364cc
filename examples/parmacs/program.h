/* program.h - what the programs of this folder have in common: options, page-sized parts, and the line that they print.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Plain C that is also C++; included by the PARMACS programs and by their C++ versions. Knows nothing of how the
 * program is run: no lock, no barrier, no shared memory. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The unit in which the programs lay out what they share. Where pages are larger the layout costs time, not results. */
#define PAGE_BYTES 4096

#define PROCESSORS_MAX 1024

/* ---------------------------------------------------------------------------------------------------- options -- */

/* One option: `-letter value` with least <= value <= most, or, where least and most are equal, a switch. */
struct option_number {
    char letter;
    const char *meaning;
    long *value;
    long least, most;
};

static inline void options_explain(FILE *to, const char *program, const struct option_number *options, size_t count) {
    fprintf(to, "usage: %s [options]\n", program);
    for (size_t i = 0; i < count; ++i) {
        if (options[i].least == options[i].most)
            fprintf(to, "  -%c           %s\n", options[i].letter, options[i].meaning);
        else fprintf(to, "  -%c number    %s (%ld)\n", options[i].letter, options[i].meaning, *options[i].value);
    }
}

/* Reads the options into their values; what is wrong ends the program with one sentence and status 2. */
static inline void options_read(int count, char **words, const char *program, const struct option_number *options,
                                size_t known) {
    for (int at = 1; at < count; ++at) {
        const char *const word = words[at];
        if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0) {
            options_explain(stdout, program, options, known);
            exit(0);
        }
        const struct option_number *option = NULL;
        for (size_t i = 0; i < known; ++i)
            if (word[0] == '-' && word[1] == options[i].letter) option = &options[i];
        if (option == NULL || (option->least == option->most && word[2] != '\0')) {
            fprintf(stderr, "%s: %s is not an option of this program; -h lists them\n", program, word);
            exit(2);
        }
        if (option->least == option->most) {
            *option->value = option->least;
            continue;
        }
        const char *const text = word[2] != '\0' ? word + 2 : at + 1 < count ? words[++at] : "";
        char *end = NULL;
        const long number = strtol(text, &end, 10);
        if (end == text || *end != '\0' || number < option->least || number > option->most) {
            fprintf(stderr, "%s: -%c is \"%s\" and must be a number from %ld to %ld\n", program, option->letter, text,
                    option->least, option->most);
            exit(2);
        }
        *option->value = number;
    }
}

/* Ends the program because its options do not fit together. */
#if defined(__GNUC__)
__attribute__((noreturn))
#endif
static inline void options_refuse(const char *program, const char *sentence) {
    fprintf(stderr, "%s: %s\n", program, sentence);
    exit(2);
}

/* ------------------------------------------------------------------------------------------------------ parts -- */

/* Where part `part` of `count` things begins, if every part but the last is a multiple of `unit` things. */
static inline size_t part_begin(size_t count, size_t unit, size_t part, size_t parts) {
    const size_t units = (count + unit - 1) / unit;
    const size_t begin = units * part / parts * unit;
    return begin < count ? begin : count;
}

/* The part in which thing `at` lies. */
static inline size_t part_of(size_t count, size_t unit, size_t at, size_t parts) {
    size_t part = at * parts / count;
    while (part_begin(count, unit, part, parts) > at) --part;
    while (part_begin(count, unit, part + 1, parts) <= at) ++part;
    return part;
}

static inline size_t pages_of(size_t bytes) {
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

/* From one row of a matrix to the next, in elements: whole pages, or such that whole rows fill a page. */
static inline size_t row_pitch(size_t columns) {
    const size_t page = PAGE_BYTES / sizeof(double);
    if (columns >= page) return (columns + page - 1) / page * page;
    size_t pitch = 1;
    while (pitch < columns) pitch *= 2;
    return pitch;
}

/* How many rows with such a pitch fill whole pages: no part of a matrix is smaller. */
static inline size_t rows_per_page(size_t pitch) {
    const size_t page = PAGE_BYTES / sizeof(double);
    return pitch >= page ? 1 : page / pitch;
}

/* The first page border at or after an address; allocate one page more than is needed. */
static inline void *page_aligned(void *memory) {
    return (void *)(((uintptr_t)memory + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
}

/* Memory of this processor alone; there is no way on without it. */
static inline void *private_memory(size_t bytes) {
    void *const memory = malloc(bytes > 0 ? bytes : 1);
    if (memory == NULL) {
        fprintf(stderr, "no memory for %zu bytes; choose a smaller size\n", bytes);
        exit(2);
    }
    return memory;
}

/* ---------------------------------------------------------------------------------------------- made-up input -- */

/* The 64 bits that belong to a number: as good as random, the same on every processor and in every run. */
static inline uint64_t bits_of(uint64_t number) {
    number += 0x9E3779B97F4A7C15u;
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9u;
    number = (number ^ number >> 27) * 0x94D049BB133111EBu;
    return number ^ number >> 31;
}

/* The number from [0, 1) that belongs to a number. */
static inline double fraction_of(uint64_t number) {
    return (double)(bits_of(number) >> 11) * 0x1p-53;
}

/* ----------------------------------------------------------------------------------------------------- result -- */

/* The only line that a machine has to read. Returns the exit status: 0 for a verified result. */
static inline int result_print(const char *program, const char *interface, long processors, long size, double seconds,
                               int verified) {
    printf("trellis-result program=%s interface=%s processors=%ld size=%ld seconds=%.6f verified=%s\n", program,
           interface, processors, size, seconds, verified ? "yes" : "no");
    fflush(stdout);
    return verified ? 0 : 1;
}

#endif
