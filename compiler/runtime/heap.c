/* The heap's functions under their names in translated code. In every mode.
 *
 * Promises: what the C standard says of each; sizes that overflow fail with ENOMEM. It must never hand native memory to
 * translated code as if it were the region's.
 */
#include "wrap.h"

#include <errno.h>
#include <malloc.h>
#include <unistd.h>

WRAP(void *, malloc, (size_t bytes)) { return __trellis_malloc(bytes); }
WRAP(void, free, (void *address)) { __trellis_free(address); }
WRAP(void *, calloc, (size_t count, size_t bytes)) { return __trellis_calloc(count, bytes); }
WRAP(void *, realloc, (void *address, size_t bytes)) { return __trellis_realloc(address, bytes); }
WRAP(void *, aligned_alloc, (size_t alignment, size_t bytes)) { return __trellis_aligned_alloc(alignment, bytes); }
WRAP(void *, memalign, (size_t alignment, size_t bytes)) { return __trellis_aligned_alloc(alignment, bytes); }
WRAP(void *, valloc, (size_t bytes)) { return __trellis_aligned_alloc((size_t)sysconf(_SC_PAGESIZE), bytes); }
WRAP(size_t, malloc_usable_size, (void *address)) { return __trellis_malloc_usable_size(address); }
WRAP(void, cfree, (void *address)) { __trellis_free(address); }

WRAP(void *, reallocarray, (void *address, size_t count, size_t bytes)) {
    size_t all;
    if (__builtin_mul_overflow(count, bytes, &all)) {
        errno = ENOMEM;
        return NULL;
    }
    return __trellis_realloc(address, all);
}

WRAP(int, posix_memalign, (void **into, size_t alignment, size_t bytes)) {
    return __trellis_posix_memalign(into, alignment, bytes);
}
