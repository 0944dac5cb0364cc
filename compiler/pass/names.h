// Names of functions: how translated code finds translated code, and nothing else.
//
// In word modes every translated function, and every reference to a function that is not known to be native, gets the
// suffix `.trellis_MODE`. So a call of code that was not compiled for this mode does not link, and the linker can never
// put an untranslated copy of an inline function (or of its vtable) in the place of a translated one. Wrappers of
// library functions are weak symbols with the same suffix in the runtime archive: a program's own `getline` wins.
// In mode `line` untranslated code is welcome, so only the functions of the heap get the suffix.
//
// Promises: `main` keeps its name; a strong definition with the name of a native function stays reachable under it.
// It must never rename a variable that untranslated code and translated code must share.
#pragma once

#include "context.h"

namespace trellis {

// Word modes, before anything is inlined: inline copies of what the runtime archive provides, and of what is refused,
// become plain references; so do inline copies of native functions that a header of the library has.
void dropProvided(llvm::Module &module, const Lists &lists);

void settleNames(Context &context);

// Drops what was promised about memory, threads and termination, on definitions, declarations and calls: a load may now
// be a remote call.
void forgetPromises(Context &context);

} // namespace trellis
