// The order of translation, and which accesses of mode `line` share a check.

#include "translate.h"
#include "access.h"
#include "atomics.h"
#include "bulk.h"
#include "calls.h"
#include "counts.h"
#include "loops.h"
#include "masked.h"
#include "names.h"
#include "objects.h"
#include "origin.h"
#include "varargs.h"

#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/TargetParser/Triple.h"

using namespace llvm;

namespace trellis {

namespace {
// Mode line: accesses of a block that lie within 64 bytes of each other, at constant distances from one address, share
// the check of the first of them, which asks for all of their bytes at once, and for writing if one of them writes.
// Nothing may come between them that takes lines away on behalf of this thread (a call, a fence, an atomic).
class Sharing {
public:
  struct Group {
    Value *base;
    int64_t from, to; // bytes relative to the base
    Align alignment;  // of base + from
    bool write;
  };

  Sharing(Context &context, const Versions &versions) : context(context), versions(versions) {}

  void scan(BasicBlock &block) {
    open.clear();
    for (Instruction &instruction : block)
      visit(instruction);
  }
  bool isCovered(const Instruction *instruction) const { return covered.contains(instruction); }
  const Group *checkedBy(Instruction *instruction) const {
    auto found = groups.find(instruction);
    return found == groups.end() ? nullptr : &found->second;
  }

private:
  Context &context;
  const Versions &versions;
  SmallVector<Instruction *, 8> open; // first accesses of groups that may still grow
  DenseMap<Instruction *, Group> groups;
  SmallPtrSet<const Instruction *, 32> covered;

  void visit(Instruction &instruction) {
    if (versions.free.contains(&instruction))
      return;
    auto *load = dyn_cast<LoadInst>(&instruction);
    auto *store = dyn_cast<StoreInst>(&instruction);
    if ((load && load->isSimple()) || (store && store->isSimple())) {
      Value *address = load ? load->getPointerOperand() : store->getPointerOperand();
      uint64_t bytes = context.storeBytes(load ? load->getType() : store->getValueOperand()->getType());
      if (bytes > 0 && bytes <= TRELLIS_LINE_BYTES && !staysNative(context, address))
        access(instruction, address, bytes, load ? load->getAlign() : store->getAlign(), store != nullptr);
      return;
    }
    auto *call = dyn_cast<CallBase>(&instruction);
    if (instruction.isAtomic() || (call && call->mayReadOrWriteMemory()))
      open.clear();
  }

  void access(Instruction &instruction, Value *address, uint64_t bytes, Align alignment, bool write) {
    APInt offset(64, 0);
    Value *base = address->stripAndAccumulateConstantOffsets(context.layout, offset, /*AllowNonInbounds=*/true);
    int64_t from = offset.getSExtValue(), to = from + static_cast<int64_t>(bytes);
    for (Instruction *first : open) {
      Group &group = groups.find(first)->second;
      int64_t least = std::min(from, group.from), most = std::max(to, group.to);
      if (group.base != base || most - least > TRELLIS_LINE_BYTES)
        continue;
      if (from < group.from || (from == group.from && alignment > group.alignment))
        group.alignment = alignment;
      group.from = least;
      group.to = most;
      group.write |= write;
      covered.insert(&instruction);
      return;
    }
    groups.insert({&instruction, {base, from, to, alignment, write}});
    open.push_back(&instruction);
  }
};

class Translation {
public:
  explicit Translation(Context &context) : context(context) {}

  void run(Function &function) {
    context.beginFunction();
    Versions versions = versionLoops(context, function);
    versionObjects(context, function, versions);
    Sharing sharing(context, versions);
    if (!context.words())
      for (BasicBlock &block : function)
        sharing.scan(block);
    std::vector<Instruction *> all;
    for (Instruction &instruction : instructions(function))
      if (!versions.free.contains(&instruction))
        all.push_back(&instruction);
    enterFunction(context, function);
    for (Instruction *instruction : all)
      if (const Sharing::Group *group = sharing.checkedBy(instruction))
        checkTogether(instruction, *group);
      else if (!sharing.isCovered(instruction))
        one(instruction, function);
  }

private:
  Context &context;

  void checkTogether(Instruction *first, const Sharing::Group &group) {
    IRBuilder<> builder(first);
    Value *address = group.from ? builder.CreateConstGEP1_64(context.byteType, group.base, group.from) : group.base;
    checkLines(context, first, address, group.to - group.from, group.alignment, group.write);
  }

  void one(Instruction *instruction, Function &function) {
    if (auto *load = dyn_cast<LoadInst>(instruction))
      return oneLoad(load);
    if (auto *store = dyn_cast<StoreInst>(instruction)) {
      if (!staysNative(context, store->getPointerOperand()))
        store->isAtomic() ? translateAtomicStore(context, store) : translateStore(context, store);
    } else if (auto *update = dyn_cast<AtomicRMWInst>(instruction)) {
      if (!staysNative(context, update->getPointerOperand()))
        translateUpdate(context, update);
    } else if (auto *exchange = dyn_cast<AtomicCmpXchgInst>(instruction)) {
      if (!staysNative(context, exchange->getPointerOperand()))
        translateCompareExchange(context, exchange);
    } else if (auto *fence = dyn_cast<FenceInst>(instruction)) {
      translateFence(context, fence);
    } else if (auto *argument = dyn_cast<VAArgInst>(instruction)) {
      if (context.words() && !staysNative(context, argument->getPointerOperand()))
        context.refuse(*argument, "a variable argument of this type cannot be translated; use --mode line");
    } else if (auto *call = dyn_cast<CallBase>(instruction)) {
      oneCall(call, function);
    }
  }

  void oneLoad(LoadInst *load) {
    Value *address = load->getPointerOperand();
    if (staysNative(context, address))
      return;
    if (load->isAtomic())
      return translateAtomicLoad(context, load);
    translateLoad(context, load);
  }

  void oneCall(CallBase *call, Function &function) {
    if (call->isInlineAsm())
      return inspectAssembly(context, call);
    auto *intrinsic = dyn_cast<IntrinsicInst>(call);
    if (!intrinsic) {
      placeJump(context, call);
      return prepareArguments(context, call);
    }
    if (auto *bulk = dyn_cast<AnyMemIntrinsic>(intrinsic))
      return translateBulk(context, bulk);
    if (auto *start = dyn_cast<VAStartInst>(intrinsic))
      return translateVaStart(context, start, function);
    if (auto *copy = dyn_cast<VACopyInst>(intrinsic))
      return translateVaCopy(context, copy);
    if (intrinsic->getIntrinsicID() == Intrinsic::threadlocal_address)
      return keepThreadLocal(context, intrinsic);
    if (!translateMasked(context, intrinsic))
      inspectIntrinsic(context, intrinsic);
  }
};
} // namespace

bool translate(Module &module, Mode mode, const Lists &lists, StringRef countFile) {
  constexpr const char *flag = "trellis.mode";
  if (module.getModuleFlag(flag))
    return false;
  module.addModuleFlag(Module::Error, flag, static_cast<uint32_t>(mode));
  Triple target(module.getTargetTriple());
  if (target.getArch() != Triple::x86_64 || !target.isOSLinux())
    module.getContext().emitError("the target " + module.getTargetTriple() +
                                  " cannot be translated; trellis cc compiles for x86-64 Linux");
  Context context(module, mode, lists);
  Counts counts(module);
  settleNames(context);
  std::vector<Function *> functions;
  for (Function &function : module)
    if (!function.isDeclaration() && !function.hasFnAttribute(Attribute::Naked))
      functions.push_back(&function);
  Translation translation(context);
  for (Function *function : functions)
    translation.run(*function);
  forgetPromises(context);
  if (!countFile.empty())
    counts.write(context, countFile);
  return true;
}

} // namespace trellis
