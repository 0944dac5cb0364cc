// Two versions of the code from the first to the last of some accesses; the header says when which of them runs.

#include "objects.h"
#include "ready.h"

#include "llvm/IR/MDBuilder.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/Cloning.h"

using namespace llvm;

namespace trellis {

namespace {
constexpr int64_t object_bytes_max = 4096; // from the first to the last byte of one range
constexpr unsigned objects_max = 4;        // ranges that are looked at together
constexpr unsigned instructions_max = 64;  // that are copied for one check
constexpr unsigned copied_max = 2000;      // that all copies of a function have

struct Object {
  Value *base;
  int64_t from, to; // bytes relative to the base
};

// Instructions of a block from `first` to `last`, of which `accesses` touch `objects`.
struct Segment {
  SmallVector<Object, objects_max> objects;
  SmallVector<Instruction *, 16> accesses;
  SmallPtrSet<const Instruction *, 32> inside; // up to where the scan is, which may be beyond `last`

  bool pays() const { return accesses.size() > objects.size(); }
};

class Scan {
public:
  Scan(Context &context, const Versions &versions) : context(context), versions(versions) {}

  SmallVector<Segment, 8> of(BasicBlock &block) {
    for (Instruction &instruction : block)
      visit(instruction);
    end();
    return std::move(found);
  }

private:
  Context &context;
  const Versions &versions;
  SmallVector<Segment, 8> found;
  Segment open;

  void end() {
    if (open.pays())
      found.push_back(std::move(open));
    open = Segment();
  }

  void visit(Instruction &instruction) {
    if (!open.accesses.empty() && open.inside.size() >= instructions_max)
      end();
    if (isPlainAccess(context, instruction) && !versions.free.contains(&instruction)) {
      if (!add(instruction)) {
        end();
        add(instruction);
      }
    } else if (stops(instruction)) {
      end();
    }
    if (!open.accesses.empty())
      open.inside.insert(&instruction);
  }

  // Loads and stores that need no check may stand between those that do.
  static bool stops(const Instruction &instruction) {
    if (instruction.isTerminator() || isa<AllocaInst>(instruction) || instruction.isEHPad())
      return true;
    return instruction.isAtomic() || isa<CallBase>(instruction);
  }

  bool add(Instruction &instruction) {
    APInt offset(64, 0);
    Value *base = getLoadStorePointerOperand(&instruction)
                      ->stripAndAccumulateConstantOffsets(context.layout, offset, /*AllowNonInbounds=*/true);
    int64_t from = offset.getSExtValue();
    int64_t to = from + static_cast<int64_t>(context.storeBytes(getLoadStoreType(&instruction)));
    for (Object &object : open.objects) {
      int64_t least = std::min(from, object.from), most = std::max(to, object.to);
      if (object.base != base || most - least > object_bytes_max)
        continue;
      object.from = least;
      object.to = most;
      open.accesses.push_back(&instruction);
      return true;
    }
    auto *made = dyn_cast<Instruction>(base);
    if (open.objects.size() == objects_max || (made && open.inside.contains(made)) || to - from > object_bytes_max)
      return false;
    open.objects.push_back({base, from, to});
    open.accesses.push_back(&instruction);
    return true;
  }
};

// Everything that is used behind the two versions comes from either.
void join(BasicBlock &native, BasicBlock &checked, BasicBlock &after, ValueToValueMapTy &values) {
  for (Instruction &instruction : native) {
    SmallVector<Use *, 4> outside;
    for (Use &use : instruction.uses())
      if (cast<Instruction>(use.getUser())->getParent() != &native)
        outside.push_back(&use);
    if (outside.empty())
      continue;
    PHINode *either = PHINode::Create(instruction.getType(), 2, "", after.begin());
    either->setDebugLoc(instruction.getDebugLoc());
    either->addIncoming(&instruction, &native);
    either->addIncoming(values[&instruction], &checked);
    for (Use *use : outside)
      use->set(either);
  }
}

void version(Context &context, const Segment &segment, Versions &versions) {
  Instruction *first = segment.accesses.front(), *last = segment.accesses.back();
  BasicBlock *before = first->getParent();
  Function *function = before->getParent();
  BasicBlock *native = SplitBlock(before, first);
  BasicBlock *after = SplitBlock(native, last->getNextNode());
  BasicBlock *checked = BasicBlock::Create(context.llvm, "trellis.checked", function, after);
  ValueToValueMapTy values;
  IRBuilder<> copies(checked);
  for (Instruction &instruction : *native) {
    if (instruction.isTerminator())
      break;
    Instruction *copy = instruction.clone();
    values[&instruction] = copies.Insert(copy, instruction.getName());
    RemapInstruction(copy, values, RF_NoModuleLevelChanges | RF_IgnoreMissingLocals);
  }
  BranchInst::Create(after, checked);
  join(*native, *checked, *after, values);
  versions.checked.insert(checked);

  Instruction *end = before->getTerminator();
  IRBuilder<> builder(end);
  builder.SetCurrentDebugLocation(first->getDebugLoc());
  Value *outside = nullptr;
  for (const Object &object : segment.objects) {
    Value *number = builder.CreatePtrToInt(object.base, context.wordType);
    Value *last_byte = builder.CreateAdd(number, context.word(object.to - 1));
    Value *one = isOutside(context, builder, last_byte, object.to - object.from);
    outside = outside ? builder.CreateAnd(outside, one) : one;
  }
  builder.CreateCondBr(outside, native, checked, MDBuilder(context.llvm).createLikelyBranchWeights());
  end->eraseFromParent();
  for (Instruction *access : segment.accesses) {
    access->setMetadata(LLVMContext::MD_invariant_load, nullptr);
    versions.free.insert(access);
  }
}
} // namespace

void versionObjects(Context &context, Function &function, Versions &versions) {
  if (context.mode != Mode::Heap || !isToBeFast(function))
    return;
  SmallVector<Segment, 16> segments;
  unsigned copied = 0;
  for (BasicBlock &block : function) {
    // Where something is of the region, its calls are what costs.
    if (versions.checked.contains(&block))
      continue;
    for (Segment &segment : Scan(context, versions).of(block)) {
      copied += segment.inside.size();
      if (copied > copied_max)
        break;
      segments.push_back(std::move(segment));
    }
  }
  // From behind: what an earlier segment makes, and a later one has as its base, then comes from both of its versions.
  for (const Segment &segment : reverse(segments))
    version(context, segment, versions);
}

} // namespace trellis
