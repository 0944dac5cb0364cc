// Variadic functions, parameters passed by value, and thread-locals whose address is taken: places where plain
// instructions of the calling convention and translated ones meet.
//
// Promises: a va_list may lie anywhere; a caller's copy of a parameter passed by value holds what the store holds, and
// the callee of mode `full` sees that copy; in mode `full` the saved registers and stacked arguments of a variadic
// function are what the caller passed, never what the store still holds from an older frame.
// It must never forget bytes of the caller's frame that are not arguments.
#pragma once

#include "context.h"

#include "llvm/IR/IntrinsicInst.h"

namespace trellis {

// Mode full, once for each function, before its instructions are translated.
void enterFunction(Context &context, llvm::Function &function);

void translateVaStart(Context &context, llvm::VAStartInst *start, llvm::Function &function);
void translateVaCopy(Context &context, llvm::VACopyInst *copy);

// Parameters passed by value, and in mode `full` the number of stacked variadic bytes.
void prepareArguments(Context &context, llvm::CallBase *call);

// Mode full: a thread-local whose address goes elsewhere is kept native.
void keepThreadLocal(Context &context, llvm::IntrinsicInst *address);

} // namespace trellis
