/* string.h, strings.h and the mem functions in modes full and heap.
 *
 * Promises: the result that the library's function has; positions point into the program's memory. It must never read
 * behind the end of a string except within its 256-byte block.
 */
#include "wrap.h"

#include <strings.h>

WRAP(void *, memcpy, (void *to, const void *from, size_t bytes)) {
    __trellis_copy(to, from, bytes);
    return to;
}
WRAP(void *, mempcpy, (void *to, const void *from, size_t bytes)) {
    __trellis_copy(to, from, bytes);
    return (char *)to + bytes;
}
WRAP(void *, memmove, (void *to, const void *from, size_t bytes)) {
    __trellis_move(to, from, bytes);
    return to;
}
WRAP(void, bcopy, (const void *from, void *to, size_t bytes)) { __trellis_move(to, from, bytes); }
WRAP(void *, memset, (void *to, int byte, size_t bytes)) {
    __trellis_set(to, byte, bytes);
    return to;
}
WRAP(void, bzero, (void *to, size_t bytes)) { __trellis_set(to, 0, bytes); }
WRAP(void, explicit_bzero, (void *to, size_t bytes)) { __trellis_set(to, 0, bytes); }

WRAP(size_t, strlen, (const char *text)) { return length_of(text, SIZE_MAX); }
WRAP(size_t, strnlen, (const char *text, size_t most)) { return length_of(text, most); }

WRAP(char *, stpcpy, (char *to, const char *from)) {
    size_t length = length_of(from, SIZE_MAX);
    __trellis_copy(to, from, length + 1);
    return to + length;
}
WRAP(char *, strcpy, (char *to, const char *from)) {
    __trellis_copy(to, from, length_of(from, SIZE_MAX) + 1);
    return to;
}
WRAP(char *, stpncpy, (char *to, const char *from, size_t most)) {
    size_t length = length_of(from, most);
    __trellis_copy(to, from, length);
    if (length < most)
        __trellis_set(to + length, 0, most - length);
    return to + length;
}
WRAP(char *, strncpy, (char *to, const char *from, size_t most)) {
    wrapped_stpncpy(to, from, most);
    return to;
}
WRAP(char *, strcat, (char *to, const char *from)) {
    __trellis_copy(to + length_of(to, SIZE_MAX), from, length_of(from, SIZE_MAX) + 1);
    return to;
}
WRAP(char *, strncat, (char *to, const char *from, size_t most)) {
    size_t length = length_of(from, most);
    char *end = to + length_of(to, SIZE_MAX);
    __trellis_copy(end, from, length);
    __trellis_set(end + length, 0, 1);
    return to;
}
WRAP(char *, strdup, (const char *text)) {
    size_t bytes = length_of(text, SIZE_MAX) + 1;
    char *copy = __trellis_malloc(bytes);
    if (copy)
        __trellis_copy(copy, text, bytes);
    return copy;
}
WRAP(char *, strndup, (const char *text, size_t most)) {
    size_t length = length_of(text, most);
    char *copy = __trellis_malloc(length + 1);
    if (copy) {
        __trellis_copy(copy, text, length);
        __trellis_set(copy + length, 0, 1);
    }
    return copy;
}

/* Compares two strings by a library function on native copies. */
#define COMPARE(name)                                                                                                  \
    WRAP(int, name, (const char *left, const char *right)) {                                                           \
        struct piece one, other;                                                                                       \
        int result = name(take_string(&one, left), take_string(&other, right));                                        \
        drop(&one);                                                                                                    \
        drop(&other);                                                                                                  \
        return result;                                                                                                 \
    }
COMPARE(strcmp)
COMPARE(strcasecmp)
COMPARE(strcoll)

#define COMPARE_AT_MOST(name)                                                                                          \
    WRAP(int, name, (const char *left, const char *right, size_t most)) {                                              \
        struct piece one, other;                                                                                       \
        size_t length;                                                                                                 \
        const char *first = take_at_most(&one, left, most, &length);                                                   \
        int result = name(first, take_at_most(&other, right, most, &length), most);                                    \
        drop(&one);                                                                                                    \
        drop(&other);                                                                                                  \
        return result;                                                                                                 \
    }
COMPARE_AT_MOST(strncmp)
COMPARE_AT_MOST(strncasecmp)

WRAP(int, memcmp, (const void *left, const void *right, size_t bytes)) {
    struct piece one, other;
    const void *first = take(&one, left, bytes);
    int result = memcmp(first, take(&other, right, bytes), bytes);
    drop(&one);
    drop(&other);
    return result;
}
WRAP(int, bcmp, (const void *left, const void *right, size_t bytes)) { return wrapped_memcmp(left, right, bytes); }

/* A position in a native copy is the same position in the program's memory. */
static void *position(const struct piece *piece, const void *found) {
    return found ? (char *)piece->program + ((const char *)found - piece->native) : NULL;
}

#define FIND_CHARACTER(name)                                                                                           \
    WRAP(char *, name, (const char *text, int character)) {                                                            \
        struct piece piece;                                                                                            \
        char *found = position(&piece, name(take_string(&piece, text), character));                                    \
        drop(&piece);                                                                                                  \
        return found;                                                                                                  \
    }
FIND_CHARACTER(strchr)
FIND_CHARACTER(strrchr)
FIND_CHARACTER(strchrnul)
FIND_CHARACTER(index)
FIND_CHARACTER(rindex)

/* memchr may be told more bytes than there are behind the character, so it reads in blocks. */
WRAP(void *, memchr, (const void *memory, int byte, size_t bytes)) {
#if TRELLIS_MODE != 1
    if (is_native(memory))
        return (void *)memchr(memory, byte, bytes);
#endif
    char block[256];
    for (size_t done = 0; done < bytes;) {
        const char *at = (const char *)memory + done;
        size_t count = sizeof block - (uintptr_t)at % sizeof block;
        if (count > bytes - done)
            count = bytes - done;
        __trellis_load(at, block, count);
        char *found = memchr(block, byte, count);
        if (found)
            return (char *)at + (found - block);
        done += count;
    }
    return NULL;
}
WRAP(void *, rawmemchr, (const void *memory, int byte)) { return wrapped_memchr(memory, byte, SIZE_MAX); }
WRAP(void *, memrchr, (const void *memory, int byte, size_t bytes)) {
    struct piece piece;
    void *found = position(&piece, memrchr(take(&piece, memory, bytes), byte, bytes));
    drop(&piece);
    return found;
}
WRAP(void *, memccpy, (void *to, const void *from, int byte, size_t bytes)) {
    const char *found = wrapped_memchr(from, byte, bytes);
    size_t count = found ? (size_t)(found - (const char *)from) + 1 : bytes;
    __trellis_copy(to, from, count);
    return found ? (char *)to + count : NULL;
}
WRAP(void *, memmem, (const void *memory, size_t bytes, const void *what, size_t what_bytes)) {
    struct piece piece, needle;
    const void *native = take(&piece, memory, bytes);
    void *found = position(&piece, memmem(native, bytes, take(&needle, what, what_bytes), what_bytes));
    drop(&piece);
    drop(&needle);
    return found;
}

#define FIND_STRING(name)                                                                                              \
    WRAP(char *, name, (const char *text, const char *what)) {                                                         \
        struct piece piece, needle;                                                                                    \
        const char *native = take_string(&piece, text);                                                                \
        char *found = position(&piece, name(native, take_string(&needle, what)));                                      \
        drop(&piece);                                                                                                  \
        drop(&needle);                                                                                                 \
        return found;                                                                                                  \
    }
FIND_STRING(strstr)
FIND_STRING(strcasestr)
FIND_STRING(strpbrk)

#define SPAN(name)                                                                                                     \
    WRAP(size_t, name, (const char *text, const char *set)) {                                                          \
        struct piece piece, other;                                                                                     \
        const char *native = take_string(&piece, text);                                                                \
        size_t length = name(native, take_string(&other, set));                                                        \
        drop(&piece);                                                                                                  \
        drop(&other);                                                                                                  \
        return length;                                                                                                 \
    }
SPAN(strspn)
SPAN(strcspn)

static char *load_pointer(char **where) {
    char *value;
    get_bytes(where, &value, sizeof value);
    return value;
}
static void store_pointer(char **where, char *value) { put_bytes(where, &value, sizeof value); }

WRAP(char *, strsep, (char **rest, const char *set)) {
    char *token = load_pointer(rest);
    if (!token)
        return NULL;
    size_t length = wrapped_strcspn(token, set);
    char end;
    get_bytes(token + length, &end, 1);
    if (end)
        __trellis_set(token + length, 0, 1);
    store_pointer(rest, end ? token + length + 1 : NULL);
    return token;
}
static char *token_of(char *text, const char *set, char **rest) {
    if (!text)
        return NULL;
    text += wrapped_strspn(text, set);
    char first;
    get_bytes(text, &first, 1);
    if (!first) {
        *rest = text;
        return NULL;
    }
    char *end = text + wrapped_strcspn(text, set);
    char last;
    get_bytes(end, &last, 1);
    if (last)
        __trellis_set(end, 0, 1);
    *rest = last ? end + 1 : end;
    return text;
}
WRAP(char *, strtok_r, (char *text, const char *set, char **rest)) {
    char *next = text ? text : load_pointer(rest);
    char *token = token_of(next, set, &next);
    store_pointer(rest, next);
    return token;
}
WRAP(char *, __strtok_r, (char *text, const char *set, char **rest)) { return wrapped_strtok_r(text, set, rest); }
WRAP(char *, strtok, (char *text, const char *set)) {
    static __thread char *rest;
    return token_of(text ? text : rest, set, &rest);
}
WRAP(size_t, strxfrm, (char *to, const char *from, size_t most)) {
    struct piece out, in;
    char *native = room(&out, to, most);
    size_t length = strxfrm(native, take_string(&in, from), most);
    give(&out, length < most ? length + 1 : 0);
    drop(&out);
    drop(&in);
    return length;
}
WRAP(char *, strerror_r, (int number, char *to, size_t most)) {
    char text[256];
    char *found = strerror_r(number, text, sizeof text);
    size_t length = strlen(found);
    if (!most)
        return to;
    length = length < most ? length : most - 1;
    put_bytes(to, found, length);
    __trellis_set(to + length, 0, 1);
    return to;
}
WRAP(int, __xpg_strerror_r, (int number, char *to, size_t most)) {
    wrapped_strerror_r(number, to, most);
    return 0;
}
