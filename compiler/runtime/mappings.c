/* sys/mman.h in modes full and heap.
 *
 * Promises: what the kernel maps is native memory for translated code, too: a shared mapping of a file changes the
 * file. It must never let a program map over the region.
 */
#include "wrap.h"

#include <sys/mman.h>

/* In mode full every address outside the region is the store's unless it is told otherwise. */
static void *kept(void *mapped, size_t bytes) {
#if TRELLIS_MODE == 1
    if (mapped != MAP_FAILED)
        __trellis_keep_native(mapped, bytes);
#else
    (void)bytes;
#endif
    return mapped;
}

static void outside(const char *function, void *address) {
    if (in_region(address))
        refuse_at_run_time(function, "got an address of the store");
}

WRAP(void *, mmap, (void *address, size_t bytes, int protection, int flags, int descriptor, off_t at)) {
    outside("mmap", address);
    return kept(mmap(address, bytes, protection, flags, descriptor, at), bytes);
}
WRAP(void *, mmap64, (void *address, size_t bytes, int protection, int flags, int descriptor, off_t at)) {
    return wrapped_mmap(address, bytes, protection, flags, descriptor, at);
}
WRAP(void *, mremap, (void *address, size_t old_bytes, size_t bytes, int flags, ...)) {
    va_list list;
    va_start(list, flags);
    void *wanted = flags & MREMAP_FIXED ? va_arg(list, void *) : NULL;
    va_end(list);
    outside("mremap", address);
    outside("mremap", wanted);
    return kept(mremap(address, old_bytes, bytes, flags, wanted), bytes);
}

#define ON_MAPPING(name, parameters, call)                                                                           \
    WRAP(int, name, parameters) {                                                                                    \
        outside(#name, address);                                                                                     \
        return call;                                                                                                 \
    }
ON_MAPPING(munmap, (void *address, size_t bytes), munmap(address, bytes))
ON_MAPPING(mprotect, (void *address, size_t bytes, int protection), mprotect(address, bytes, protection))
ON_MAPPING(msync, (void *address, size_t bytes, int flags), msync(address, bytes, flags))
ON_MAPPING(madvise, (void *address, size_t bytes, int advice), madvise(address, bytes, advice))
