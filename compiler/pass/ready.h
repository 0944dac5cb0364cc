// Questions about a whole range of addresses, answered before a loop.
//
// Promises: true only where no byte from `first` to `last` (inclusive) is of the region, or where every line of them is
// ready; the table of states is never looked at beyond the region. It must never ask for lines, or wait.
#pragma once

#include "context.h"

namespace trellis {

// No byte of the range is of the region. `last - first` must not wrap around.
llvm::Value *isOutside(Context &context, llvm::IRBuilder<> &builder, llvm::Value *first, llvm::Value *last);
// The same for a length in bytes that is known now; at least 1, and small.
llvm::Value *isOutside(Context &context, llvm::IRBuilder<> &builder, llvm::Value *last, uint64_t bytes);

// The same, or the range is wholly in the region, has at most `bytes_max` bytes, and each of its lines has the bit.
llvm::Value *areReady(Context &context, llvm::IRBuilder<> &builder, llvm::Value *first, llvm::Value *last,
                      llvm::Value *bytes_max, bool write);

} // namespace trellis
