// Two versions of loops; the header says when which of them runs.

#include "loops.h"
#include "origin.h"
#include "ranges.h"
#include "ready.h"

#include "llvm/Analysis/AssumptionCache.h"
#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/TargetParser/Triple.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include "llvm/Transforms/Utils/LoopSimplify.h"
#include "llvm/Transforms/Utils/LoopUtils.h"

using namespace llvm;

namespace trellis {

namespace {
constexpr unsigned reaches_max = 12;          // more ranges than these cost more to look at than they save
constexpr unsigned instructions_max = 1500;   // of a loop that is copied
constexpr unsigned copied_max = 6000;         // instructions that all copies of a function have
constexpr unsigned bytes_for_iteration = 512; // of states looked at: a longer way costs more than the checks it saves

class LoopVersions {
public:
  LoopVersions(Context &context, Function &function)
      : context(context), function(function), library(Triple(context.module.getTargetTriple())), libraries(library),
        assumptions(function), dominators(function), loops(dominators),
        evolution(function, libraries, assumptions, dominators, loops) {}

  Versions run() {
    SmallVector<Loop *, 8> outermost(loops.begin(), loops.end());
    for (Loop *loop : outermost)
      if (hasAccess(*loop)) {
        simplifyLoop(loop, &dominators, &loops, &evolution, &assumptions, nullptr, /*PreserveLCSSA=*/false);
        formLCSSARecursively(*loop, dominators, &loops, &evolution);
        visit(*loop);
      }
    return std::move(versions);
  }

private:
  Context &context;
  Function &function;
  TargetLibraryInfoImpl library;
  TargetLibraryInfo libraries;
  AssumptionCache assumptions;
  DominatorTree dominators;
  LoopInfo loops;
  ScalarEvolution evolution;
  Versions versions;
  unsigned copied = 0;

  bool hasAccess(const Loop &loop) const {
    return any_of(loop.blocks(), [&](BasicBlock *block) {
      return any_of(*block, [&](Instruction &one) { return isPlainAccess(context, one); });
    });
  }

  // A nest as a whole where that covers as much as its loops do one by one, else its loops.
  void visit(Loop &loop) {
    SmallVector<Loop *, 4> inner(loop.begin(), loop.end());
    Loop *checked = version(loop);
    // Mode line: lines of a nest that were not all ready before it become so while it runs.
    if (checked && context.mode == Mode::Line)
      inner.assign(checked->begin(), checked->end());
    if (!checked || context.mode == Mode::Line)
      for (Loop *one : inner)
        visit(*one);
  }

  // The accesses of a nest that have a reach, with these; nothing where a loop inside would cover more.
  SmallVector<Instruction *, 16> covered(Loop &loop, Ranges &ranges) {
    SmallVector<Instruction *, 16> found;
    for (BasicBlock *block : loop.blocks()) {
      Loop *innermost = loops.getLoopFor(block);
      for (Instruction &instruction : *block) {
        if (!isPlainAccess(context, instruction))
          continue;
        if (auto reach = ranges.of(instruction, *innermost)) {
          ranges.add(*reach);
          found.push_back(&instruction);
        } else if (innermost != &loop && Ranges(context, evolution, *innermost).of(instruction, *innermost)) {
          return {};
        }
      }
    }
    return found;
  }

  // Whoever wrote it may count on there being one copy, and a refusal is to be said once.
  static bool isAssembly(const Instruction &instruction) {
    auto *call = dyn_cast<CallBase>(&instruction);
    return call && call->isInlineAsm();
  }

  bool canCopy(Loop &loop) {
    if (!loop.isLoopSimplifyForm() || !loop.isSafeToClone() || !loop.isRecursivelyLCSSAForm(dominators, loops))
      return false;
    unsigned instructions = 0;
    for (BasicBlock *block : loop.blocks()) {
      if (block->isEHPad() || any_of(*block, isAssembly))
        return false;
      instructions += block->size();
    }
    return instructions <= instructions_max && copied + instructions <= copied_max;
  }

  // Whether lines stay ready, as far as this thread goes.
  static bool keepsLines(const Loop &loop) {
    return none_of(loop.blocks(), [](BasicBlock *block) {
      return any_of(*block, [](Instruction &instruction) {
        auto *call = dyn_cast<CallBase>(&instruction);
        return instruction.isAtomic() || (call && call->mayReadOrWriteMemory());
      });
    });
  }

  // Returns the version with checks, or null where the loop stays alone.
  Loop *version(Loop &loop) {
    if (!canCopy(loop))
      return nullptr;
    Ranges ranges(context, evolution, loop);
    SmallVector<Instruction *, 16> accesses = covered(loop, ranges);
    BasicBlock *before = loop.getLoopPreheader();
    SCEVExpander expander(evolution, context.layout, "trellis");
    if (accesses.empty() || ranges.all.size() > reaches_max ||
        !ranges.isSafeToExpand(expander, before->getTerminator()))
      return nullptr;
    bool mayBeReady = context.mode == Mode::Line && keepsLines(loop);
    BasicBlock *own = SplitBlock(before, before->getTerminator(), &dominators, &loops, nullptr, "trellis.loop");
    Loop *checked = copy(loop, before, own);
    decide(ranges, expander, before, own, checked->getLoopPreheader(), mayBeReady);
    dominators.recalculate(function);
    evolution.forgetAllLoops();
    for (Instruction *access : accesses) {
      access->setMetadata(LLVMContext::MD_invariant_load, nullptr);
      versions.free.insert(access);
    }
    return checked;
  }

  // A second copy of the loop with its own preheader; both leave to the same blocks.
  Loop *copy(Loop &loop, BasicBlock *before, BasicBlock *own) {
    ValueToValueMapTy values;
    SmallVector<BasicBlock *, 8> blocks;
    Loop *checked = cloneLoopWithPreheader(own, before, &loop, values, ".checked", &loops, &dominators, blocks);
    remapInstructionsInBlocks(blocks, values);
    SmallVector<BasicBlock *, 4> exits;
    loop.getUniqueExitBlocks(exits);
    for (BasicBlock *exit : exits)
      for (PHINode &phi : exit->phis())
        for (unsigned at = 0, count = phi.getNumIncomingValues(); at < count; ++at)
          if (BasicBlock *from = phi.getIncomingBlock(at); loop.contains(from)) {
            Value *value = phi.getIncomingValue(at);
            auto other = values.find(value);
            phi.addIncoming(other == values.end() ? value : static_cast<Value *>(other->second),
                            cast<BasicBlock>(values[from]));
          }
    for (BasicBlock *block : blocks) {
      copied += block->size();
      versions.checked.insert(block);
    }
    return checked;
  }

  void decide(Ranges &ranges, SCEVExpander &expander, BasicBlock *before, BasicBlock *own, BasicBlock *checked,
              bool mayBeReady) {
    Instruction *end = before->getTerminator();
    SmallVector<Ends, 8> ends;
    for (const Reach &reach : ranges.all)
      ends.push_back(expand(context, expander, reach, end));
    Value *guarded = guard(ranges, expander, end);
    Value *iterations = mayBeReady ? iterationsOf(ranges, expander, end) : nullptr;
    IRBuilder<> builder(end);
    Value *outside = guarded;
    for (const Ends &one : ends)
      outside = builder.CreateAnd(outside, isOutside(context, builder, one.first, one.last));
    // An iteration that never runs may have been asked about with a value that has no meaning.
    outside = builder.CreateFreeze(outside, "trellis.outside");
    MDNode *likely = MDBuilder(context.llvm).createLikelyBranchWeights();
    if (!mayBeReady) {
      builder.CreateCondBr(outside, own, checked, likely);
      end->eraseFromParent();
      return;
    }
    BasicBlock *look = BasicBlock::Create(context.llvm, "trellis.look", &function, checked);
    if (Loop *around = loops.getLoopFor(before))
      around->addBasicBlockToLoop(look, loops);
    builder.CreateCondBr(outside, own, look);
    end->eraseFromParent();
    builder.SetInsertPoint(look);
    Value *ready = builder.CreateFreeze(guarded);
    for (const auto &[reach, one] : zip(ranges.all, ends)) {
      Value *first = builder.CreateFreeze(one.first), *last = builder.CreateFreeze(one.last);
      ready = builder.CreateAnd(ready, areReady(context, builder, first, last, iterations, reach.write));
    }
    builder.CreateCondBr(ready, own, checked);
  }

  Value *guard(const Ranges &ranges, SCEVExpander &expander, Instruction *end) {
    Value *holds = ConstantInt::getTrue(context.llvm);
    for (const SCEV *count : ranges.guards.counts) {
      Value *value = expander.expandCodeFor(count, context.wordType, end);
      IRBuilder<> builder(end);
      holds = builder.CreateAnd(holds, builder.CreateICmpULT(value, context.word(uint64_t(1) << 31)));
    }
    for (const SCEV *step : ranges.guards.steps) {
      Value *value = expander.expandCodeFor(step, context.wordType, end);
      IRBuilder<> builder(end);
      Value *moved = builder.CreateAdd(value, context.word(uint64_t(1) << 28));
      holds = builder.CreateAnd(holds, builder.CreateICmpULT(moved, context.word(uint64_t(1) << 29)));
    }
    return holds;
  }

  // How many bytes of lines are worth looking at; what is wrong with a product that wraps around is time only.
  Value *iterationsOf(const Ranges &ranges, SCEVExpander &expander, Instruction *end) {
    Value *product = context.word(bytes_for_iteration);
    for (const SCEV *count : ranges.counts) {
      Value *value = expander.expandCodeFor(count, context.wordType, end);
      IRBuilder<> builder(end);
      product = builder.CreateMul(product, builder.CreateAdd(value, context.word(1)));
    }
    return IRBuilder<>(end).CreateFreeze(product);
  }
};
} // namespace

bool isToBeFast(const Function &function) {
  return !function.hasOptNone() && !function.hasOptSize() && !function.hasMinSize();
}

bool isPlainAccess(const Context &context, Instruction &instruction) {
  auto *load = dyn_cast<LoadInst>(&instruction);
  auto *store = dyn_cast<StoreInst>(&instruction);
  if (!(load && load->isSimple()) && !(store && store->isSimple()))
    return false;
  return context.storeBytes(getLoadStoreType(&instruction)) > 0 &&
         !staysNative(context, getLoadStorePointerOperand(&instruction));
}

Versions versionLoops(Context &context, Function &function) {
  if (context.mode == Mode::Full || !isToBeFast(function))
    return {};
  return LoopVersions(context, function).run();
}

} // namespace trellis
