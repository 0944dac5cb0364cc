// Translation of masked vector operations, lane by lane.

#include "masked.h"
#include "access.h"
#include "origin.h"

#include "llvm/Transforms/Utils/BasicBlockUtils.h"

using namespace llvm;

namespace trellis {

namespace {
// The operands of the four intrinsics under one set of names.
struct Masked {
  IntrinsicInst *intrinsic;
  Value *pointer; // of the first lane, or a vector with one for each lane
  Value *mask;
  Value *value; // stored, or passed through where the mask is off
  FixedVectorType *type;
  Align alignment;
  bool write;
  bool many; // gather and scatter

  Value *lane(Context &context, IRBuilder<> &builder, unsigned at) const {
    if (many)
      return builder.CreateExtractElement(pointer, at);
    return builder.CreateConstGEP1_64(type->getElementType(), pointer, at);
  }
};
} // namespace

static bool read(IntrinsicInst *intrinsic, Masked &masked) {
  unsigned pointer = 0;
  masked.intrinsic = intrinsic;
  masked.write = masked.many = false;
  switch (intrinsic->getIntrinsicID()) {
  case Intrinsic::masked_load:
    break;
  case Intrinsic::masked_gather:
    masked.many = true;
    break;
  case Intrinsic::masked_store:
    masked.write = true;
    break;
  case Intrinsic::masked_scatter:
    masked.write = masked.many = true;
    break;
  default:
    return false;
  }
  pointer = masked.write ? 1 : 0;
  masked.pointer = intrinsic->getArgOperand(pointer);
  masked.alignment = cast<ConstantInt>(intrinsic->getArgOperand(pointer + 1))->getMaybeAlignValue().valueOrOne();
  masked.mask = intrinsic->getArgOperand(pointer + 2);
  masked.value = intrinsic->getArgOperand(masked.write ? 0 : 3);
  masked.type = dyn_cast<FixedVectorType>(masked.value->getType());
  return true;
}

// Whether any byte that the operation may touch is in the region.
static Value *anyInRegion(Context &context, IRBuilder<> &builder, const Masked &masked) {
  if (masked.many)
    return builder.CreateOrReduce(builder.CreateAnd(context.inRegion(builder, masked.pointer), masked.mask));
  Value *first = context.inRegion(builder, masked.pointer);
  Value *last = masked.lane(context, builder, masked.type->getNumElements() - 1);
  return builder.CreateOr(first, context.inRegion(builder, last));
}

// Runs `body` for one lane if its bit is set; the builder goes on behind it. Returns the block where it ended, or null
// when the bit is constant and off.
static BasicBlock *ifOn(IRBuilder<> &builder, const Masked &masked, unsigned at,
                        function_ref<void(IRBuilder<> &)> body) {
  Value *bit = builder.CreateExtractElement(masked.mask, at);
  if (auto *constant = dyn_cast<ConstantInt>(bit); constant && constant->isZero())
    return nullptr;
  Instruction *end = &*builder.GetInsertPoint();
  Instruction *inside = SplitBlockAndInsertIfThen(bit, end, false);
  IRBuilder<> lane(inside);
  lane.SetCurrentDebugLocation(masked.intrinsic->getDebugLoc());
  body(lane);
  builder.SetInsertPoint(end);
  builder.SetCurrentDebugLocation(masked.intrinsic->getDebugLoc());
  return inside->getParent();
}

static Value *lanesFromWords(Context &context, IRBuilder<> &builder, const Masked &masked) {
  Value *result = masked.write ? nullptr : masked.value;
  for (unsigned at = 0; at < masked.type->getNumElements(); ++at) {
    BasicBlock *before = builder.GetInsertBlock();
    Value *changed = nullptr;
    BasicBlock *done = ifOn(builder, masked, at, [&](IRBuilder<> &lane) {
      Value *address = masked.lane(context, lane, at);
      if (masked.write)
        return storeWords(context, lane, lane.CreateExtractElement(masked.value, at), address);
      Value *element = loadWords(context, lane, masked.type->getElementType(), address);
      changed = lane.CreateInsertElement(result, element, at);
    });
    if (!done || masked.write)
      continue;
    PHINode *either = PHINode::Create(masked.type, 2, "", builder.GetInsertBlock()->begin());
    either->addIncoming(result, before);
    either->addIncoming(changed, done);
    result = either;
  }
  return result;
}

static void checkLanes(Context &context, const Masked &masked) {
  if (!masked.many)
    return checkLines(context, masked.intrinsic, masked.pointer, context.storeBytes(masked.type), masked.alignment,
                      masked.write);
  IRBuilder<> builder(masked.intrinsic);
  Value *there = anyInRegion(context, builder, masked);
  IRBuilder<> lanes(SplitBlockAndInsertIfThen(there, masked.intrinsic, false));
  lanes.SetCurrentDebugLocation(masked.intrinsic->getDebugLoc());
  Value *bytes = context.word(context.storeBytes(masked.type->getElementType()));
  for (unsigned at = 0; at < masked.type->getNumElements(); ++at)
    ifOn(lanes, masked, at, [&](IRBuilder<> &lane) {
      context.call(lane, masked.write ? "line_write" : "line_read", context.voidType,
                   {masked.lane(context, lane, at), bytes});
    });
}

bool translateMasked(Context &context, IntrinsicInst *intrinsic) {
  Masked masked;
  if (!read(intrinsic, masked))
    return false;
  if (!masked.many && staysNative(context, masked.pointer))
    return true;
  if (!masked.type) {
    context.refuse(*intrinsic, "vectors of unknown length cannot be translated; compile for a fixed vector length");
    return true;
  }
  if (!context.words()) {
    checkLanes(context, masked);
    return true;
  }
  substitute(
      context, intrinsic, [&](IRBuilder<> &builder) { return anyInRegion(context, builder, masked); },
      [&](IRBuilder<> &builder) { return lanesFromWords(context, builder, masked); });
  return true;
}

} // namespace trellis
