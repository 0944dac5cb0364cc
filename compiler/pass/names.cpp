// Gives translated functions their names; the header says why.

#include "names.h"

#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/Demangle/Demangle.h"
#include "llvm/IR/GlobalAlias.h"
#include "llvm/IR/GlobalIFunc.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"

using namespace llvm;

namespace trellis {

static void dropBody(Function &function) {
  function.deleteBody();
  function.setComdat(nullptr);
  function.setLinkage(GlobalValue::ExternalLinkage);
}

namespace {
class Renaming {
public:
  explicit Renaming(Context &context)
      : context(context), suffix((".trellis_" + nameOf(context.mode)).str()) {}

  void run() {
    std::vector<Function *> functions;
    for (Function &function : context.module)
      functions.push_back(&function);
    // Before there are aliases of our own, which keep the plain names.
    for (GlobalAlias &alias : context.module.aliases())
      if (context.words() && !alias.hasLocalLinkage() && isa<Function>(alias.getAliaseeObject()))
        rename(alias);
    for (Function *function : functions)
      settle(*function);
    for (GlobalIFunc &indirect : context.module.ifuncs())
      if (context.words() && !indirect.hasLocalLinkage())
        rename(indirect);
    for (GlobalVariable &variable : context.module.globals())
      if (context.words() && isCopiedTable(variable))
        rename(variable);
    moveGroups();
  }

private:
  Context &context;
  const std::string suffix;
  SmallPtrSet<Comdat *, 16> groups;

  static StringRef plainName(const GlobalValue &value) {
    StringRef name = value.getName();
    name.consume_front("\1");
    return name;
  }

  void rename(GlobalValue &value) {
    if (auto *object = dyn_cast<GlobalObject>(&value); object && object->getComdat())
      groups.insert(object->getComdat());
    value.setName(value.getName() + suffix);
  }

  void settle(Function &function) {
    StringRef name = plainName(function);
    if (function.isIntrinsic() || name.starts_with("__trellis_") || name.ends_with(suffix) || name == "main" ||
        function.hasLocalLinkage())
      return;
    Known known = context.lists.find(name);
    if (!context.words())
      return settleForLines(function, known);
    bool copy = function.isDiscardableIfUnused() || function.isWeakForLinker();
    if (function.hasAvailableExternallyLinkage())
      dropBody(function);
    if (!function.isDeclaration())
      return settleDefinition(function, known, copy);
    if (known.kind == Known::Refuse)
      return refuseUses(function, known);
    if (known.kind != Known::Native)
      rename(function);
  }

  void settleDefinition(Function &function, const Known &known, bool copy) {
    std::string name = function.getName().str();
    rename(function);
    if (known.kind == Known::Native && !copy)
      GlobalAlias::create(function.getValueType(), 0, GlobalValue::ExternalLinkage, name, &function, &context.module);
  }

  void settleForLines(Function &function, const Known &known) {
    if (known.kind != Known::WrapAlways || function.hasAvailableExternallyLinkage())
      return;
    if (function.isDeclaration())
      return rename(function);
    // The program brings its own: everybody who was compiled for lines gets it, too.
    GlobalAlias::create(function.getValueType(), 0, function.getLinkage(), function.getName() + suffix, &function,
                        &context.module);
  }

  void refuseUses(Function &function, const Known &known) {
      std::string fact = "`" + demangle(plainName(function)) + "` cannot be used in mode " +
                         nameOf(context.mode).str() + ": " + known.reason;
      bool placed = false;
      for (User *user : function.users())
          if (auto *instruction = dyn_cast<Instruction>(user)) {
              context.refuse(*instruction, fact);
              placed = true;
          }
    if (!placed && !function.use_empty())
      context.llvm.emitError(Twine(context.module.getSourceFileName()) + ": " + fact);
  }

  static bool refersToFunction(const Constant *constant, SmallPtrSetImpl<const Constant *> &seen) {
    if (isa<Function>(constant))
      return true;
    if (isa<GlobalVariable>(constant) || !seen.insert(constant).second)
      return false;
    for (const Use &operand : constant->operands())
      if (auto *inner = dyn_cast<Constant>(operand.get()); inner && refersToFunction(inner, seen))
        return true;
    return false;
  }

  // Constant tables with functions in them of which every translation unit has a copy: vtables of classes without a
  // key function, tables of construction vtables, inline constants.
  static bool isCopiedTable(const GlobalVariable &variable) {
    if (!variable.isConstant() || variable.isDeclaration() ||
        !(variable.hasLinkOnceLinkage() || variable.hasWeakLinkage()))
      return false;
    StringRef name = variable.getName();
    if (name.starts_with("_ZTV") || name.starts_with("_ZTT") || name.starts_with("_ZTC"))
      return true;
    SmallPtrSet<const Constant *, 8> seen;
    return refersToFunction(variable.getInitializer(), seen);
  }

  // A group keeps its members together, so it is renamed as a whole; its other members stay what they are called.
  void moveGroups() {
    DenseMap<Comdat *, Comdat *> moved;
    for (Comdat *group : groups) {
      // The key of the group is a variable that keeps its name: then the group does, too.
      if (GlobalValue *key = context.module.getNamedValue(group->getName()); key && !isa<Function>(key))
        continue;
      Comdat *renamed = context.module.getOrInsertComdat((group->getName() + suffix).str());
      renamed->setSelectionKind(group->getSelectionKind());
      moved[group] = renamed;
    }
    for (GlobalObject &object : context.module.global_objects())
      if (Comdat *renamed = moved.lookup(object.getComdat()))
        object.setComdat(renamed);
  }
};

const Attribute::AttrKind promisesOfFunctions[] = {Attribute::Memory, Attribute::NoSync, Attribute::NoFree,
                                                   Attribute::WillReturn, Attribute::Speculatable};
const Attribute::AttrKind promisesOfValues[] = {Attribute::ReadNone,        Attribute::ReadOnly,
                                                Attribute::WriteOnly,       Attribute::NoFree,
                                                Attribute::Dereferenceable, Attribute::DereferenceableOrNull,
                                                Attribute::Writable};

AttributeList without(LLVMContext &llvm, AttributeList attributes, unsigned parameters) {
  for (Attribute::AttrKind kind : promisesOfFunctions)
    attributes = attributes.removeFnAttribute(llvm, kind);
  for (Attribute::AttrKind kind : promisesOfValues) {
    attributes = attributes.removeRetAttribute(llvm, kind);
    for (unsigned at = 0; at < parameters; ++at)
      attributes = attributes.removeParamAttribute(llvm, at, kind);
  }
  return attributes;
}
} // namespace

void dropProvided(Module &module, const Lists &lists) {
  for (Function &function : module) {
    if (function.isDeclaration() || function.hasLocalLinkage() || !function.isDiscardableIfUnused())
      continue;
    Known::Kind kind = lists.find(function.getName()).kind;
    // A copy in a header would work on the library's own objects (the buffer of a stream) as if they were the
    // program's.
    bool libraryCopy = kind == Known::Native && function.hasAvailableExternallyLinkage();
    if (kind == Known::Wrap || kind == Known::WrapAlways || kind == Known::Refuse || libraryCopy)
      dropBody(function);
  }
}

void settleNames(Context &context) { Renaming(context).run(); }

void forgetPromises(Context &context) {
  for (Function &function : context.module) {
    bool plain = function.isIntrinsic() || function.getName().starts_with("__trellis_");
    if (!plain)
      function.setAttributes(without(context.llvm, function.getAttributes(), function.arg_size()));
    for (Instruction &instruction : instructions(function))
      if (auto *call = dyn_cast<CallBase>(&instruction); call && !isa<IntrinsicInst>(call) && !call->isInlineAsm())
        call->setAttributes(without(context.llvm, call->getAttributes(), call->arg_size()));
  }
}

} // namespace trellis
