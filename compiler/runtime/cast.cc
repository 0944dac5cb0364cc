// dynamic_cast in modes full and heap: the object's vtable pointers are in the store, so the library's own
// __dynamic_cast, which reads them with plain instructions, cannot be used.
//
// Promises: the rules of the C++ standard (a unique public base of the target's kind, down or across), by a walk over
// the type information (Itanium C++ ABI, 2.9.5), which is native. Must never: read an object but its vtable pointers.
#include "wrap.h"

#include <cxxabi.h>

using Type = abi::__class_type_info;

namespace {
// The program's vtable pointer at a subobject; vtables themselves are constants and native.
const char *vtable_at(const char *object) {
    const char *table;
    get_bytes(object, &table, sizeof table);
    return table;
}

bool same(const Type *one, const Type *other) { return *one == *other; }

struct Walk {
    const char *source;
    const Type *source_type;
    const Type *target_type;
    // Subobjects of the target's type that have the source as a public base, and those that are public in the whole.
    const char *down = nullptr, *across = nullptr;
    unsigned downs = 0, acrosses = 0;
    bool source_is_public = false;

    // `target` is the subobject of the target's type that this path last came through, `open` whether all steps since
    // then were public; `visible` whether all steps since the whole were.
    void visit(const char *at, const Type *type, const char *target, bool open, bool visible) {
        if (same(type, target_type)) {
            target = at;
            open = true;
            if (visible) note(across, acrosses, at);
        }
        if (at == source && same(type, source_type)) {
            if (target && open) note(down, downs, target);
            source_is_public |= visible;
        }
        bases(at, type, [&](const char *base, const Type *base_type, bool is_public) {
            visit(base, base_type, target, open && is_public, visible && is_public);
        });
    }

private:
    static void note(const char *&where, unsigned &count, const char *at) {
        if (where == at) return;
        where = at;
        count++;
    }

    template <class Function> static void bases(const char *at, const Type *type, Function function) {
        if (auto *single = dynamic_cast<const abi::__si_class_type_info *>(type)) {
            function(at, single->__base_type, true);
        } else if (auto *several = dynamic_cast<const abi::__vmi_class_type_info *>(type)) {
            for (unsigned i = 0; i < several->__base_count; i++) {
                const abi::__base_class_type_info &base = several->__base_info[i];
                ptrdiff_t offset = base.__offset();
                if (base.__is_virtual_p()) offset = *reinterpret_cast<const ptrdiff_t *>(vtable_at(at) + offset);
                function(at + offset, base.__base_type, base.__is_public_p());
            }
        }
    }
};
} // namespace

extern "C" void *wrapped_dynamic_cast(const void *, const Type *, const Type *, ptrdiff_t) __asm__(
    "__dynamic_cast" TRELLIS_SUFFIX) __attribute__((weak));

void *wrapped_dynamic_cast(const void *source, const Type *source_type, const Type *target_type, ptrdiff_t) {
    const char *table = vtable_at(static_cast<const char *>(source));
    // Before the address point: the type information, and before that the way to the whole object.
    const Type *whole_type = reinterpret_cast<const Type *const *>(table)[-1];
    const char *whole = static_cast<const char *>(source) + reinterpret_cast<const ptrdiff_t *>(table)[-2];
    Walk walk{static_cast<const char *>(source), source_type, target_type};
    walk.visit(whole, whole_type, nullptr, false, true);
    if (walk.downs == 1) return const_cast<char *>(walk.down);
    if (walk.downs == 0 && walk.source_is_public && walk.acrosses == 1) return const_cast<char *>(walk.across);
    return nullptr;
}
