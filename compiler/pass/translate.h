// Translates a module: everything in the right order.
//
// Promises: afterwards no instruction of the module can touch the region with plain instructions unless a check allowed
// it (line), decided against it (heap), or the object provably lies elsewhere; or the module has an error.
// It must never run twice on one module, or skip a function because it is not optimised.
#pragma once

#include "context.h"

namespace trellis {

// `countFile` is where the instruction counts go; empty for none. False when the module was translated before.
bool translate(llvm::Module &module, Mode mode, const Lists &lists, llvm::StringRef countFile);

} // namespace trellis
