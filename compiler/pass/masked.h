// Masked vector loads and stores, gathers and scatters, which the vectoriser makes at -O3 -march=native.
//
// Promises: a lane whose mask bit is off is never touched; in word modes each lane that is on is one word access.
// It must never leave a masked operation on memory that may be in the region.
#pragma once

#include "context.h"

#include "llvm/IR/IntrinsicInst.h"

namespace trellis {

// Translates `intrinsic` when it is a masked operation; false when it is another intrinsic.
bool translateMasked(Context &context, llvm::IntrinsicInst *intrinsic);

} // namespace trellis
