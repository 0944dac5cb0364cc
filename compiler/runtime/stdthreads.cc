// std::thread, std::condition_variable and std::call_once in modes full and heap.
//
// Promises: a thread's state is the program's object: it is run and ended by its own virtual functions, found through
// the runtime. Must never: call a member of the library on an object in the store.
#include "wrap.h"

#include <cerrno>
#include <pthread.h>
#include <system_error>
#include <thread>

#define WRAP_CXX(result, symbol, parameters)                                                                           \
    extern "C" result wrapped_##symbol parameters __asm__(#symbol TRELLIS_SUFFIX) __attribute__((weak));               \
    result wrapped_##symbol parameters

// std::thread::_State's virtual functions in order: two destructors, then _M_run.
static void call_virtual(void *object, unsigned which) {
    void (*const *table)(void *);
    get_bytes(object, &table, sizeof table);
    table[which](object);
}

static void *run_state(void *state) {
    call_virtual(state, 2);
    call_virtual(state, 1);
    return nullptr;
}

WRAP_CXX(void, _ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE,
         (void *thread, void *owner, void (*)())) {
    void *state, *nothing = nullptr;
    get_bytes(owner, &state, sizeof state);
    pthread_t started;
    int error = pthread_create(&started, nullptr, run_state, state);
    if (error) throw std::system_error(error, std::generic_category(), "cannot start a thread");
    put_bytes(owner, &nothing, sizeof nothing);
    put_bytes(thread, &started, sizeof started);
}

static pthread_t take_thread(void *thread) {
    pthread_t value, none{};
    get_bytes(thread, &value, sizeof value);
    put_bytes(thread, &none, sizeof none);
    return value;
}
WRAP_CXX(void, _ZNSt6thread4joinEv, (void *thread)) {
    pthread_t value = take_thread(thread);
    int error = value ? pthread_join(value, nullptr) : EINVAL;
    if (error) throw std::system_error(error, std::generic_category(), "cannot join a thread");
}
WRAP_CXX(void, _ZNSt6thread6detachEv, (void *thread)) {
    pthread_t value = take_thread(thread);
    int error = value ? pthread_detach(value) : EINVAL;
    if (error) throw std::system_error(error, std::generic_category(), "cannot detach a thread");
}
WRAP_CXX(void, _ZNSt6thread6_StateD1Ev, (void *)) {}
WRAP_CXX(void, _ZNSt6thread6_StateD2Ev, (void *)) {}

static pthread_cond_t *condition(void *program) {
    return static_cast<pthread_cond_t *>(native_object(program, sizeof(pthread_cond_t)));
}
WRAP_CXX(void, _ZNSt18condition_variableC1Ev, (void *object)) {
    forget_object(object);
    pthread_cond_init(condition(object), nullptr);
}
WRAP_CXX(void, _ZNSt18condition_variableC2Ev, (void *object)) {
    forget_object(object);
    pthread_cond_init(condition(object), nullptr);
}
WRAP_CXX(void, _ZNSt18condition_variableD1Ev, (void *object)) { forget_object(object); }
WRAP_CXX(void, _ZNSt18condition_variableD2Ev, (void *object)) { forget_object(object); }
WRAP_CXX(void, _ZNSt18condition_variable10notify_oneEv, (void *object)) { pthread_cond_signal(condition(object)); }
WRAP_CXX(void, _ZNSt18condition_variable10notify_allEv, (void *object)) { pthread_cond_broadcast(condition(object)); }
// A std::unique_lock begins with the address of its mutex.
WRAP_CXX(void, _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, (void *object, void *lock)) {
    void *mutex;
    get_bytes(lock, &mutex, sizeof mutex);
    auto *native = static_cast<pthread_mutex_t *>(native_object(mutex, sizeof(pthread_mutex_t)));
    pthread_cond_wait(condition(object), native);
}
