// Loops in two versions: one whose accesses are known to need no check, and one with checks.
//
// Promises: which version runs is decided before the loop (or before a whole nest of loops), by the ranges of addresses
// that its accesses can reach; the version without checks runs only where no address of these ranges is of the region,
// or, in mode line, where every line of them is ready. Functions that are not optimised, or optimised for size, stay as
// they are. It must never leave out the check of an access whose range is not known, or, in mode line, keep the answer
// about lines over anything that takes lines away on behalf of this thread (a call, a fence, an atomic).
//
// In mode line the answer can be out of date at once, because other threads evict. That is so for the check of a single
// access too: a state never is what makes an access right, the kernel's page protection is.
#pragma once

#include "context.h"

#include "llvm/ADT/SmallPtrSet.h"

namespace trellis {

struct Versions {
  llvm::SmallPtrSet<const llvm::Instruction *, 32> free;   // accesses that need no check any more
  llvm::SmallPtrSet<const llvm::BasicBlock *, 32> checked; // of versions that run where something may be of the region
};

// Whether a function is worth more code.
bool isToBeFast(const llvm::Function &function);

// A load or store that the pass has to look at and that is neither atomic nor volatile.
bool isPlainAccess(const Context &context, llvm::Instruction &instruction);

Versions versionLoops(Context &context, llvm::Function &function);

} // namespace trellis
