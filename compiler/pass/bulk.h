// Memory intrinsics: copy, move and fill, with constant and with variable lengths.
//
// Promises: what may touch the region goes through the runtime (words) or is checked on all its lines (line); what is
// provably private stays. It must never leave an intrinsic that a later step could turn into plain accesses of the
// region.
#pragma once

#include "context.h"

#include "llvm/IR/IntrinsicInst.h"

namespace trellis {

void translateBulk(Context &context, llvm::AnyMemIntrinsic *intrinsic);

} // namespace trellis
