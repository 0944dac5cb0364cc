/* The constructor of every program and shared library that `trellis cc` links.
 *
 * Promises: the runtime hears the mode before any translated code runs, also before the program's own constructors.
 * It must never have settings of its own; libtrellis knows where they come from.
 */
#include "trellis/compiled.h"
#include "trellis/stored.h"

static const struct trellis_compiled_program program = {
    .abi = TRELLIS_COMPILED_ABI,
    .mode = TRELLIS_MODE,
    .version = "trellis cc",
};

__attribute__((constructor(101))) static void start(void) {
    __trellis_start(&program);
#if TRELLIS_MODE == 1
    extern void __trellis_keep_libraries_native(void) __attribute__((visibility("hidden")));
    __trellis_keep_libraries_native();
#endif
}
