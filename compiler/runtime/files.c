/* Files and directories by name and by descriptor, in modes full and heap.
 *
 * Promises: errno is the system call's. It must never give the kernel an address of the region.
 */
#include "wrap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/time.h>
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
BY_NAME_WITH(truncate64, off_t)

#define BY_TWO_NAMES(name)                                                                                             \
    WRAP(int, name, (const char *from, const char *to)) {                                                              \
        struct piece one, other;                                                                                       \
        const char *native = take_string(&one, from);                                                                  \
        int result = name(native, take_string(&other, to));                                                            \
        drop(&one);                                                                                                    \
        drop(&other);                                                                                                  \
        return result;                                                                                                 \
    }
BY_TWO_NAMES(rename)
BY_TWO_NAMES(link)
BY_TWO_NAMES(symlink)

#define OWNER(name)                                                                                                    \
    WRAP(int, name, (const char *path, uid_t user, gid_t group)) {                                                     \
        struct piece piece;                                                                                            \
        int result = name(take_string(&piece, path), user, group);                                                     \
        drop(&piece);                                                                                                  \
        return result;                                                                                                 \
    }
OWNER(chown)
OWNER(lchown)

WRAP(ssize_t, readlink, (const char *path, char *to, size_t bytes)) {
    struct piece piece, text;
    ssize_t done = readlink(take_string(&piece, path), room(&text, to, bytes), bytes);
    give(&text, done > 0 ? (size_t)done : 0);
    drop(&text);
    drop(&piece);
    return done;
}
WRAP(int, utimes, (const char *path, const struct timeval *times)) {
    struct piece piece;
    struct timeval native[2];
    if (times)
        get_bytes(times, native, sizeof native);
    int result = utimes(take_string(&piece, path), times ? native : NULL);
    drop(&piece);
    return result;
}

/* What the third argument is depends on the command. */
WRAP(int, fcntl, (int descriptor, int command, ...)) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    switch (command) {
    case F_GETLK:
    case F_SETLK:
    case F_SETLKW:
    case F_OFD_GETLK:
    case F_OFD_SETLK:
    case F_OFD_SETLKW: {
        struct flock native;
        get_bytes(argument, &native, sizeof native);
        int result = fcntl(descriptor, command, &native);
        if (result == 0)
            put_bytes(argument, &native, sizeof native);
        return result;
    }
    case F_GETOWN_EX:
    case F_SETOWN_EX:
    case F_GET_RW_HINT:
    case F_SET_RW_HINT:
    case F_GET_FILE_RW_HINT:
    case F_SET_FILE_RW_HINT:
        refuse_at_run_time("fcntl", "got a command whose argument is memory other than a lock");
    default:
        return fcntl(descriptor, command, argument);
    }
}
WRAP(int, fcntl64, (int descriptor, int command, ...)) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return wrapped_fcntl(descriptor, command, argument);
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
/* On x86-64 the structures are the same. */
_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "one status");
WRAP(int, stat64, (const char *path, struct stat *status)) { return wrapped_stat(path, status); }
WRAP(int, lstat64, (const char *path, struct stat *status)) { return wrapped_lstat(path, status); }
WRAP(int, fstat, (int descriptor, struct stat *status)) {
    struct stat native;
    int result = fstat(descriptor, &native);
    if (result == 0)
        put_bytes(status, &native, sizeof native);
    return result;
}

WRAP(int, fstat64, (int descriptor, struct stat *status)) { return wrapped_fstat(descriptor, status); }

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
WRAP(int, mkstemp64, (char *name)) { return wrapped_mkstemp(name); }
WRAP(char *, mkdtemp, (char *name)) {
    struct piece piece;
    size_t bytes = length_of(name, SIZE_MAX) + 1;
    char *made = mkdtemp(take_room(&piece, name, bytes));
    give(&piece, bytes);
    drop(&piece);
    return made ? name : NULL;
}

/* A directory is the library's object, and so are its entries. */
WRAP(DIR *, opendir, (const char *path)) {
    struct piece piece;
    DIR *directory = opendir(take_string(&piece, path));
    drop(&piece);
    return directory;
}
WRAP(int, pipe, (int *ends)) {
    int native[2];
    int result = pipe(native);
    if (result == 0)
        put_bytes(ends, native, sizeof native);
    return result;
}
