/* Formatted output and input whose arguments point into the program's memory.
 *
 * Promises: every conversion of the C standard and glibc's `%m`, with the same text as printf makes; strings are read
 * up to their precision only. It must never guess about a format it does not know (numbered arguments, `%n$`): the
 * process ends with a sentence.
 */
#ifndef TRELLIS_RUNTIME_FORMAT_H
#define TRELLIS_RUNTIME_FORMAT_H

#include "wrap.h"

struct text {
    char *bytes; /* native, from malloc */
    size_t length, room;
};

/* The text of a format; `format` is the program's, `arguments` is native (its strings are the program's). */
TRELLIS_HIDDEN struct text formatted(const char *format, va_list arguments);

/* A va_list of the program: in mode full its words may be in the store. */
TRELLIS_HIDDEN void take_arguments(va_list native, va_list program);

/* Reads by `read(source, format, pointers)`, a function around scanf that takes up to `conversions_max` pointers. */
enum { conversions_max = 24 };
TRELLIS_HIDDEN int scanned(int (*read)(void *source, const char *format, void **into), void *source,
                           const char *format, va_list arguments);

#endif
