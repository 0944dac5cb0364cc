/* trellis/stored.h in modes full and heap: the functions that get texts or give numbers and addresses.
 *
 * Promises: what they give lands in the program's memory. It must never wrap a function whose addresses are only names
 * of objects (locks and the like); these go to libtrellis as they are.
 */
#include "wrap.h"

#include "trellis/stored.h"

/* Fills `value` and gives it to the program when the call succeeded. */
#define GIVE(name, parameters, type, to, call)                                                                         \
    WRAP(int, name, parameters) {                                                                                      \
        type value = {0};                                                                                              \
        int answer = call;                                                                                             \
        if (answer >= 0)                                                                                               \
            put_bytes(to, &value, sizeof value);                                                                       \
        return answer;                                                                                                 \
    }
GIVE(trellis_store_statistics, (trellis_store_statistics_t * to), trellis_store_statistics_t, to,
     trellis_store_statistics(&value))
GIVE(trellis_store_lock_token, (const void *lock, uint64_t *to), uint64_t, to, trellis_store_lock_token(lock, &value))
GIVE(trellis_store_semaphore_value, (const void *semaphore, uint64_t *to), uint64_t, to,
     trellis_store_semaphore_value(semaphore, &value))

WRAP(int, trellis_store_root, (const char *name, void **to)) {
    struct piece piece;
    void *value = NULL;
    int answer = trellis_store_root(take_string(&piece, name), &value);
    if (answer >= 0)
        put_bytes(to, &value, sizeof value);
    drop(&piece);
    return answer;
}
WRAP(int, trellis_store_set_root, (const char *name, const void *address)) {
    struct piece piece;
    int answer = trellis_store_set_root(take_string(&piece, name), address);
    drop(&piece);
    return answer;
}
WRAP(const void *, trellis_store_name, (const char *name)) {
    struct piece piece;
    const void *answer = trellis_store_name(take_string(&piece, name));
    drop(&piece);
    return answer;
}
