/* Processes, limits and locales in modes full and heap.
 *
 * Promises: out-parameters hold what the system wrote; what a function returns by address is the library's own memory.
 * It must never let the system write to the program's memory.
 */
#include "wrap.h"

#include <locale.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

WRAP(char *, setlocale, (int category, const char *name)) {
    struct piece piece;
    char *now = setlocale(category, take_string(&piece, name));
    drop(&piece);
    return now;
}

/* A call that fills `value`, which goes to the program's `to` when it succeeded. */
#define FILL(result, name, parameters, type, call)                                                                     \
    WRAP(result, name, parameters) {                                                                                   \
        type value;                                                                                                    \
        result answer = call;                                                                                          \
        if (answer >= 0 && to)                                                                                         \
            put_bytes(to, &value, sizeof value);                                                                       \
        return answer;                                                                                                 \
    }
FILL(int, getrusage, (int who, struct rusage *to), struct rusage, getrusage(who, &value))
FILL(int, getrlimit, (int which, struct rlimit *to), struct rlimit, getrlimit(which, &value))
FILL(int, uname, (struct utsname * to), struct utsname, uname(&value))
FILL(pid_t, wait, (int *to), int, wait(&value))

WRAP(pid_t, waitpid, (pid_t process, int *to, int options)) {
    int status;
    pid_t answer = waitpid(process, &status, options);
    if (answer > 0 && to)
        put_bytes(to, &status, sizeof status);
    return answer;
}
WRAP(int, gethostname, (char *to, size_t bytes)) {
    struct piece piece;
    int answer = gethostname(room(&piece, to, bytes), bytes);
    give(&piece, answer == 0 ? strnlen(piece.native, bytes - 1) + 1 : 0);
    drop(&piece);
    return answer;
}
