// Translation at the seams of the calling convention (System V x86-64, sections 3.2.3 and 3.5.7).

#include "varargs.h"
#include "access.h"
#include "origin.h"

using namespace llvm;

namespace trellis {

// va_list: gp_offset, fp_offset, overflow_arg_area, reg_save_area.
constexpr uint64_t listBytes = 24, overflowAt = 8, savedAt = 16;
// Six general and eight vector registers.
constexpr uint64_t savedBytes = 176;
constexpr unsigned generalRegisters = 6, vectorRegisters = 8;

// Set by a translated caller just before a variadic call, read by the callee's entry. MemorySanitizer does the same.
static Value *stackedBytesSlot(Context &context, IRBuilder<> &builder) {
  constexpr const char *name = "__trellis_stacked_variadic_bytes";
  auto *variable = context.module.getGlobalVariable(name);
  if (!variable)
    variable = new GlobalVariable(context.module, context.wordType, false, GlobalValue::ExternalLinkage, nullptr, name,
                                  nullptr, GlobalValue::GeneralDynamicTLSModel);
  return builder.CreateThreadLocalAddress(variable);
}

static bool startsList(const Function &function) {
  for (const BasicBlock &block : function)
    for (const Instruction &instruction : block)
      if (isa<VAStartInst>(instruction))
        return true;
  return false;
}

void enterFunction(Context &context, Function &function) {
  if (context.mode != Mode::Full)
    return;
  IRBuilder<> builder(&*function.getEntryBlock().getFirstInsertionPt());
  if (function.isVarArg() && startsList(function)) {
    Value *slot = stackedBytesSlot(context, builder);
    Value *bytes = builder.CreateLoad(context.wordType, slot, "trellis.stacked");
    builder.CreateStore(context.word(0), slot);
    context.stackedBytes = bytes;
  }
  for (Argument &argument : function.args())
    if (argument.hasByValAttr()) {
      uint64_t bytes = context.layout.getTypeAllocSize(argument.getParamByValType());
      context.call(builder, "import", context.voidType, {&argument, context.word(bytes)});
    }
}

void translateVaStart(Context &context, VAStartInst *start, Function &function) {
  Value *list = start->getArgList();
  if (!context.words() || staysNative(context, list)) {
    if (!context.words() && !staysNative(context, list))
      checkLines(context, start, list, listBytes, Align(8), true);
    return;
  }
  IRBuilder<> builder(start);
  Type *type = ArrayType::get(context.wordType, listBytes / 8);
  AllocaInst *native = context.temporary(function, type);
  native->setAlignment(Align(16));
  builder.CreateIntrinsic(Intrinsic::vastart, {context.pointerType}, {native});
  if (context.mode == Mode::Full) {
    auto area = [&](uint64_t at) {
      return builder.CreateLoad(context.pointerType, builder.CreateConstGEP1_64(context.byteType, native, at));
    };
    context.call(builder, "import", context.voidType, {area(savedAt), context.word(savedBytes)});
    assert(context.stackedBytes && "enterFunction read the number of stacked bytes");
    context.call(builder, "import", context.voidType, {area(overflowAt), context.stackedBytes});
  }
  context.call(builder, "store", context.voidType, {list, native, context.word(listBytes)});
  start->eraseFromParent();
}

void translateVaCopy(Context &context, VACopyInst *copy) {
  Value *to = copy->getDest(), *from = copy->getSrc();
  if (staysNative(context, to) && staysNative(context, from))
    return;
  if (!context.words()) {
    checkLines(context, copy, from, listBytes, Align(8), false);
    checkLines(context, copy, to, listBytes, Align(8), true);
    return;
  }
  IRBuilder<> builder(copy);
  context.call(builder, "copy", context.voidType, {to, from, context.word(listBytes)});
  copy->eraseFromParent();
}

// Bytes of variadic arguments that lie on the stack. Fixed arguments come before them and only use up registers.
static uint64_t stackedBytes(const Context &context, const CallBase &call) {
  unsigned general = 0, vectors = 0, fixed = call.getFunctionType()->getNumParams();
  uint64_t bytes = 0;
  for (unsigned at = 0; at < call.arg_size(); ++at) {
    Type *type = call.getArgOperand(at)->getType();
    uint64_t size = context.layout.getTypeAllocSize(type).getFixedValue();
    uint64_t alignment = 8;
    bool stacked = true;
    if (Type *byValue = call.isByValArgument(at) ? call.getParamByValType(at) : nullptr) {
      size = context.layout.getTypeAllocSize(byValue).getFixedValue();
      alignment = std::max<uint64_t>(8, call.getParamAlign(at).valueOrOne().value());
    } else if (type->isX86_FP80Ty()) {
      alignment = 16;
    } else if (type->isFloatingPointTy() || type->isVectorTy()) {
      alignment = std::max<uint64_t>(8, size);
      stacked = ++vectors > vectorRegisters;
    } else {
      alignment = size > 8 ? 16 : 8;
      general += size > 8 ? 2 : 1;
      stacked = general > generalRegisters;
    }
    if (stacked && at >= fixed)
      bytes = alignTo(bytes, alignment) + alignTo(size, 8);
  }
  return bytes;
}

void prepareArguments(Context &context, CallBase *call) {
  for (unsigned at = 0; at < call->arg_size(); ++at) {
    if (!call->isByValArgument(at) || staysNative(context, call->getArgOperand(at)))
      continue;
    Value *object = call->getArgOperand(at);
    Type *type = call->getParamByValType(at);
    uint64_t bytes = context.layout.getTypeAllocSize(type);
    if (!context.words()) {
      checkRange(context, call, object, context.word(bytes), false);
      continue;
    }
    if (call->isMustTailCall()) {
      context.refuse(*call, "a call in tail position that must pass a parameter by value cannot be translated; "
                            "use --mode line");
      continue;
    }
    // Two parameters of one type need two copies, so this is no shared temporary.
    IRBuilder<> entry(&*call->getFunction()->getEntryBlock().getFirstInsertionPt());
    AllocaInst *copy = entry.CreateAlloca(type, nullptr, "trellis.byval");
    copy->setAlignment(std::max(call->getParamAlign(at).valueOrOne(), copy->getAlign()));
    IRBuilder<> builder(call);
    context.call(builder, "load", context.voidType, {object, copy, context.word(bytes)});
    call->setArgOperand(at, copy);
    if (auto *direct = dyn_cast<CallInst>(call))
      direct->setTailCallKind(CallInst::TCK_NoTail);
  }
  if (context.mode != Mode::Full || !call->getFunctionType()->isVarArg() || call->isMustTailCall())
    return;
  if (uint64_t bytes = stackedBytes(context, *call)) {
    IRBuilder<> builder(call);
    builder.CreateStore(context.word(bytes), stackedBytesSlot(context, builder));
  }
}

// Whether every use is a plain access of this very function.
static bool onlyAccessed(const Value *address) {
  for (const User *user : address->users()) {
    if (isa<LoadInst>(user))
      continue;
    if (auto *store = dyn_cast<StoreInst>(user); store && store->getValueOperand() != address)
      continue;
    if (isa<GetElementPtrInst>(user) && onlyAccessed(user))
      continue;
    return false;
  }
  return true;
}

void keepThreadLocal(Context &context, IntrinsicInst *address) {
  if (context.mode != Mode::Full || onlyAccessed(address))
    return;
  auto *variable = dyn_cast<GlobalVariable>(address->getArgOperand(0)->stripPointerCasts());
  if (!variable || variable->getName().starts_with("__trellis_"))
    return;
  uint64_t bytes = context.layout.getTypeAllocSize(variable->getValueType());
  IRBuilder<> builder(address->getNextNode());
  builder.SetCurrentDebugLocation(address->getDebugLoc());
  context.call(builder, "keep_native", context.voidType, {address, context.word(bytes)});
}

} // namespace trellis
