// Translation of memory intrinsics.

#include "bulk.h"
#include "access.h"
#include "origin.h"

using namespace llvm;

namespace trellis {

static void checkEnd(Context &context, AnyMemIntrinsic *intrinsic, Value *address, MaybeAlign alignment, bool write) {
  if (staysNative(context, address))
    return;
  auto *length = dyn_cast<ConstantInt>(intrinsic->getLength());
  if (length && length->getZExtValue() <= TRELLIS_LINE_BYTES)
    checkLines(context, intrinsic, address, length->getZExtValue(), alignment.valueOrOne(), write);
  else
    checkRange(context, intrinsic, address, intrinsic->getLength(), write);
}

static void translateTransfer(Context &context, AnyMemTransferInst *transfer) {
  Value *to = transfer->getRawDest(), *from = transfer->getRawSource(), *length = transfer->getLength();
  bool nativeTo = staysNative(context, to), nativeFrom = staysNative(context, from);
  if (nativeTo && nativeFrom)
    return;
  if (!context.words()) {
    checkEnd(context, transfer, from, transfer->getSourceAlign(), false);
    checkEnd(context, transfer, to, transfer->getDestAlign(), true);
    return;
  }
  substitute(
      context, transfer,
      [&](IRBuilder<> &builder) -> Value * {
        if (nativeTo || nativeFrom)
          return context.inRegion(builder, nativeTo ? from : to);
        Value *either = context.inRegion(builder, to);
        return builder.CreateOr(either, context.inRegion(builder, from));
      },
      [&](IRBuilder<> &builder) -> Value * {
        Value *bytes = builder.CreateZExtOrTrunc(length, context.wordType);
        context.call(builder, isa<AnyMemMoveInst>(transfer) ? "move" : "copy", context.voidType, {to, from, bytes});
        return nullptr;
      });
}

static void translateFill(Context &context, AnyMemSetInst *fill) {
  Value *to = fill->getRawDest();
  if (staysNative(context, to))
    return;
  if (!context.words())
    return checkEnd(context, fill, to, fill->getDestAlign(), true);
  substitute(
      context, fill, [&](IRBuilder<> &builder) { return context.inRegion(builder, to); },
      [&](IRBuilder<> &builder) -> Value * {
        Value *byte = builder.CreateZExt(fill->getValue(), context.intType);
        Value *bytes = builder.CreateZExtOrTrunc(fill->getLength(), context.wordType);
        context.call(builder, "set", context.voidType, {to, byte, bytes});
        return nullptr;
      });
}

void translateBulk(Context &context, AnyMemIntrinsic *intrinsic) {
  if (context.words() && isa<AtomicMemIntrinsic>(intrinsic)) {
    context.refuse(*intrinsic, "a copy or fill that is atomic element by element cannot be done in a store; "
                               "use --mode line");
    return;
  }
  if (auto *transfer = dyn_cast<AnyMemTransferInst>(intrinsic))
    translateTransfer(context, transfer);
  else if (auto *fill = dyn_cast<AnyMemSetInst>(intrinsic))
    translateFill(context, fill);
}

} // namespace trellis
