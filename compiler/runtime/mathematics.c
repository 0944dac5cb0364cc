/* math.h in modes full and heap: functions with a second result.
 *
 * Promises: both results are the library's. It must never let the library write to the program's memory.
 */
#include "wrap.h"

#include <math.h>

#define TWO_RESULTS(type, name, second)                                                                                \
    WRAP(type, name, (type value, second *to)) {                                                                       \
        second native;                                                                                                 \
        type result = name(value, &native);                                                                            \
        put_bytes(to, &native, sizeof native);                                                                         \
        return result;                                                                                                 \
    }
TWO_RESULTS(double, frexp, int)
TWO_RESULTS(float, frexpf, int)
TWO_RESULTS(double, modf, double)
TWO_RESULTS(float, modff, float)
TWO_RESULTS(double, lgamma_r, int)
TWO_RESULTS(float, lgammaf_r, int)

/* A long double has padding that is nobody's to write. */
enum { long_double_bytes = 10 };
WRAP(long double, frexpl, (long double value, int *to)) {
    int native;
    long double result = frexpl(value, &native);
    put_bytes(to, &native, sizeof native);
    return result;
}
WRAP(long double, modfl, (long double value, long double *to)) {
    long double native, result = modfl(value, &native);
    put_bytes(to, &native, long_double_bytes);
    return result;
}

#define REMAINDER(type, name)                                                                                          \
    WRAP(type, name, (type value, type by, int *to)) {                                                                 \
        int native;                                                                                                    \
        type result = name(value, by, &native);                                                                        \
        put_bytes(to, &native, sizeof native);                                                                         \
        return result;                                                                                                 \
    }
REMAINDER(double, remquo)
REMAINDER(float, remquof)

#define SINE_AND_COSINE(type, name)                                                                                    \
    WRAP(void, name, (type value, type *sine, type *cosine)) {                                                         \
        type native[2];                                                                                                \
        name(value, &native[0], &native[1]);                                                                           \
        put_bytes(sine, &native[0], sizeof native[0]);                                                                 \
        put_bytes(cosine, &native[1], sizeof native[1]);                                                               \
    }
SINE_AND_COSINE(double, sincos)
SINE_AND_COSINE(float, sincosf)
