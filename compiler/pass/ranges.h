// The range of addresses that accesses of a loop reach, in the values that are known before the loop.
//
// Promises: every address that one of the accesses of a reach touches, in any iteration, lies between `first` and
// `last` where all guards hold; nothing here changes the program before `expand`. It must never trust that address
// arithmetic does not wrap around; guards bound it.
#pragma once

#include "context.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/Analysis/ScalarEvolution.h"
#include "llvm/Transforms/Utils/ScalarEvolutionExpander.h"

#include <optional>

namespace trellis {

// From `start - below + from` to `start + above + to` (exclusive); bytes.
struct Reach {
  const llvm::SCEV *start, *below, *above;
  int64_t from, to;
  bool write;
};

// What must hold at run time so that a reach does not wrap around.
struct Guards {
  llvm::SmallSetVector<const llvm::SCEV *, 4> counts; // unsigned, below 2^31
  llvm::SmallSetVector<const llvm::SCEV *, 4> steps;  // signed, between -2^28 and 2^28
};

class Ranges {
public:
  Ranges(Context &context, llvm::ScalarEvolution &evolution, llvm::Loop &outermost)
      : context(context), evolution(evolution), outermost(outermost) {}

  // The reach of one access in `loop`, which is `outermost` or inside of it.
  std::optional<Reach> of(llvm::Instruction &access, llvm::Loop &loop);
  // Adds it to one that has the same extent at a constant distance, or as a new one.
  void add(const Reach &reach);
  bool isSafeToExpand(llvm::SCEVExpander &expander, const llvm::Instruction *at) const;

  llvm::SmallVector<Reach, 8> all;
  Guards guards;
  // How often the innermost of the nest's loops may run, at most: backedge-taken counts of the loops that move
  // something.
  llvm::SmallSetVector<const llvm::SCEV *, 4> counts;

private:
  Context &context;
  llvm::ScalarEvolution &evolution;
  llvm::Loop &outermost;

  bool move(Reach &reach, const llvm::SCEVAddRecExpr &recurrence);
};

// Both ends of a reach as numbers, expanded where the builder of the expander stands.
struct Ends {
  llvm::Value *first, *last; // last is the address of the last byte
};
Ends expand(Context &context, llvm::SCEVExpander &expander, const Reach &reach, llvm::Instruction *at);

} // namespace trellis
