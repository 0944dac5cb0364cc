/* pthread.h and semaphore.h in modes full and heap.
 *
 * Promises: locks, conditions, semaphores and attributes are native objects of this process: at their own address where
 * plain instructions may use it, else a shadow of that address. They order the threads of one process; between
 * processes there is trellis/stored.h. It must never keep a shadow that was destroyed.
 */
#include "wrap.h"

#include <pthread.h>
#include <semaphore.h>
#include <time.h>

WRAP(int, pthread_create, (pthread_t * thread, const pthread_attr_t *attributes, void *(*run)(void *), void *with)) {
    pthread_t native;
    void *how = attributes ? native_object((void *)attributes, sizeof *attributes) : NULL;
    int answer = pthread_create(&native, how, run, with);
    if (answer == 0)
        put_bytes(thread, &native, sizeof native);
    return answer;
}
WRAP(int, pthread_join, (pthread_t thread, void **result)) {
    void *native;
    int answer = pthread_join(thread, &native);
    if (answer == 0 && result)
        put_bytes(result, &native, sizeof native);
    return answer;
}
WRAP(int, pthread_key_create, (pthread_key_t * key, void (*end)(void *))) {
    pthread_key_t native;
    int answer = pthread_key_create(&native, end);
    if (answer == 0)
        put_bytes(key, &native, sizeof native);
    return answer;
}
WRAP(int, pthread_once, (pthread_once_t * once, void (*run)(void))) {
    return pthread_once(native_object(once, sizeof *once), run);
}

/* `init` begins a new life of the address; what a free and a malloc left behind there is forgotten. */
#define OBJECT(type, prefix, kind, kind_parameter, kind_value)                                                         \
    WRAP(int, prefix##_init, (type * object, kind_parameter)) {                                                        \
        forget_object((void *)object);                                                                                 \
        return prefix##_init(native_object((void *)object, sizeof *object), kind_value);                               \
    }                                                                                                                  \
    WRAP(int, prefix##_destroy, (type * object)) {                                                                     \
        int answer = prefix##_destroy(native_object((void *)object, sizeof *object));                                  \
        if (answer == 0)                                                                                               \
            forget_object((void *)object);                                                                             \
        return answer;                                                                                                 \
    }
#define WITH_ATTRIBUTES(type, prefix, attributes_type)                                                                 \
    OBJECT(type, prefix, attributes, const attributes_type *attributes,                                                \
           attributes ? native_object((void *)attributes, sizeof *attributes) : NULL)
WITH_ATTRIBUTES(pthread_mutex_t, pthread_mutex, pthread_mutexattr_t)
WITH_ATTRIBUTES(pthread_cond_t, pthread_cond, pthread_condattr_t)
WITH_ATTRIBUTES(pthread_rwlock_t, pthread_rwlock, pthread_rwlockattr_t)
OBJECT(pthread_spinlock_t, pthread_spin, shared, int shared, shared)

WRAP(int, pthread_barrier_init, (pthread_barrier_t * object, const pthread_barrierattr_t *attributes, unsigned count)) {
    forget_object((void *)object);
    void *how = attributes ? native_object((void *)attributes, sizeof *attributes) : NULL;
    return pthread_barrier_init(native_object((void *)object, sizeof *object), how, count);
}
WRAP(int, sem_init, (sem_t * object, int shared, unsigned value)) {
    forget_object((void *)object);
    return sem_init(native_object((void *)object, sizeof *object), shared, value);
}

/* Functions of one object. */
#define ON(type, name)                                                                                                 \
    WRAP(int, name, (type * object)) { return name(native_object((void *)object, sizeof *object)); }
ON(pthread_mutex_t, pthread_mutex_lock)
ON(pthread_mutex_t, pthread_mutex_trylock)
ON(pthread_mutex_t, pthread_mutex_unlock)
ON(pthread_cond_t, pthread_cond_signal)
ON(pthread_cond_t, pthread_cond_broadcast)
ON(pthread_rwlock_t, pthread_rwlock_rdlock)
ON(pthread_rwlock_t, pthread_rwlock_wrlock)
ON(pthread_rwlock_t, pthread_rwlock_tryrdlock)
ON(pthread_rwlock_t, pthread_rwlock_trywrlock)
ON(pthread_rwlock_t, pthread_rwlock_unlock)
ON(pthread_spinlock_t, pthread_spin_lock)
ON(pthread_spinlock_t, pthread_spin_trylock)
ON(pthread_spinlock_t, pthread_spin_unlock)
ON(pthread_barrier_t, pthread_barrier_wait)
ON(sem_t, sem_wait)
ON(sem_t, sem_trywait)
ON(sem_t, sem_post)
ON(pthread_attr_t, pthread_attr_init)
ON(pthread_mutexattr_t, pthread_mutexattr_init)
ON(pthread_condattr_t, pthread_condattr_init)

#define ENDS(type, name)                                                                                               \
    WRAP(int, name, (type * object)) {                                                                                 \
        int answer = name(native_object((void *)object, sizeof *object));                                              \
        forget_object((void *)object);                                                                                 \
        return answer;                                                                                                 \
    }
ENDS(pthread_barrier_t, pthread_barrier_destroy)
ENDS(sem_t, sem_destroy)
ENDS(pthread_attr_t, pthread_attr_destroy)
ENDS(pthread_mutexattr_t, pthread_mutexattr_destroy)
ENDS(pthread_condattr_t, pthread_condattr_destroy)

#define SET(type, name, value_type)                                                                                    \
    WRAP(int, name, (type * object, value_type value)) {                                                               \
        return name(native_object((void *)object, sizeof *object), value);                                             \
    }
SET(pthread_attr_t, pthread_attr_setdetachstate, int)
SET(pthread_attr_t, pthread_attr_setstacksize, size_t)
SET(pthread_attr_t, pthread_attr_setscope, int)
SET(pthread_mutexattr_t, pthread_mutexattr_settype, int)
SET(pthread_mutexattr_t, pthread_mutexattr_setpshared, int)
SET(pthread_condattr_t, pthread_condattr_setclock, clockid_t)

static struct timespec until(const struct timespec *program) {
    struct timespec native;
    get_bytes(program, &native, sizeof native);
    return native;
}
WRAP(int, pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t *mutex)) {
    void *native = native_object(condition, sizeof *condition);
    return pthread_cond_wait(native, native_object(mutex, sizeof *mutex));
}
WRAP(int, pthread_cond_timedwait, (pthread_cond_t * condition, pthread_mutex_t *mutex, const struct timespec *time)) {
    struct timespec end = until(time);
    void *native = native_object(condition, sizeof *condition);
    return pthread_cond_timedwait(native, native_object(mutex, sizeof *mutex), &end);
}
WRAP(int, pthread_cond_clockwait,
     (pthread_cond_t * condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *time)) {
    struct timespec end = until(time);
    void *native = native_object(condition, sizeof *condition);
    return pthread_cond_clockwait(native, native_object(mutex, sizeof *mutex), clock, &end);
}
WRAP(int, pthread_mutex_timedlock, (pthread_mutex_t * mutex, const struct timespec *time)) {
    struct timespec end = until(time);
    return pthread_mutex_timedlock(native_object(mutex, sizeof *mutex), &end);
}
WRAP(int, pthread_mutex_clocklock, (pthread_mutex_t * mutex, clockid_t clock, const struct timespec *time)) {
    struct timespec end = until(time);
    return pthread_mutex_clocklock(native_object(mutex, sizeof *mutex), clock, &end);
}
WRAP(int, sem_timedwait, (sem_t * semaphore, const struct timespec *time)) {
    struct timespec end = until(time);
    return sem_timedwait(native_object(semaphore, sizeof *semaphore), &end);
}
WRAP(int, sem_getvalue, (sem_t * semaphore, int *value)) {
    int native;
    int answer = sem_getvalue(native_object(semaphore, sizeof *semaphore), &native);
    if (answer == 0)
        put_bytes(value, &native, sizeof native);
    return answer;
}
