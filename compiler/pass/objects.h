// Mode heap: accesses of a block that lie at constant distances from a few addresses share one check.
//
// Promises: the accesses run without checks where none of these ranges meets the region, and with one check each where
// one does, so that an object that would lie on both sides is handled too; code between them runs once in either
// version. It must never look at an address that the accesses themselves find, or copy what may call or wait.
#pragma once

#include "loops.h"

namespace trellis {

// Adds what needs no check any more to `versions.free`.
void versionObjects(Context &context, llvm::Function &function, Versions &versions);

} // namespace trellis
