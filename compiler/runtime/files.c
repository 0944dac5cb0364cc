/* Files and directories by name and by descriptor, in modes full and heap.
 *
 * Promises: errno is the system call's. Must never: give the kernel an address of the region.
 */
#include "wrap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

WRAP(ssize_t, read, (int descriptor, void *to, size_t bytes)) {
    struct piece piece;
    ssize_t done = read(descriptor, room(&piece, to, bytes), bytes);
    give(&piece, done > 0 ? (size_t)done : 0);
    drop(&piece);
    return done;
}
WRAP(ssize_t, pread, (int descriptor, void *to, size_t bytes, off_t at)) {
    struct piece piece;
    ssize_t done = pread(descriptor, room(&piece, to, bytes), bytes, at);
    give(&piece, done > 0 ? (size_t)done : 0);
    drop(&piece);
    return done;
}
WRAP(ssize_t, pread64, (int descriptor, void *to, size_t bytes, off_t at)) {
    return wrapped_pread(descriptor, to, bytes, at);
}
WRAP(ssize_t, write, (int descriptor, const void *from, size_t bytes)) {
    struct piece piece;
    ssize_t done = write(descriptor, take(&piece, from, bytes), bytes);
    drop(&piece);
    return done;
}
WRAP(ssize_t, pwrite, (int descriptor, const void *from, size_t bytes, off_t at)) {
    struct piece piece;
    ssize_t done = pwrite(descriptor, take(&piece, from, bytes), bytes, at);
    drop(&piece);
    return done;
}
WRAP(ssize_t, pwrite64, (int descriptor, const void *from, size_t bytes, off_t at)) {
    return wrapped_pwrite(descriptor, from, bytes, at);
}
WRAP(int, open, (const char *path, int flags, ...)) {
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
    va_end(list);
    struct piece piece;
    int descriptor = open(take_string(&piece, path), flags, mode);
    drop(&piece);
    return descriptor;
}
WRAP(int, open64, (const char *path, int flags, ...)) {
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
    va_end(list);
    return wrapped_open(path, flags, mode);
}

#define BY_NAME(name)                                                                                                  \
    WRAP(int, name, (const char *path)) {                                                                              \
        struct piece piece;                                                                                            \
        int result = name(take_string(&piece, path));                                                                  \
        drop(&piece);                                                                                                  \
        return result;                                                                                                 \
    }
BY_NAME(unlink)
BY_NAME(remove)
BY_NAME(rmdir)
BY_NAME(chdir)

#define BY_NAME_WITH(name, type)                                                                                       \
    WRAP(int, name, (const char *path, type with)) {                                                                   \
        struct piece piece;                                                                                            \
        int result = name(take_string(&piece, path), with);                                                            \
        drop(&piece);                                                                                                  \
        return result;                                                                                                 \
    }
BY_NAME_WITH(access, int)
BY_NAME_WITH(mkdir, mode_t)
BY_NAME_WITH(chmod, mode_t)
BY_NAME_WITH(creat, mode_t)
BY_NAME_WITH(truncate, off_t)

WRAP(int, rename, (const char *from, const char *to)) {
    struct piece one, other;
    const char *native = take_string(&one, from);
    int result = rename(native, take_string(&other, to));
    drop(&one);
    drop(&other);
    return result;
}

#define STATUS(name)                                                                                                   \
    WRAP(int, name, (const char *path, struct stat *status)) {                                                         \
        struct piece piece;                                                                                            \
        struct stat native;                                                                                            \
        int result = name(take_string(&piece, path), &native);                                                         \
        if (result == 0)                                                                                               \
            put_bytes(status, &native, sizeof native);                                                                 \
        drop(&piece);                                                                                                  \
        return result;                                                                                                 \
    }
STATUS(stat)
STATUS(lstat)
WRAP(int, fstat, (int descriptor, struct stat *status)) {
    struct stat native;
    int result = fstat(descriptor, &native);
    if (result == 0)
        put_bytes(status, &native, sizeof native);
    return result;
}

WRAP(char *, getcwd, (char *to, size_t bytes)) {
    char *native = getcwd(NULL, 0);
    if (!native)
        return NULL;
    size_t needed = strlen(native) + 1;
    if (!to) {
        to = __trellis_malloc(bytes > needed ? bytes : needed);
    } else if (bytes < needed) {
        errno = ERANGE;
        to = NULL;
    }
    if (to)
        put_bytes(to, native, needed);
    free(native);
    return to;
}
WRAP(char *, realpath, (const char *path, char *to)) {
    struct piece piece;
    char *native = realpath(take_string(&piece, path), NULL);
    drop(&piece);
    if (native) {
        size_t needed = strlen(native) + 1;
        to = to ? to : __trellis_malloc(needed);
        if (to)
            put_bytes(to, native, needed);
    }
    char *result = native ? to : NULL;
    free(native);
    return result;
}
WRAP(int, mkstemp, (char *name)) {
    struct piece piece;
    size_t bytes = length_of(name, SIZE_MAX) + 1;
    int descriptor = mkstemp(take_room(&piece, name, bytes));
    give(&piece, bytes);
    drop(&piece);
    return descriptor;
}
WRAP(int, pipe, (int *ends)) {
    int native[2];
    int result = pipe(native);
    if (result == 0)
        put_bytes(ends, native, sizeof native);
    return result;
}
