// Loads and stores of every width and type.
//
// Promises: a translated access moves exactly the bytes of the type's store size, in one call where the type has 1, 2,
// 4 or 8 bytes, else through native memory of the frame; in mode `line` the access stays and a check stands before it.
// It must never leave an access that may touch the region without a call or a check, or touch bytes beyond the type.
#pragma once

#include "context.h"

#include "llvm/ADT/STLFunctionalExtras.h"

namespace trellis {

using Emit = llvm::function_ref<llvm::Value *(llvm::IRBuilder<> &)>;

// Puts `translated` in the place of `instruction`; in mode `heap` only where `condition` holds, else the instruction
// runs as it was. Both may add blocks. `translated` returns the value, or null for an instruction without one.
void substitute(Context &context, llvm::Instruction *instruction, Emit condition, Emit translated);

// A value of `type` from the store, and into it. The address may be anywhere that the mode allows.
llvm::Value *loadWords(Context &context, llvm::IRBuilder<> &builder, llvm::Type *type, llvm::Value *address);
void storeWords(Context &context, llvm::IRBuilder<> &builder, llvm::Value *value, llvm::Value *address);

// `value` as a 64-bit word, zero-extended, and back; only for types of at most 8 bytes without padding.
llvm::Value *toWord(Context &context, llvm::IRBuilder<> &builder, llvm::Value *value);
llvm::Value *fromWord(Context &context, llvm::IRBuilder<> &builder, llvm::Value *word, llvm::Type *type);

void translateLoad(Context &context, llvm::LoadInst *load);
void translateStore(Context &context, llvm::StoreInst *store);

// Mode line: makes the lines of `bytes` at `address` readable or writable before `instruction` runs.
void checkLines(Context &context, llvm::Instruction *instruction, llvm::Value *address, uint64_t bytes,
                llvm::Align alignment, bool write);
// The same for a length that is known only at run time.
void checkRange(Context &context, llvm::Instruction *instruction, llvm::Value *address, llvm::Value *bytes, bool write);

} // namespace trellis
