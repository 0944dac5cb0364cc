// What every part of the pass shares: the module, the mode, the runtime's functions, and how a refusal is said.
//
// Promises: a refusal names file, line and function (the source file and the function when there are no debug
// locations) and makes the compiler fail; declarations of runtime functions appear only in modules that call them.
// It must never change the module by itself.
#pragma once

#include "lists.h"
#include "trellis/compiled.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/IR/DataLayout.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/Module.h"

namespace trellis {

enum class Mode { Full = TRELLIS_MODE_FULL, Heap = TRELLIS_MODE_HEAP, Line = TRELLIS_MODE_LINE };

// The word for a mode on command lines, in messages and in names of symbols.
llvm::StringRef nameOf(Mode mode);

class Context {
public:
  Context(llvm::Module &module, Mode mode, const Lists &lists);

  llvm::Module &module;
  llvm::LLVMContext &llvm;
  const llvm::DataLayout &layout;
  const Mode mode;
  const Lists &lists;

  llvm::Type *const voidType;
  llvm::Type *const byteType;
  llvm::Type *const intType;
  llvm::Type *const wordType;
  llvm::Type *const pointerType;

  // Words are modes `full` and `heap`: what is translated goes to the store by calls.
  bool words() const { return mode != Mode::Line; }

  // The runtime's function `__trellis_NAME`, declared on first use. It may throw nothing.
  llvm::FunctionCallee runtime(llvm::StringRef name, llvm::Type *result, llvm::ArrayRef<llvm::Type *> parameters);
  llvm::CallInst *call(llvm::IRBuilder<> &builder, llvm::StringRef name, llvm::Type *result,
                       llvm::ArrayRef<llvm::Value *> arguments);

  // Native memory of the function's frame, one piece for each type; valid until the next use for that type.
  llvm::AllocaInst *temporary(llvm::Function &function, llvm::Type *type);
  // Of the function that is being translated: how many bytes of variadic arguments its caller put on the stack.
  llvm::Value *stackedBytes = nullptr;
  void beginFunction() {
    temporaries.clear();
    stackedBytes = nullptr;
  }

  uint64_t storeBytes(llvm::Type *type) const { return layout.getTypeStoreSize(type).getFixedValue(); }
  llvm::ConstantInt *word(uint64_t value) const;

  // `(pointer - BASE) < SPAN`, by the upper bits (no large constant, nothing for loop strength reduction to copy);
  // lane by lane for a vector of pointers.
  llvm::Value *inRegion(llvm::IRBuilder<> &builder, llvm::Value *pointer);
  // Weights that say: the region is the unlikely side of a check.
  llvm::MDNode *unlikely();

  // Says that `instruction` cannot be translated. Compilation goes on to find more and then fails.
  void refuse(const llvm::Instruction &instruction, const llvm::Twine &fact);

private:
  llvm::DenseMap<llvm::Type *, llvm::AllocaInst *> temporaries;
};

} // namespace trellis
