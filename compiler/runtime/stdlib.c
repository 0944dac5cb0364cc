/* stdlib.h in modes full and heap: numbers from text, sorting, searching, the environment.
 *
 * Promises: comparators are translated functions; they get the addresses of native copies while an array is sorted,
 * and the array's own while it is searched. It must never keep a program's string in the environment.
 */
#include "wrap.h"

#include <ctype.h>
#include <stdio.h>
#include <wchar.h>

#define NUMBER(result, name, parameters, call)                                                                       \
    WRAP(result, name, parameters) {                                                                                 \
        struct piece piece;                                                                                          \
        char *stop;                                                                                                  \
        const char *native = take_string(&piece, text);                                                              \
        result number = call;                                                                                        \
        if (end) {                                                                                                   \
            const char *at = text + (stop - native);                                                                 \
            put_bytes(end, &at, sizeof at);                                                                          \
        }                                                                                                            \
        drop(&piece);                                                                                                \
        return number;                                                                                               \
    }
#define INTEGER(result, name)                                                                                        \
    NUMBER(result, name, (const char *text, char **end, int base), name(native, &stop, base))
#define FLOATING(result, name) NUMBER(result, name, (const char *text, char **end), name(native, &stop))
INTEGER(long, strtol)
INTEGER(long long, strtoll)
INTEGER(unsigned long, strtoul)
INTEGER(unsigned long long, strtoull)
FLOATING(double, strtod)
FLOATING(float, strtof)
FLOATING(long double, strtold)
/* The names that newer headers give them. */
#define AS_INTEGER(result, name, plain)                                                                              \
    NUMBER(result, name, (const char *text, char **end, int base), plain(native, &stop, base))
AS_INTEGER(long, __isoc23_strtol, strtol)
AS_INTEGER(long long, __isoc23_strtoll, strtoll)
AS_INTEGER(unsigned long, __isoc23_strtoul, strtoul)
AS_INTEGER(unsigned long long, __isoc23_strtoull, strtoull)
AS_INTEGER(intmax_t, strtoimax, strtoll)
AS_INTEGER(uintmax_t, strtoumax, strtoull)

#define SIMPLE(result, name, plain)                                                                                  \
    WRAP(result, name, (const char *text)) {                                                                         \
        struct piece piece;                                                                                          \
        result number = plain(take_string(&piece, text));                                                            \
        drop(&piece);                                                                                                \
        return number;                                                                                               \
    }
SIMPLE(int, atoi, atoi)
SIMPLE(long, atol, atol)
SIMPLE(long long, atoll, atoll)
SIMPLE(double, atof, atof)
SIMPLE(char *, getenv, getenv)
SIMPLE(char *, secure_getenv, secure_getenv)
SIMPLE(int, unsetenv, unsetenv)

WRAP(int, system, (const char *command)) {
    struct piece piece;
    int status = system(take_string(&piece, command));
    drop(&piece);
    return status;
}
WRAP(int, setenv, (const char *name, const char *value, int overwrite)) {
    struct piece one, other;
    const char *native = take_string(&one, name);
    int result = setenv(native, take_string(&other, value), overwrite);
    drop(&one);
    drop(&other);
    return result;
}
WRAP(int, rand_r, (unsigned *seed)) {
    unsigned native;
    get_bytes(seed, &native, sizeof native);
    int number = rand_r(&native);
    put_bytes(seed, &native, sizeof native);
    return number;
}

/* A comparator is translated code that gets addresses of the native copy, where deeper frames may have had variables.
 */
static void *for_callbacks(struct piece *piece, void *array, size_t bytes) {
    void *native = take_room(piece, array, bytes);
#if TRELLIS_MODE == 1
    if (native)
        __trellis_import(native, bytes);
#endif
    return native;
}

WRAP(void, qsort, (void *array, size_t count, size_t bytes, int (*compare)(const void *, const void *))) {
    struct piece piece;
    qsort(for_callbacks(&piece, array, count * bytes), count, bytes, compare);
    give(&piece, count * bytes);
    drop(&piece);
}
WRAP(void, qsort_r,
     (void *array, size_t count, size_t bytes, int (*compare)(const void *, const void *, void *), void *with)) {
    struct piece piece;
    qsort_r(for_callbacks(&piece, array, count * bytes), count, bytes, compare, with);
    give(&piece, count * bytes);
    drop(&piece);
}
WRAP(void *, bsearch,
     (const void *key, const void *array, size_t count, size_t bytes, int (*compare)(const void *, const void *))) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const char *at = (const char *)array + middle * bytes;
        int order = compare(key, at);
        if (order == 0)
            return (void *)at;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* ---- wide characters: what a program needs to turn text into them and back ---- */

static size_t wide_length_of(const wchar_t *text) {
    size_t length = 0;
    for (wchar_t one;; length++) {
        get_bytes(text + length, &one, sizeof one);
        if (!one)
            return length;
    }
}
WRAP(size_t, wcslen, (const wchar_t *text)) { return wide_length_of(text); }
WRAP(wchar_t *, wcscpy, (wchar_t * to, const wchar_t *from)) {
    __trellis_copy(to, from, (wide_length_of(from) + 1) * sizeof *from);
    return to;
}
WRAP(wchar_t *, wcscat, (wchar_t * to, const wchar_t *from)) {
    __trellis_copy(to + wide_length_of(to), from, (wide_length_of(from) + 1) * sizeof *from);
    return to;
}
WRAP(int, wcscmp, (const wchar_t *left, const wchar_t *right)) {
    struct piece one, other;
    const wchar_t *first = take(&one, left, (wide_length_of(left) + 1) * sizeof *left);
    int result = wcscmp(first, take(&other, right, (wide_length_of(right) + 1) * sizeof *right));
    drop(&one);
    drop(&other);
    return result;
}
WRAP(wchar_t *, wcschr, (const wchar_t *text, wchar_t character)) {
    for (wchar_t one;; text++) {
        get_bytes(text, &one, sizeof one);
        if (one == character)
            return (wchar_t *)text;
        if (!one)
            return NULL;
    }
}
WRAP(wchar_t *, wmemcpy, (wchar_t * to, const wchar_t *from, size_t count)) {
    __trellis_copy(to, from, count * sizeof *to);
    return to;
}
WRAP(wchar_t *, wmemmove, (wchar_t * to, const wchar_t *from, size_t count)) {
    __trellis_move(to, from, count * sizeof *to);
    return to;
}
WRAP(wchar_t *, wmemset, (wchar_t * to, wchar_t character, size_t count)) {
    for (size_t at = 0; at < count; at++)
        put_bytes(to + at, &character, sizeof character);
    return to;
}
WRAP(size_t, mbstowcs, (wchar_t * to, const char *from, size_t most)) {
    struct piece in;
    const char *native = take_string(&in, from);
    size_t count = mbstowcs(NULL, native, 0);
    if (to && count != (size_t)-1) {
        struct piece out;
        size_t written = count < most ? count + 1 : most;
        count = mbstowcs(room(&out, to, written * sizeof *to), native, written);
        give(&out, written * sizeof *to);
        drop(&out);
    }
    drop(&in);
    return count;
}
WRAP(size_t, wcstombs, (char *to, const wchar_t *from, size_t most)) {
    struct piece in;
    const wchar_t *native = take(&in, from, (wide_length_of(from) + 1) * sizeof *from);
    size_t count = wcstombs(NULL, native, 0);
    if (to && count != (size_t)-1) {
        struct piece out;
        size_t written = count < most ? count + 1 : most;
        count = wcstombs(room(&out, to, written), native, written);
        give(&out, count < written ? count + 1 : written);
        drop(&out);
    }
    drop(&in);
    return count;
}
