/* stdio.h in modes full and heap.
 *
 * Promises: streams are the library's own objects; only what programs pass and get is brought over. It must never write
 * more of a target than the library's function would have written.
 */
#include "format.h"

#include <stdio.h>
#include <sys/types.h>

/* ---- formatted output ---- */

static int to_stream(FILE *stream, const char *format, va_list arguments) {
    struct text text = formatted(format, arguments);
    size_t written = fwrite(text.bytes, 1, text.length, stream);
    int result = written == text.length ? (int)text.length : -1;
    free(text.bytes);
    return result;
}

static int to_memory(char *to, size_t most, const char *format, va_list arguments) {
    struct text text = formatted(format, arguments);
    if (most) {
        size_t bytes = text.length < most ? text.length : most - 1;
        put_bytes(to, text.bytes, bytes);
        put_bytes(to + bytes, "", 1);
    }
    free(text.bytes);
    return (int)text.length;
}

static int to_heap(char **into, const char *format, va_list arguments) {
    struct text text = formatted(format, arguments);
    char *copy = heap_copy(text.bytes, text.length + 1);
    put_bytes(into, &copy, sizeof copy);
    free(text.bytes);
    return copy ? (int)text.length : -1;
}

static int to_descriptor(int descriptor, const char *format, va_list arguments) {
    struct text text = formatted(format, arguments);
    int result = dprintf(descriptor, "%s", text.bytes);
    free(text.bytes);
    return result;
}

/* A variadic function and its sister that takes a va_list. */
#define FORMATS(name, v_name, parameters, v_parameters, last, call)                                                    \
    WRAP(int, name, parameters) {                                                                                      \
        va_list list;                                                                                                  \
        va_start(list, last);                                                                                          \
        int result = call;                                                                                             \
        va_end(list);                                                                                                  \
        return result;                                                                                                 \
    }                                                                                                                  \
    WRAP(int, v_name, v_parameters) {                                                                                  \
        va_list list;                                                                                                  \
        take_arguments(list, program_list);                                                                            \
        return call;                                                                                                   \
    }
FORMATS(printf, vprintf, (const char *format, ...), (const char *format, va_list program_list), format,
        to_stream(stdout, format, list))
FORMATS(fprintf, vfprintf, (FILE * stream, const char *format, ...),
        (FILE * stream, const char *format, va_list program_list), format, to_stream(stream, format, list))
FORMATS(dprintf, vdprintf, (int descriptor, const char *format, ...),
        (int descriptor, const char *format, va_list program_list), format, to_descriptor(descriptor, format, list))
FORMATS(sprintf, vsprintf, (char *to, const char *format, ...), (char *to, const char *format, va_list program_list),
        format, to_memory(to, SIZE_MAX, format, list))
FORMATS(snprintf, vsnprintf, (char *to, size_t most, const char *format, ...),
        (char *to, size_t most, const char *format, va_list program_list), format, to_memory(to, most, format, list))
FORMATS(asprintf, vasprintf, (char **into, const char *format, ...),
        (char **into, const char *format, va_list program_list), format, to_heap(into, format, list))

/* ---- formatted input ---- */

#define TWENTY_FOUR                                                                                                    \
    into[0], into[1], into[2], into[3], into[4], into[5], into[6], into[7], into[8], into[9], into[10], into[11],      \
        into[12], into[13], into[14], into[15], into[16], into[17], into[18], into[19], into[20], into[21], into[22],  \
        into[23]
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static int scan_stream(void *stream, const char *format, void **into) { return fscanf(stream, format, TWENTY_FOUR); }
static int scan_text(void *text, const char *format, void **into) { return sscanf(text, format, TWENTY_FOUR); }

static int from_text(const char *text, const char *format, va_list arguments) {
    struct piece piece;
    int result = scanned(scan_text, (void *)take_string(&piece, text), format, arguments);
    drop(&piece);
    return result;
}

#define SCANS(name)                                                                                                    \
    FORMATS(name##scanf, name##vscanf, (const char *format, ...), (const char *format, va_list program_list), format,  \
            scanned(scan_stream, stdin, format, list))                                                                 \
    FORMATS(name##fscanf, name##vfscanf, (FILE * stream, const char *format, ...),                                     \
            (FILE * stream, const char *format, va_list program_list), format,                                         \
            scanned(scan_stream, stream, format, list))                                                                \
    FORMATS(name##sscanf, name##vsscanf, (const char *text, const char *format, ...),                                  \
            (const char *text, const char *format, va_list program_list), format, from_text(text, format, list))
SCANS(__isoc99_)
SCANS(__isoc23_)
#undef scanf
#undef fscanf
#undef sscanf
#undef vscanf
#undef vfscanf
#undef vsscanf
FORMATS(scanf, vscanf, (const char *format, ...), (const char *format, va_list program_list), format,
        scanned(scan_stream, stdin, format, list))
FORMATS(fscanf, vfscanf, (FILE * stream, const char *format, ...),
        (FILE * stream, const char *format, va_list program_list), format, scanned(scan_stream, stream, format, list))
FORMATS(sscanf, vsscanf, (const char *text, const char *format, ...),
        (const char *text, const char *format, va_list program_list), format, from_text(text, format, list))

/* ---- characters, lines, blocks ---- */

WRAP(int, puts, (const char *text)) {
    struct piece piece;
    int result = puts(take_string(&piece, text));
    drop(&piece);
    return result;
}
WRAP(int, fputs, (const char *text, FILE *stream)) {
    struct piece piece;
    int result = fputs(take_string(&piece, text), stream);
    drop(&piece);
    return result;
}
WRAP(char *, fgets, (char *to, int most, FILE *stream)) {
    struct piece piece;
    char *native = room(&piece, to, most > 0 ? (size_t)most : 0);
    char *result = fgets(native, most, stream);
    if (result)
        give(&piece, strlen(native) + 1);
    drop(&piece);
    return result ? to : NULL;
}
WRAP(size_t, fread, (void *to, size_t bytes, size_t count, FILE *stream)) {
    size_t all;
    if (__builtin_mul_overflow(bytes, count, &all) || all == 0)
        return 0;
    struct piece piece;
    size_t done = fread(room(&piece, to, all), 1, all, stream);
    give(&piece, done);
    drop(&piece);
    return done / bytes;
}
WRAP(size_t, fwrite, (const void *from, size_t bytes, size_t count, FILE *stream)) {
    size_t all;
    if (__builtin_mul_overflow(bytes, count, &all) || all == 0)
        return 0;
    struct piece piece;
    size_t done = fwrite(take(&piece, from, all), bytes, count, stream);
    drop(&piece);
    return done;
}
WRAP(ssize_t, getdelim, (char **line, size_t *bytes, int end, FILE *stream)) {
    char *native = NULL, *old;
    size_t native_bytes = 0, old_bytes;
    ssize_t length = getdelim(&native, &native_bytes, end, stream);
    get_bytes(line, &old, sizeof old);
    get_bytes(bytes, &old_bytes, sizeof old_bytes);
    if (length >= 0) {
        size_t needed = (size_t)length + 1;
        if (!old || old_bytes < needed) {
            old_bytes = needed < 120 ? 120 : needed * 2;
            old = __trellis_realloc(old, old_bytes);
            put_bytes(line, &old, sizeof old);
            put_bytes(bytes, &old_bytes, sizeof old_bytes);
        }
        if (old)
            put_bytes(old, native, needed);
        else
            length = -1;
    }
    free(native);
    return length;
}
WRAP(ssize_t, __getdelim, (char **line, size_t *bytes, int end, FILE *stream)) {
    return wrapped_getdelim(line, bytes, end, stream);
}
WRAP(ssize_t, getline, (char **line, size_t *bytes, FILE *stream)) {
    return wrapped_getdelim(line, bytes, '\n', stream);
}
WRAP(void, perror, (const char *text)) {
    struct piece piece;
    perror(take_string(&piece, text));
    drop(&piece);
}

/* ---- opening ---- */

WRAP(FILE *, fopen, (const char *path, const char *how)) {
    struct piece one, other;
    const char *native = take_string(&one, path);
    FILE *stream = fopen(native, take_string(&other, how));
    drop(&one);
    drop(&other);
    return stream;
}
WRAP(FILE *, fopen64, (const char *path, const char *how)) { return wrapped_fopen(path, how); }
WRAP(FILE *, freopen, (const char *path, const char *how, FILE *stream)) {
    struct piece one, other;
    const char *native = take_string(&one, path);
    stream = freopen(native, take_string(&other, how), stream);
    drop(&one);
    drop(&other);
    return stream;
}
WRAP(FILE *, freopen64, (const char *path, const char *how, FILE *stream)) {
    return wrapped_freopen(path, how, stream);
}
WRAP(FILE *, fdopen, (int descriptor, const char *how)) {
    struct piece piece;
    FILE *stream = fdopen(descriptor, take_string(&piece, how));
    drop(&piece);
    return stream;
}
WRAP(FILE *, popen, (const char *command, const char *how)) {
    struct piece one, other;
    const char *native = take_string(&one, command);
    FILE *stream = popen(native, take_string(&other, how));
    drop(&one);
    drop(&other);
    return stream;
}
/* The stream keeps the buffer, so it must not be the program's: the library's own has the same effect. */
WRAP(int, setvbuf, (FILE * stream, char *buffer, int how, size_t bytes)) {
    return setvbuf(stream, is_native(buffer) ? buffer : NULL, how, bytes);
}
WRAP(void, setbuf, (FILE * stream, char *buffer)) {
    setvbuf(stream, NULL, buffer ? _IOFBF : _IONBF, BUFSIZ);
}
