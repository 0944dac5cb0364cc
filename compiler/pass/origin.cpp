// Proofs about addresses; the header says what an answer means.

#include "origin.h"

#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/IntrinsicInst.h"

using namespace llvm;

namespace trellis {

namespace {
// Follows a pointer back to the objects that it may point into: through frame slots that only hold pointers (what -O0
// makes of every variable), and through parameters of functions all of whose callers are known.
class Search {
public:
  Origin of(const Value *pointer) {
    // What is being looked at already adds nothing new: the answer is about the other ways to get here.
    if (!seen.insert(pointer).second)
      return Origin::Native;
    if (seen.size() > values_max)
      return Origin::Unknown;
    SmallVector<const Value *, 4> objects;
    getUnderlyingObjects(pointer, objects, /*LI=*/nullptr, /*MaxLookup=*/0);
    Origin all = objects.empty() ? Origin::Unknown : Origin::Native;
    for (const Value *object : objects)
      all = either(all, ofObject(object));
    return all;
  }

private:
  static constexpr unsigned values_max = 64;
  SmallPtrSet<const Value *, 8> seen;

  static Origin either(Origin one, Origin other) {
    if (one == Origin::Unknown || other == Origin::Unknown)
      return Origin::Unknown;
    return one == Origin::Private ? one : other;
  }

  Origin ofObject(const Value *object) {
    if (isa<AllocaInst>(object))
      return Origin::Private;
    if (auto *argument = dyn_cast<Argument>(object))
      return argument->hasByValAttr() ? Origin::Private : ofArgument(*argument);
    if (auto *variable = dyn_cast<GlobalVariable>(object))
      return variable->isConstant() || variable->isThreadLocal() ? Origin::Native : Origin::Private;
    if (isa<GlobalValue>(object))
      return Origin::Private;
    if (auto *load = dyn_cast<LoadInst>(object))
      return ofSlot(load->getPointerOperand());
    if (auto *call = dyn_cast<CallBase>(object)) {
      if (call->getIntrinsicID() == Intrinsic::threadlocal_address)
        return Origin::Native;
      // The C library's `errno` is its own thread-local; it writes it with plain instructions.
      const Function *callee = call->getCalledFunction();
      if (callee && callee->getName() == "__errno_location")
        return Origin::Native;
    }
    return Origin::Unknown;
  }

  Origin ofArgument(const Argument &argument) {
    const Function &function = *argument.getParent();
    // The system hands over argv and the environment, and nobody else calls it.
    if (function.getName() == "main" && function.use_empty())
      return Origin::Private;
    if (!function.hasLocalLinkage() || function.hasAddressTaken() || function.use_empty())
      return Origin::Unknown;
    Origin all = Origin::Native;
    for (const User *user : function.users()) {
      auto *call = dyn_cast<CallBase>(user);
      if (!call || call->getCalledFunction() != &function || call->arg_size() <= argument.getArgNo())
        return Origin::Unknown;
      all = either(all, of(call->getArgOperand(argument.getArgNo())));
      if (all == Origin::Unknown)
        break;
    }
    return all;
  }

  // A variable of the frame whose address goes nowhere holds only what is stored to it by name.
  Origin ofSlot(const Value *slot) {
    auto *variable = dyn_cast<AllocaInst>(slot);
    if (!variable || !variable->getAllocatedType()->isPointerTy())
      return Origin::Unknown;
    Origin all = Origin::Native;
    bool stored = false;
    for (const User *user : variable->users()) {
      if (auto *load = dyn_cast<LoadInst>(user); load && load->getType()->isPointerTy())
        continue;
      if (auto *intrinsic = dyn_cast<IntrinsicInst>(user); intrinsic && intrinsic->isLifetimeStartOrEnd())
        continue;
      auto *store = dyn_cast<StoreInst>(user);
      if (!store || store->getValueOperand() == variable || !store->getValueOperand()->getType()->isPointerTy())
        return Origin::Unknown;
      stored = true;
      all = either(all, of(store->getValueOperand()));
      if (all == Origin::Unknown)
        return all;
    }
    return stored ? all : Origin::Unknown;
  }
};
} // namespace

Origin originOf(const Value *pointer) { return Search().of(pointer); }

bool staysNative(const Context &context, const Value *pointer) {
  Type *type = pointer->getType()->getScalarType();
  if (type->getPointerAddressSpace() != 0) // segment-relative: never an address of the region
    return true;
  if (isa<VectorType>(pointer->getType()))
    return false;
  Origin origin = originOf(pointer);
  return origin == Origin::Native || (origin == Origin::Private && context.mode != Mode::Full);
}

} // namespace trellis
