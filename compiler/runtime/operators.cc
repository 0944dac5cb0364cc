// operator new and delete.
//
// In modes full and heap: the names that translated code calls; libstdc++.so keeps its own. In mode line: the operators
// themselves, for the whole process, because libstdc++.so frees what translated code allocated and the other way round.
//
// Promises: the C++ standard's behaviour (new handlers, bad_alloc, nothrow, alignment). Must never: throw from delete.
#include "wrap.h"

#include <new>

static void *allocate(std::size_t bytes, std::size_t alignment) {
    if (bytes == 0) bytes = 1;
    for (;;) {
        void *address = alignment > __STDCPP_DEFAULT_NEW_ALIGNMENT__ ? __trellis_aligned_alloc(alignment, bytes)
                                                                     : __trellis_malloc(bytes);
        if (address) return address;
        std::new_handler handler = std::get_new_handler();
        if (!handler) throw std::bad_alloc();
        handler();
    }
}

static void *allocate_or_null(std::size_t bytes, std::size_t alignment) noexcept {
    try {
        return allocate(bytes, alignment);
    } catch (...) {
        return nullptr;
    }
}

#if TRELLIS_MODE == 3
#define OPERATOR(result, symbol, parameters) extern "C" result operator_##symbol parameters __asm__(#symbol); \
    __attribute__((visibility("default"))) result operator_##symbol parameters
#else
#define OPERATOR(result, symbol, parameters) extern "C" result operator_##symbol parameters \
    __asm__(#symbol TRELLIS_SUFFIX) __attribute__((weak)); result operator_##symbol parameters
#endif

OPERATOR(void *, _Znwm, (std::size_t bytes)) { return allocate(bytes, 0); }
OPERATOR(void *, _Znam, (std::size_t bytes)) { return allocate(bytes, 0); }
OPERATOR(void *, _ZnwmRKSt9nothrow_t, (std::size_t bytes, const void *)) { return allocate_or_null(bytes, 0); }
OPERATOR(void *, _ZnamRKSt9nothrow_t, (std::size_t bytes, const void *)) { return allocate_or_null(bytes, 0); }
OPERATOR(void *, _ZnwmSt11align_val_t, (std::size_t bytes, std::size_t alignment)) {
    return allocate(bytes, alignment);
}
OPERATOR(void *, _ZnamSt11align_val_t, (std::size_t bytes, std::size_t alignment)) {
    return allocate(bytes, alignment);
}
OPERATOR(void *, _ZnwmSt11align_val_tRKSt9nothrow_t, (std::size_t bytes, std::size_t alignment, const void *)) {
    return allocate_or_null(bytes, alignment);
}
OPERATOR(void *, _ZnamSt11align_val_tRKSt9nothrow_t, (std::size_t bytes, std::size_t alignment, const void *)) {
    return allocate_or_null(bytes, alignment);
}
OPERATOR(void, _ZdlPv, (void *address)) { __trellis_free(address); }
OPERATOR(void, _ZdaPv, (void *address)) { __trellis_free(address); }
OPERATOR(void, _ZdlPvm, (void *address, std::size_t)) { __trellis_free(address); }
OPERATOR(void, _ZdaPvm, (void *address, std::size_t)) { __trellis_free(address); }
OPERATOR(void, _ZdlPvRKSt9nothrow_t, (void *address, const void *)) { __trellis_free(address); }
OPERATOR(void, _ZdaPvRKSt9nothrow_t, (void *address, const void *)) { __trellis_free(address); }
OPERATOR(void, _ZdlPvSt11align_val_t, (void *address, std::size_t)) { __trellis_free(address); }
OPERATOR(void, _ZdaPvSt11align_val_t, (void *address, std::size_t)) { __trellis_free(address); }
OPERATOR(void, _ZdlPvmSt11align_val_t, (void *address, std::size_t, std::size_t)) { __trellis_free(address); }
OPERATOR(void, _ZdaPvmSt11align_val_t, (void *address, std::size_t, std::size_t)) { __trellis_free(address); }
OPERATOR(void, _ZdlPvSt11align_val_tRKSt9nothrow_t, (void *address, std::size_t, const void *)) {
    __trellis_free(address);
}
OPERATOR(void, _ZdaPvSt11align_val_tRKSt9nothrow_t, (void *address, std::size_t, const void *)) {
    __trellis_free(address);
}
