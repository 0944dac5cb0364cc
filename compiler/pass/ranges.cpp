// Reaches by scalar evolution; the header says what they promise.

#include "ranges.h"

#include "llvm/Analysis/ScalarEvolutionExpressions.h"

using namespace llvm;

namespace trellis {

// With these bounds eight loops inside each other reach less than 2^62 bytes.
static constexpr uint64_t count_limit = uint64_t(1) << 31;
static constexpr int64_t step_limit = int64_t(1) << 28;
static constexpr unsigned depth_max = 8;
// Accesses of one object that are written apart share a range up to this distance.
static constexpr int64_t together_bytes_max = 4096;

// One loop's part of the reach: what remains is the address in its first iteration.
bool Ranges::move(Reach &reach, const SCEVAddRecExpr &recurrence) {
  if (!recurrence.isAffine())
    return false;
  const SCEV *step = recurrence.getStepRecurrence(evolution);
  const SCEV *count = evolution.getSymbolicMaxBackedgeTakenCount(recurrence.getLoop());
  if (isa<SCEVCouldNotCompute>(count) || !evolution.isLoopInvariant(step, &outermost) ||
      !evolution.isLoopInvariant(count, &outermost) || evolution.getTypeSizeInBits(count->getType()) > 64)
    return false;
  step = evolution.getTruncateOrSignExtend(step, context.wordType);
  count = evolution.getTruncateOrZeroExtend(count, context.wordType);
  if (!evolution.getUnsignedRangeMax(count).ult(count_limit))
    guards.counts.insert(count);
  ConstantRange steps = evolution.getSignedRange(step);
  if (steps.getSignedMin().slt(-step_limit) || steps.getSignedMax().sgt(step_limit))
    guards.steps.insert(step);
  counts.insert(count);
  const SCEV *zero = evolution.getZero(context.wordType);
  const SCEV *distance = evolution.getMulExpr(step, count);
  if (steps.getSignedMin().isNonNegative()) {
    reach.above = evolution.getAddExpr(reach.above, distance);
  } else if (!steps.getSignedMax().isStrictlyPositive()) {
    reach.below = evolution.getAddExpr(reach.below, evolution.getNegativeSCEV(distance));
  } else {
    reach.above = evolution.getAddExpr(reach.above, evolution.getSMaxExpr(zero, distance));
    reach.below = evolution.getAddExpr(reach.below, evolution.getSMaxExpr(zero, evolution.getNegativeSCEV(distance)));
  }
  reach.start = recurrence.getStart();
  return true;
}

std::optional<Reach> Ranges::of(Instruction &access, Loop &loop) {
  Value *address = getLoadStorePointerOperand(&access);
  int64_t bytes = static_cast<int64_t>(context.storeBytes(getLoadStoreType(&access)));
  const SCEV *zero = evolution.getZero(context.wordType);
  Reach reach{evolution.getSCEV(address), zero, zero, 0, bytes, isa<StoreInst>(access)};
  unsigned depth = 0;
  for (Loop *at = &loop;; at = at->getParentLoop()) {
    auto *recurrence = dyn_cast<SCEVAddRecExpr>(reach.start);
    if (recurrence && recurrence->getLoop() == at) {
      if (++depth > depth_max || !move(reach, *recurrence))
        return std::nullopt;
    } else if (!evolution.isLoopInvariant(reach.start, at)) {
      return std::nullopt;
    }
    if (at == &outermost)
      return reach;
  }
}

void Ranges::add(const Reach &reach) {
  for (Reach &other : all) {
    if (other.below != reach.below || other.above != reach.above)
      continue;
    auto *distance = dyn_cast<SCEVConstant>(evolution.getMinusSCEV(reach.start, other.start));
    if (!distance || !distance->getAPInt().isSignedIntN(32))
      continue;
    int64_t by = distance->getAPInt().getSExtValue();
    int64_t from = std::min(other.from, by + reach.from), to = std::max(other.to, by + reach.to);
    if (to - from > together_bytes_max)
      continue;
    other.from = from;
    other.to = to;
    other.write |= reach.write;
    return;
  }
  all.push_back(reach);
}

bool Ranges::isSafeToExpand(SCEVExpander &expander, const Instruction *at) const {
  auto safe = [&](const SCEV *value) { return expander.isSafeToExpandAt(value, at); };
  for (const Reach &reach : all)
    if (!safe(reach.start) || !safe(reach.below) || !safe(reach.above))
      return false;
  return all_of(guards.counts, safe) && all_of(guards.steps, safe) && all_of(counts, safe);
}

Ends expand(Context &context, SCEVExpander &expander, const Reach &reach, Instruction *at) {
  Value *start = expander.expandCodeFor(reach.start, reach.start->getType(), at);
  Value *below = expander.expandCodeFor(reach.below, context.wordType, at);
  Value *above = expander.expandCodeFor(reach.above, context.wordType, at);
  IRBuilder<> builder(at);
  Value *number = builder.CreatePtrToInt(start, context.wordType);
  Value *first = builder.CreateAdd(builder.CreateSub(number, below), context.word(reach.from));
  Value *last = builder.CreateAdd(builder.CreateAdd(number, above), context.word(reach.to - 1));
  return {first, last};
}

} // namespace trellis
