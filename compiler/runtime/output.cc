// std::cout and its like in modes full and heap: what programs usually print.
//
// Promises: the streams are the library's own objects and its own code formats; only texts come from the program's
// memory. Must never: take a stream that lies in the store; that ends the process with a sentence.
#include "wrap.h"

#include <iostream>

#define WRAP_CXX(result, symbol, parameters)                                                                           \
    extern "C" result wrapped_##symbol parameters __asm__(#symbol TRELLIS_SUFFIX) __attribute__((weak));               \
    result wrapped_##symbol parameters

static std::ostream &native(std::ostream *stream) {
    if (in_region(stream)) refuse_at_run_time("a stream", "cannot lie in the store");
    return *stream;
}

#define INSERT(symbol, type)                                                                                           \
    WRAP_CXX(std::ostream *, symbol, (std::ostream * stream, type value)) { return &(native(stream) << value); }
INSERT(_ZNSolsEb, bool)
INSERT(_ZNSolsEs, short)
INSERT(_ZNSolsEt, unsigned short)
INSERT(_ZNSolsEi, int)
INSERT(_ZNSolsEj, unsigned)
INSERT(_ZNSolsEl, long)
INSERT(_ZNSolsEm, unsigned long)
INSERT(_ZNSolsEx, long long)
INSERT(_ZNSolsEy, unsigned long long)
INSERT(_ZNSolsEf, float)
INSERT(_ZNSolsEd, double)
INSERT(_ZNSolsEe, long double)
INSERT(_ZNSolsEPKv, const void *)
INSERT(_ZStlsISt11char_traitsIcEERSt13basic_ostreamIcT_ES5_c, char)
INSERT(_ZStlsISt11char_traitsIcEERSt13basic_ostreamIcT_ES5_a, signed char)
INSERT(_ZStlsISt11char_traitsIcEERSt13basic_ostreamIcT_ES5_h, unsigned char)

// A manipulator is translated code (or std::endl below) that gets the stream.
WRAP_CXX(std::ostream *, _ZNSolsEPFRSoS_E, (std::ostream * stream, std::ostream *(*manipulator)(std::ostream *))) {
    return manipulator(&native(stream));
}
WRAP_CXX(std::ostream *, _ZSt4endlIcSt11char_traitsIcEERSt13basic_ostreamIT_T0_ES6_, (std::ostream * stream)) {
    return &std::endl(native(stream));
}
WRAP_CXX(std::ostream *, _ZSt5flushIcSt11char_traitsIcEERSt13basic_ostreamIT_T0_ES6_, (std::ostream * stream)) {
    return &native(stream).flush();
}
WRAP_CXX(std::ostream *, _ZNSo5flushEv, (std::ostream * stream)) { return &native(stream).flush(); }
WRAP_CXX(std::ostream *, _ZNSo3putEc, (std::ostream * stream, char character)) {
    return &native(stream).put(character);
}

WRAP_CXX(std::ostream *, _ZNSo5writeEPKcl, (std::ostream * stream, const char *text, std::streamsize length)) {
    struct piece piece;
    native(stream).write(static_cast<const char *>(take(&piece, text, static_cast<size_t>(length))), length);
    drop(&piece);
    return stream;
}
WRAP_CXX(std::ostream *, _ZSt16__ostream_insertIcSt11char_traitsIcEERSt13basic_ostreamIT_T0_ES6_PKS3_l,
         (std::ostream * stream, const char *text, std::streamsize length)) {
    struct piece piece;
    const auto *bytes = static_cast<const char *>(take(&piece, text, static_cast<size_t>(length)));
    std::__ostream_insert(native(stream), bytes, length);
    drop(&piece);
    return stream;
}
WRAP_CXX(std::ostream *, _ZStlsISt11char_traitsIcEERSt13basic_ostreamIcT_ES5_PKc,
         (std::ostream * stream, const char *text)) {
    struct piece piece;
    native(stream) << take_string(&piece, text);
    drop(&piece);
    return stream;
}
WRAP_CXX(std::ostream *,
         _ZStlsIcSt11char_traitsIcESaIcEERSt13basic_ostreamIT_T0_ES7_RKNSt7__cxx1112basic_stringIS4_S5_T1_EE,
         (std::ostream * stream, const void *string)) {
    struct {
        const char *at;
        std::streamsize length;
    } head;
    get_bytes(string, &head, sizeof head);
    return wrapped__ZSt16__ostream_insertIcSt11char_traitsIcEERSt13basic_ostreamIT_T0_ES6_PKS3_l(stream, head.at,
                                                                                                 head.length);
}
