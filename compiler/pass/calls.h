// Calls that hide accesses of memory: inline assembly and intrinsics that nothing else translates.
//
// Promises: in word modes whatever might touch translated memory behind the pass' back is refused with its place.
// It must never refuse assembly that provably touches nothing (empty barriers, register-only code, named fences).
#pragma once

#include "context.h"

#include "llvm/IR/IntrinsicInst.h"

namespace trellis {

void inspectAssembly(Context &context, llvm::CallBase *call);
// Word modes: setjmp stays in its frame, and saves the registers in native memory that stands for the program's buffer.
void placeJump(Context &context, llvm::CallBase *call);
void inspectIntrinsic(Context &context, llvm::IntrinsicInst *intrinsic);

} // namespace trellis
