// Translation of atomics; the header says how strong they are.

#include "atomics.h"
#include "access.h"

#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/LowerAtomic.h"

#include <optional>

using namespace llvm;

namespace trellis {

// True, with a refusal, when the store cannot do an access of this type at once.
static bool tooWide(Context &context, Instruction *instruction, Type *type) {
  uint64_t bytes = context.storeBytes(type);
  if (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8)
    return false;
  context.refuse(*instruction, "an atomic access of " + Twine(bytes) +
                                   " bytes cannot be done in a store at once; use at most 8 bytes, or --mode line");
  return true;
}

static Value *byteCount(Context &context, Type *type) {
  return ConstantInt::get(context.intType, context.storeBytes(type));
}

void translateAtomicLoad(Context &context, LoadInst *load) {
  Value *address = load->getPointerOperand();
  Type *type = load->getType();
  if (!context.words())
    return checkLines(context, load, address, context.storeBytes(type), load->getAlign(), false);
  if (tooWide(context, load, type))
    return;
  substitute(
      context, load, [&](IRBuilder<> &builder) { return context.inRegion(builder, address); },
      [&](IRBuilder<> &builder) {
        Value *word = context.call(builder, "atomic_load", context.wordType, {address, byteCount(context, type)});
        return fromWord(context, builder, word, type);
      });
}

void translateAtomicStore(Context &context, StoreInst *store) {
  Value *address = store->getPointerOperand();
  Value *value = store->getValueOperand();
  if (!context.words())
    return checkLines(context, store, address, context.storeBytes(value->getType()), store->getAlign(), true);
  if (tooWide(context, store, value->getType()))
    return;
  substitute(
      context, store, [&](IRBuilder<> &builder) { return context.inRegion(builder, address); },
      [&](IRBuilder<> &builder) -> Value * {
        Value *word = toWord(context, builder, value);
        context.call(builder, "atomic_store", context.voidType, {address, word, byteCount(context, value->getType())});
        return nullptr;
      });
}

static std::optional<unsigned> operationOf(AtomicRMWInst::BinOp operation) {
  switch (operation) {
  case AtomicRMWInst::Xchg:
    return TRELLIS_ATOMIC_EXCHANGE;
  case AtomicRMWInst::Add:
    return TRELLIS_ATOMIC_ADD;
  case AtomicRMWInst::Sub:
    return TRELLIS_ATOMIC_SUBTRACT;
  case AtomicRMWInst::And:
    return TRELLIS_ATOMIC_AND;
  case AtomicRMWInst::Or:
    return TRELLIS_ATOMIC_OR;
  case AtomicRMWInst::Xor:
    return TRELLIS_ATOMIC_XOR;
  case AtomicRMWInst::Nand:
    return TRELLIS_ATOMIC_NAND;
  case AtomicRMWInst::Max:
    return TRELLIS_ATOMIC_MAX;
  case AtomicRMWInst::Min:
    return TRELLIS_ATOMIC_MIN;
  case AtomicRMWInst::UMax:
    return TRELLIS_ATOMIC_UNSIGNED_MAX;
  case AtomicRMWInst::UMin:
    return TRELLIS_ATOMIC_UNSIGNED_MIN;
  default:
    return std::nullopt;
  }
}

// One compare-and-exchange in the store: {whether it was done, what was there}.
static std::pair<Value *, Value *> compareExchange(Context &context, IRBuilder<> &builder, Value *address,
                                                   Value *expected, Value *desired) {
  Type *type = expected->getType();
  AllocaInst *native = context.temporary(*builder.GetInsertBlock()->getParent(), context.wordType);
  builder.CreateStore(toWord(context, builder, expected), native);
  Value *done = context.call(builder, "atomic_compare_exchange", builder.getInt1Ty(),
                             {address, native, toWord(context, builder, desired), byteCount(context, type)});
  Value *found = fromWord(context, builder, builder.CreateLoad(context.wordType, native), type);
  return {done, found};
}

// read; do { new = operation(old, operand); } while (!compare_exchange(old, new)); the value is old.
static Value *updateByLoop(Context &context, IRBuilder<> &builder, AtomicRMWInst *update) {
  Type *type = update->getType();
  Value *address = update->getPointerOperand();
  Value *word = context.call(builder, "atomic_load", context.wordType, {address, byteCount(context, type)});
  Value *first = fromWord(context, builder, word, type);
  BasicBlock *before = builder.GetInsertBlock();
  Instruction *end = &*builder.GetInsertPoint();
  BasicBlock *loop = SplitBlock(before, end->getIterator());
  BasicBlock *after = SplitBlock(loop, end->getIterator());
  Instruction *jump = loop->getTerminator();
  IRBuilder<> body(jump);
  body.SetCurrentDebugLocation(update->getDebugLoc());
  PHINode *old = PHINode::Create(type, 2, "", loop->begin());
  Value *desired = buildAtomicRMWValue(update->getOperation(), body, old, update->getValOperand());
  auto [done, found] = compareExchange(context, body, address, old, desired);
  old->addIncoming(first, before);
  old->addIncoming(found, body.GetInsertBlock());
  body.CreateCondBr(done, after, loop);
  jump->eraseFromParent();
  builder.SetInsertPoint(end);
  return old;
}

void translateUpdate(Context &context, AtomicRMWInst *update) {
  Value *address = update->getPointerOperand();
  Value *operand = update->getValOperand();
  Type *type = update->getType();
  if (!context.words())
    return checkLines(context, update, address, context.storeBytes(type), update->getAlign(), true);
  if (tooWide(context, update, type))
    return;
  substitute(
      context, update, [&](IRBuilder<> &builder) { return context.inRegion(builder, address); },
      [&](IRBuilder<> &builder) -> Value * {
        std::optional<unsigned> operation = operationOf(update->getOperation());
        if (!operation)
          return updateByLoop(context, builder, update);
        Value *number = ConstantInt::get(context.intType, *operation);
        Value *word = context.call(builder, "atomic_update", context.wordType,
                                   {address, toWord(context, builder, operand), byteCount(context, type), number});
        return fromWord(context, builder, word, type);
      });
}

void translateCompareExchange(Context &context, AtomicCmpXchgInst *exchange) {
  Value *address = exchange->getPointerOperand();
  Type *type = exchange->getCompareOperand()->getType();
  if (!context.words())
    return checkLines(context, exchange, address, context.storeBytes(type), exchange->getAlign(), true);
  if (tooWide(context, exchange, type))
    return;
  substitute(
      context, exchange, [&](IRBuilder<> &builder) { return context.inRegion(builder, address); },
      [&](IRBuilder<> &builder) {
        auto [done, found] = compareExchange(context, builder, address, exchange->getCompareOperand(),
                                             exchange->getNewValOperand());
        Value *pair = builder.CreateInsertValue(PoisonValue::get(exchange->getType()), found, 0);
        return builder.CreateInsertValue(pair, done, 1);
      });
}

void translateFence(Context &context, FenceInst *fence) {
  if (!context.words() || fence->getSyncScopeID() == SyncScope::SingleThread)
    return;
  IRBuilder<> builder(fence);
  context.call(builder, "fence", context.voidType, {});
}

} // namespace trellis
