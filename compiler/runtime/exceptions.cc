// Exceptions of the C++ library in modes full and heap.
//
// Promises: exception objects are native memory for everybody, so that the unwinder and libstdc++.so handle them as
// always; texts come from the program's memory. Must never: put an object of the library where plain instructions
// cannot reach it; that ends the process with a sentence.
#include "wrap.h"

#include <cxxabi.h>
#include <new>
#include <stdexcept>

#define WRAP_CXX(result, symbol, parameters)                                                                           \
    extern "C" result wrapped_##symbol parameters __asm__(#symbol TRELLIS_SUFFIX) __attribute__((weak));               \
    result wrapped_##symbol parameters

WRAP_CXX(void *, __cxa_allocate_exception, (size_t bytes)) {
    void *object = abi::__cxa_allocate_exception(bytes);
#if TRELLIS_MODE == 1
    __trellis_keep_native(object, bytes);
#endif
    return object;
}

// Where an exception of the library may be built.
static void *reachable(void *object, size_t bytes) {
    if (in_region(object)) refuse_at_run_time("an exception of the C++ library", "cannot be built in the store");
#if TRELLIS_MODE == 1
    __trellis_keep_native(object, bytes);
#else
    (void)bytes;
#endif
    return object;
}

// The text of a std::string of the program: pointer and length come first in it.
static std::string text_of(const void *program) {
    struct {
        const char *at;
        size_t length;
    } head;
    get_bytes(program, &head, sizeof head);
    struct piece piece;
    std::string text(static_cast<const char *>(take(&piece, head.at, head.length)), head.length);
    drop(&piece);
    return text;
}

static const char *native_text(struct piece *piece, const char *text) { return take_string(piece, text); }

#define EXCEPTION(type, symbol)                                                                                        \
    WRAP_CXX(void, symbol##C1EPKc, (void *object, const char *text)) {                                                 \
        struct piece piece;                                                                                            \
        new (reachable(object, sizeof(type))) type(native_text(&piece, text));                                         \
        drop(&piece);                                                                                                  \
    }                                                                                                                  \
    WRAP_CXX(void, symbol##C2EPKc, (void *object, const char *text)) { wrapped_##symbol##C1EPKc(object, text); }       \
    WRAP_CXX(void, symbol##C1ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE,                                  \
             (void *object, const void *text)) {                                                                       \
        new (reachable(object, sizeof(type))) type(text_of(text));                                                     \
    }                                                                                                                  \
    WRAP_CXX(void, symbol##C2ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE,                                  \
             (void *object, const void *text)) {                                                                       \
        new (reachable(object, sizeof(type))) type(text_of(text));                                                     \
    }                                                                                                                  \
    WRAP_CXX(void, symbol##C1ERKS_, (void *object, const type *other)) {                                               \
        new (reachable(object, sizeof(type))) type(*static_cast<type *>(reachable((void *)other, sizeof(type))));      \
    }                                                                                                                  \
    WRAP_CXX(void, symbol##C2ERKS_, (void *object, const type *other)) { wrapped_##symbol##C1ERKS_(object, other); }   \
    WRAP_CXX(void, symbol##D1Ev, (type * object)) { object->type::~type(); }                                           \
    WRAP_CXX(void, symbol##D2Ev, (type * object)) { object->type::~type(); }

using std::domain_error, std::invalid_argument, std::length_error, std::logic_error, std::out_of_range;
using std::overflow_error, std::range_error, std::runtime_error, std::underflow_error;
EXCEPTION(logic_error, _ZNSt11logic_error)
EXCEPTION(runtime_error, _ZNSt13runtime_error)
EXCEPTION(domain_error, _ZNSt12domain_error)
EXCEPTION(invalid_argument, _ZNSt16invalid_argument)
EXCEPTION(length_error, _ZNSt12length_error)
EXCEPTION(out_of_range, _ZNSt12out_of_range)
EXCEPTION(range_error, _ZNSt11range_error)
EXCEPTION(overflow_error, _ZNSt14overflow_error)
EXCEPTION(underflow_error, _ZNSt15underflow_error)

WRAP_CXX(const char *, _ZNKSt11logic_error4whatEv, (const logic_error *object)) { return object->logic_error::what(); }
WRAP_CXX(const char *, _ZNKSt13runtime_error4whatEv, (const runtime_error *object)) {
    return object->runtime_error::what();
}
