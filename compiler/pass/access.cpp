// Translation of plain loads and stores, and the inline check of lines.

#include "access.h"

#include "llvm/Transforms/Utils/BasicBlockUtils.h"

using namespace llvm;

namespace trellis {

void substitute(Context &context, Instruction *instruction, Emit condition, Emit translated) {
  IRBuilder<> builder(instruction);
  if (context.mode == Mode::Full) {
    Value *value = translated(builder);
    if (value)
      instruction->replaceAllUsesWith(value);
    instruction->eraseFromParent();
    return;
  }
  Value *there = condition(builder);
  Instruction *storeSide = nullptr, *nativeSide = nullptr;
  SplitBlockAndInsertIfThenElse(there, instruction, &storeSide, &nativeSide, context.unlikely());
  BasicBlock *after = instruction->getParent();
  IRBuilder<> slow(storeSide);
  slow.SetCurrentDebugLocation(instruction->getDebugLoc());
  Value *value = translated(slow);
  instruction->moveBefore(nativeSide);
  if (!value || instruction->use_empty())
    return;
  PHINode *either = PHINode::Create(instruction->getType(), 2, "", after->begin());
  either->setDebugLoc(instruction->getDebugLoc());
  instruction->replaceAllUsesWith(either);
  either->addIncoming(value, storeSide->getParent());
  either->addIncoming(instruction, nativeSide->getParent());
}

// 1, 2, 4 or 8 when a value of this type is one word without padding; else 0.
static unsigned wordBytes(const Context &context, Type *type) {
  if (!type->isSingleValueType() || type->isX86_FP80Ty() || type->isX86_MMXTy())
    return 0;
  uint64_t bytes = context.storeBytes(type);
  if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)
    return 0;
  bool integer = type->isIntegerTy();
  if (!integer && context.layout.getTypeSizeInBits(type).getFixedValue() != bytes * 8)
    return 0;
  if (auto *vector = dyn_cast<VectorType>(type); vector && vector->getElementType()->isPointerTy())
    return 0;
  return bytes;
}

static Value *toInteger(Context &context, IRBuilder<> &builder, Value *value, unsigned bytes) {
  Type *type = value->getType();
  Type *integer = builder.getIntNTy(bytes * 8);
  if (type->isPointerTy())
    return builder.CreatePtrToInt(value, integer);
  if (type->isIntegerTy())
    return builder.CreateZExt(value, integer);
  return builder.CreateBitCast(value, integer);
}

static Value *fromInteger(Context &context, IRBuilder<> &builder, Value *integer, Type *type) {
  if (type->isPointerTy())
    return builder.CreateIntToPtr(integer, type);
  if (type->isIntegerTy())
    return builder.CreateTrunc(integer, type);
  return builder.CreateBitCast(integer, type);
}

Value *toWord(Context &context, IRBuilder<> &builder, Value *value) {
  unsigned bytes = context.storeBytes(value->getType());
  return builder.CreateZExt(toInteger(context, builder, value, bytes), context.wordType);
}

Value *fromWord(Context &context, IRBuilder<> &builder, Value *word, Type *type) {
  unsigned bytes = context.storeBytes(type);
  return fromInteger(context, builder, builder.CreateTrunc(word, builder.getIntNTy(bytes * 8)), type);
}

// Pointers and floating-point numbers have entrances of their own (compiler/runtime/entrances.c), so that no
// instruction is spent on converting them.
static StringRef ownEntrance(Type *type) {
  if (type->isPointerTy() && type->getPointerAddressSpace() == 0)
    return "pointer";
  if (type->isDoubleTy())
    return "double";
  return type->isFloatTy() ? "float" : "";
}

Value *loadWords(Context &context, IRBuilder<> &builder, Type *type, Value *address) {
  if (StringRef entrance = ownEntrance(type); !entrance.empty())
    return context.call(builder, ("load_" + entrance).str(), type, {address});
  if (unsigned bytes = wordBytes(context, type)) {
    Value *integer =
        context.call(builder, ("load_" + Twine(bytes)).str(), builder.getIntNTy(bytes * 8), {address});
    return fromInteger(context, builder, integer, type);
  }
  AllocaInst *native = context.temporary(*builder.GetInsertBlock()->getParent(), type);
  context.call(builder, "load", context.voidType, {address, native, context.word(context.storeBytes(type))});
  return builder.CreateLoad(type, native);
}

void storeWords(Context &context, IRBuilder<> &builder, Value *value, Value *address) {
  Type *type = value->getType();
  if (StringRef entrance = ownEntrance(type); !entrance.empty()) {
    context.call(builder, ("store_" + entrance).str(), context.voidType, {address, value});
    return;
  }
  if (unsigned bytes = wordBytes(context, type)) {
    Value *integer = toInteger(context, builder, value, bytes);
    context.call(builder, ("store_" + Twine(bytes)).str(), context.voidType, {address, integer});
    return;
  }
  AllocaInst *native = context.temporary(*builder.GetInsertBlock()->getParent(), type);
  builder.CreateStore(value, native);
  context.call(builder, "store", context.voidType, {address, native, context.word(context.storeBytes(type))});
}

void translateLoad(Context &context, LoadInst *load) {
  Value *address = load->getPointerOperand();
  load->setMetadata(LLVMContext::MD_invariant_load, nullptr);
  if (!context.words())
    return checkLines(context, load, address, context.storeBytes(load->getType()), load->getAlign(), false);
  substitute(
      context, load, [&](IRBuilder<> &builder) { return context.inRegion(builder, address); },
      [&](IRBuilder<> &builder) { return loadWords(context, builder, load->getType(), address); });
}

void translateStore(Context &context, StoreInst *store) {
  Value *address = store->getPointerOperand();
  Value *value = store->getValueOperand();
  if (!context.words())
    return checkLines(context, store, address, context.storeBytes(value->getType()), store->getAlign(), true);
  substitute(
      context, store, [&](IRBuilder<> &builder) { return context.inRegion(builder, address); },
      [&](IRBuilder<> &builder) -> Value * {
        storeWords(context, builder, value, address);
        return nullptr;
      });
}

// The table seen from address zero, so that the number of a line is one shift of the address.
static Value *stateOf(Context &context, IRBuilder<> &builder, Value *address) {
  constexpr uint64_t zero = TRELLIS_LINE_STATES - (TRELLIS_REGION_BASE >> TRELLIS_LINE_SHIFT);
  Value *table = ConstantExpr::getIntToPtr(context.word(zero), context.pointerType);
  Value *at = builder.CreateGEP(context.byteType, table, builder.CreateLShr(address, TRELLIS_LINE_SHIFT));
  return builder.CreateLoad(context.byteType, at, "trellis.state");
}

void checkLines(Context &context, Instruction *instruction, Value *address, uint64_t bytes, Align alignment,
                bool write) {
  if (bytes == 0)
    return;
  // Two ends are enough for what touches at most two lines.
  if (bytes > TRELLIS_LINE_BYTES)
    return checkRange(context, instruction, address, context.word(bytes), write);
  IRBuilder<> builder(instruction);
  Value *there = context.inRegion(builder, address);
  Instruction *inside = SplitBlockAndInsertIfThen(there, instruction, false);
  IRBuilder<> look(inside);
  look.SetCurrentDebugLocation(instruction->getDebugLoc());
  Value *number = look.CreatePtrToInt(address, context.wordType);
  Value *state = stateOf(context, look, number);
  // A power of two at an alignment of at least its size lies in one line.
  bool oneLine = alignment.value() >= TRELLIS_LINE_BYTES || (isPowerOf2_64(bytes) && alignment.value() >= bytes);
  if (!oneLine) {
    Value *last = stateOf(context, look, look.CreateAdd(number, context.word(bytes - 1)));
    state = look.CreateAnd(state, last);
  }
  uint8_t bit = write ? TRELLIS_LINE_WRITABLE : TRELLIS_LINE_READABLE;
  Value *missing = look.CreateICmpEQ(look.CreateAnd(state, bit), ConstantInt::get(context.byteType, 0));
  Instruction *miss = SplitBlockAndInsertIfThen(missing, inside, false, context.unlikely());
  IRBuilder<> slow(miss);
  slow.SetCurrentDebugLocation(instruction->getDebugLoc());
  context.call(slow, write ? "line_write" : "line_read", context.voidType, {address, context.word(bytes)});
}

void checkRange(Context &context, Instruction *instruction, Value *address, Value *bytes, bool write) {
  IRBuilder<> builder(instruction);
  Value *there = context.inRegion(builder, address);
  Instruction *inside = SplitBlockAndInsertIfThen(there, instruction, false);
  IRBuilder<> slow(inside);
  slow.SetCurrentDebugLocation(instruction->getDebugLoc());
  Value *length = slow.CreateZExtOrTrunc(bytes, context.wordType);
  context.call(slow, write ? "line_write" : "line_read", context.voidType, {address, length});
}

} // namespace trellis
