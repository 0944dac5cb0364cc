// Inline assembly and remaining intrinsics: let through or refused.

#include "calls.h"
#include "origin.h"

#include "llvm/ADT/StringSwitch.h"
#include "llvm/IR/InlineAsm.h"

using namespace llvm;

namespace trellis {

// Instructions that order or wait and touch no memory of the program.
static bool isBarrier(StringRef text) {
  SmallVector<StringRef, 4> parts;
  text.split(parts, ';');
  for (StringRef part : parts) {
    SmallVector<StringRef, 4> lines;
    part.split(lines, '\n');
    for (StringRef line : lines)
      if (!StringSwitch<bool>(line.trim())
               .Cases("", "mfence", "lfence", "sfence", "pause", "nop", "rep", "rep nop", true)
               .Default(false))
        return false;
  }
  return true;
}

void inspectAssembly(Context &context, CallBase *call) {
  auto *assembly = cast<InlineAsm>(call->getCalledOperand());
  if (!context.words() || isBarrier(assembly->getAsmString()))
    return;
  const char *why = nullptr;
  unsigned argument = 0;
  for (const InlineAsm::ConstraintInfo &constraint : assembly->ParseConstraints()) {
    for (const std::string &code : constraint.Codes)
      if (constraint.Type == InlineAsm::isClobber && code == "{memory}")
        why = "it may change memory (its clobbers say so)";
    bool takes = constraint.Type == InlineAsm::isInput || constraint.isIndirect;
    if (!takes || constraint.Type == InlineAsm::isClobber || argument >= call->arg_size())
      continue;
    Value *operand = call->getArgOperand(argument++);
    if (operand->getType()->isPointerTy() && !staysNative(context, operand))
      why = constraint.isIndirect ? "an operand is memory that may be in the store"
                                  : "an operand is an address that may be in the store";
  }
  if (why)
    context.refuse(*call, Twine("inline assembly cannot be translated: ") + why +
                              "; write it in C, or use --mode line");
}

void placeJump(Context &context, CallBase *call) {
  const Function *callee = call->getCalledFunction();
  if (!context.words() || !callee || call->arg_size() == 0 || !call->getArgOperand(0)->getType()->isPointerTy() ||
      !StringSwitch<bool>(callee->getName())
           .Cases("setjmp", "_setjmp", "sigsetjmp", "__sigsetjmp", true)
           .Default(false))
      return;
  IRBuilder<> builder(call);
  call->setArgOperand(0, context.call(builder, "jump_place", context.pointerType, {call->getArgOperand(0)}));
}

// Intrinsics with a pointer that describe memory, order it or prepare it, and neither load nor store.
static bool isHarmless(Intrinsic::ID id) {
  switch (id) {
  case Intrinsic::lifetime_start:
  case Intrinsic::lifetime_end:
  case Intrinsic::invariant_start:
  case Intrinsic::invariant_end:
  case Intrinsic::launder_invariant_group:
  case Intrinsic::strip_invariant_group:
  case Intrinsic::assume:
  case Intrinsic::prefetch:
  case Intrinsic::stackrestore:
  case Intrinsic::stacksave:
  case Intrinsic::objectsize:
  case Intrinsic::threadlocal_address:
  case Intrinsic::ptrmask:
  case Intrinsic::ptr_annotation:
  case Intrinsic::var_annotation:
  case Intrinsic::vaend:
  case Intrinsic::eh_typeid_for:
  case Intrinsic::instrprof_increment:
  case Intrinsic::instrprof_increment_step:
  case Intrinsic::instrprof_value_profile:
  case Intrinsic::instrprof_cover:
    return true;
  default:
    return false;
  }
}

void inspectIntrinsic(Context &context, IntrinsicInst *intrinsic) {
  if (!context.words() || isHarmless(intrinsic->getIntrinsicID()) || !intrinsic->mayReadOrWriteMemory())
    return;
  for (Value *operand : intrinsic->args())
    if (operand->getType()->isPtrOrPtrVectorTy() && !staysNative(context, operand)) {
      context.refuse(*intrinsic, "the processor's operation `" + intrinsic->getCalledFunction()->getName() +
                                     "` touches memory and cannot be translated; write it in C, or use --mode line");
      return;
    }
}

} // namespace trellis
