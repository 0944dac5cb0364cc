/* Mode full: what libraries keep in their own variables stays where their plain instructions find it.
 *
 * Promises: after the start, the writable data of every loaded object that has no translated code of its own is native
 * for translated code, too (`stdout`, `environ`, `std::cout`). It must never touch the program's own data.
 */
#include "wrap.h"

#include <link.h>

/* Translated objects carry a start object; so each of them has its own copy of this function's address in it. */
static int keep_one(struct dl_phdr_info *info, size_t size, void *own) {
    (void)size;
    bool translated = false;
    for (int at = 0; at < info->dlpi_phnum; at++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[at];
        uintptr_t start = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && (uintptr_t)own - start < part->p_memsz)
            translated = true;
    }
    if (translated || !info->dlpi_name[0])
        return 0;
    /* What the loader made read-only again lies at the start of the writable part; nobody writes it any more. */
    uintptr_t closed_end = 0;
    for (int at = 0; at < info->dlpi_phnum; at++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[at];
        if (part->p_type == PT_GNU_RELRO)
            closed_end = info->dlpi_addr + part->p_vaddr + part->p_memsz;
    }
    for (int at = 0; at < info->dlpi_phnum; at++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[at];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_W))
            continue;
        uintptr_t start = info->dlpi_addr + part->p_vaddr, end = start + part->p_memsz;
        if (closed_end > start && closed_end <= end)
            start = closed_end;
        __trellis_keep_native((void *)start, end - start);
    }
    return 0;
}

TRELLIS_HIDDEN void __trellis_keep_libraries_native(void) {
    dl_iterate_phdr(keep_one, (void *)__trellis_keep_libraries_native);
}

/* How many bytes of variadic arguments a translated caller put on the stack. Shared by all translated objects. */
__thread uint64_t __trellis_stacked_variadic_bytes __attribute__((visibility("default")));
