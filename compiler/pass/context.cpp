// Shared state of one run of the pass; the header says what it promises.

#include "context.h"

#include "llvm/IR/Constants.h"
#include "llvm/IR/DebugLoc.h"
#include "llvm/IR/DebugInfoMetadata.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/Demangle/Demangle.h"

using namespace llvm;

namespace trellis {

StringRef nameOf(Mode mode) {
  switch (mode) {
  case Mode::Full:
    return "full";
  case Mode::Heap:
    return "heap";
  case Mode::Line:
    return "line";
  }
  llvm_unreachable("a mode without a name");
}

Context::Context(Module &module, Mode mode, const Lists &lists)
    : module(module), llvm(module.getContext()), layout(module.getDataLayout()), mode(mode), lists(lists),
      voidType(Type::getVoidTy(llvm)), byteType(Type::getInt8Ty(llvm)), intType(Type::getInt32Ty(llvm)),
      wordType(Type::getInt64Ty(llvm)), pointerType(PointerType::getUnqual(llvm)) {}

FunctionCallee Context::runtime(StringRef name, Type *result, ArrayRef<Type *> parameters) {
  FunctionType *type = FunctionType::get(result, parameters, false);
  FunctionCallee callee = module.getOrInsertFunction(("__trellis_" + name).str(), type);
  if (auto *function = dyn_cast<Function>(callee.getCallee())) {
    function->setDoesNotThrow();
    // C promises that narrow integers arrive extended; clang relies on it on both sides.
    for (unsigned at = 0; at < parameters.size(); ++at)
      if (parameters[at]->isIntegerTy() && parameters[at]->getIntegerBitWidth() < 32)
        function->addParamAttr(at, Attribute::ZExt);
  }
  return callee;
}

CallInst *Context::call(IRBuilder<> &builder, StringRef name, Type *result, ArrayRef<Value *> arguments) {
  SmallVector<Type *, 4> types;
  for (Value *argument : arguments)
    types.push_back(argument->getType());
  FunctionCallee callee = runtime(name, result, types);
  CallInst *call = builder.CreateCall(callee, arguments);
  if (auto *function = dyn_cast<Function>(callee.getCallee()))
    call->setAttributes(function->getAttributes());
  return call;
}

AllocaInst *Context::temporary(Function &function, Type *type) {
  AllocaInst *&slot = temporaries[type];
  if (!slot) {
    IRBuilder<> builder(&*function.getEntryBlock().getFirstInsertionPt());
    slot = builder.CreateAlloca(type, nullptr, "trellis.native");
  }
  return slot;
}

ConstantInt *Context::word(uint64_t value) const { return ConstantInt::get(cast<IntegerType>(wordType), value); }

Value *Context::inRegion(IRBuilder<> &builder, Value *pointer) {
  Type *type = wordType;
  if (auto *vector = dyn_cast<FixedVectorType>(pointer->getType()))
    type = FixedVectorType::get(wordType, vector->getNumElements());
  static_assert(isPowerOf2_64(TRELLIS_REGION_SPAN) && TRELLIS_REGION_BASE % TRELLIS_REGION_SPAN == 0,
                "the upper bits of an address say whether it is in the region");
  Value *address = builder.CreatePtrToInt(pointer, type);
  Value *upper = builder.CreateLShr(address, ConstantInt::get(type, Log2_64(TRELLIS_REGION_SPAN)));
  return builder.CreateICmpEQ(upper, ConstantInt::get(type, TRELLIS_REGION_BASE / TRELLIS_REGION_SPAN));
}

MDNode *Context::unlikely() { return MDBuilder(llvm).createUnlikelyBranchWeights(); }

void Context::refuse(const Instruction &instruction, const Twine &fact) {
  const Function &function = *instruction.getFunction();
  std::string place = module.getSourceFileName();
  if (const DebugLoc &location = instruction.getDebugLoc()) {
    const DILocation *outermost = location.get();
    place = (outermost->getFilename() + ":" + Twine(outermost->getLine()) + ":" + Twine(outermost->getColumn())).str();
  }
  // The context keeps the message only for the call, as all its diagnostics.
  llvm.emitError(Twine(place) + ": in function `" + demangle(function.getName().split(".trellis_").first) +
                 "`: " + fact);
}

} // namespace trellis
