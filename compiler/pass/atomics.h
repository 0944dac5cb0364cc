// Atomic loads, stores, updates, compare-and-exchange, and fences.
//
// Promises: in word modes every atomic access of 1, 2, 4 or 8 bytes that may touch the region is one call that is at
// least as strong as its ordering; operations that the store does not have are loops over compare-and-exchange. In mode
// `line` atomics stay what they are, on a line that is writable: they order the threads of one process.
// It must never split an atomic access. Wider ones are refused with their place.
#pragma once

#include "context.h"

namespace trellis {

void translateAtomicLoad(Context &context, llvm::LoadInst *load);
void translateAtomicStore(Context &context, llvm::StoreInst *store);
void translateUpdate(Context &context, llvm::AtomicRMWInst *update);
void translateCompareExchange(Context &context, llvm::AtomicCmpXchgInst *exchange);
void translateFence(Context &context, llvm::FenceInst *fence);

} // namespace trellis
