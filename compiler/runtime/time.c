/* time.h in modes full and heap: everything that is given or gives a structure.
 *
 * Promises: out-parameters hold what the library wrote. It must never let the library write a frame of the program.
 */
#include "wrap.h"

#include <sys/time.h>
#include <time.h>

/* A call that fills `value`, which then goes to the program's `to` when the call succeeded. */
#define FILL(result, name, parameters, type, to, call)                                                                 \
    WRAP(result, name, parameters) {                                                                                   \
        type value;                                                                                                    \
        result answer = call;                                                                                          \
        if (answer == 0 && to)                                                                                         \
            put_bytes(to, &value, sizeof value);                                                                       \
        return answer;                                                                                                 \
    }
FILL(int, clock_gettime, (clockid_t clock, struct timespec *to), struct timespec, to, clock_gettime(clock, &value))
FILL(int, clock_getres, (clockid_t clock, struct timespec *to), struct timespec, to, clock_getres(clock, &value))
FILL(int, gettimeofday, (struct timeval * to, void *zone), struct timeval, to, ((void)zone, gettimeofday(&value, NULL)))

WRAP(int, timespec_get, (struct timespec * to, int base)) {
    struct timespec value;
    int answer = timespec_get(&value, base);
    if (answer)
        put_bytes(to, &value, sizeof value);
    return answer;
}
WRAP(time_t, time, (time_t * to)) {
    time_t now = time(NULL);
    if (to)
        put_bytes(to, &now, sizeof now);
    return now;
}
WRAP(int, nanosleep, (const struct timespec *request, struct timespec *rest)) {
    struct timespec value, left;
    get_bytes(request, &value, sizeof value);
    int answer = nanosleep(&value, &left);
    if (answer && rest)
        put_bytes(rest, &left, sizeof left);
    return answer;
}
WRAP(int, clock_nanosleep, (clockid_t clock, int flags, const struct timespec *request, struct timespec *rest)) {
    struct timespec value, left;
    get_bytes(request, &value, sizeof value);
    int answer = clock_nanosleep(clock, flags, &value, &left);
    if (answer && rest)
        put_bytes(rest, &left, sizeof left);
    return answer;
}

#define BROKEN_DOWN(name)                                                                                              \
    WRAP(struct tm *, name, (const time_t *from)) {                                                                    \
        time_t value;                                                                                                  \
        get_bytes(from, &value, sizeof value);                                                                         \
        return name(&value);                                                                                           \
    }                                                                                                                  \
    WRAP(struct tm *, name##_r, (const time_t *from, struct tm *to)) {                                                 \
        time_t value;                                                                                                  \
        struct tm broken;                                                                                              \
        get_bytes(from, &value, sizeof value);                                                                         \
        if (!name##_r(&value, &broken))                                                                                \
            return NULL;                                                                                               \
        put_bytes(to, &broken, sizeof broken);                                                                         \
        return to;                                                                                                     \
    }
BROKEN_DOWN(localtime)
BROKEN_DOWN(gmtime)

#define SECONDS(name)                                                                                                  \
    WRAP(time_t, name, (struct tm * of)) {                                                                             \
        struct tm value;                                                                                               \
        get_bytes(of, &value, sizeof value);                                                                           \
        time_t seconds = name(&value);                                                                                 \
        put_bytes(of, &value, sizeof value);                                                                           \
        return seconds;                                                                                                \
    }
SECONDS(mktime)
SECONDS(timegm)

WRAP(char *, ctime, (const time_t *from)) {
    time_t value;
    get_bytes(from, &value, sizeof value);
    return ctime(&value);
}
WRAP(char *, asctime, (const struct tm *from)) {
    struct tm value;
    get_bytes(from, &value, sizeof value);
    return asctime(&value);
}
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
WRAP(size_t, strftime, (char *to, size_t most, const char *format, const struct tm *from)) {
    struct tm value;
    struct piece in, out;
    get_bytes(from, &value, sizeof value);
    char *native = room(&out, to, most);
    size_t length = strftime(native, most, take_string(&in, format), &value);
    give(&out, length ? length + 1 : 0);
    drop(&in);
    drop(&out);
    return length;
}
