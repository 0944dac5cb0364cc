// The plugin as clang-19 and opt-19 see it.
//
// Promises: with clang the pass runs last in the optimiser, at every level, so that it sees what is really left of the
// program's accesses; with opt it is `-passes=trellis<full|heap|line>`. The environment says the rest:
//     TRELLIS_COMPILER_MODE           full, heap or line (with clang)
//     TRELLIS_COMPILER_NATIVE_FILES   more lists of known functions, separated by colons
//     TRELLIS_COMPILER_COUNT_FILE     where instruction counts are appended
// Must never: let a module through untranslated when something is wrong with these; that is an error.

#include "names.h"
#include "translate.h"

#include "llvm/ADT/StringSwitch.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Passes/PassPlugin.h"
#include "llvm/Support/Path.h"
#include "llvm/Transforms/IPO/GlobalDCE.h"

#include <cstdlib>
#include <dlfcn.h>
#include <optional>

using namespace llvm;

namespace trellis {

static StringRef environment(const char *name) {
  const char *value = std::getenv(name);
  return value ? value : "";
}

static std::optional<Mode> modeNamed(StringRef name) {
  return StringSwitch<std::optional<Mode>>(name)
      .Case("full", Mode::Full)
      .Case("heap", Mode::Heap)
      .Case("line", Mode::Line)
      .Default(std::nullopt);
}

// The folder where the plugin's own file lies.
static std::string ownFolder() {
  Dl_info info;
  static const char inside = 0;
  if (!dladdr(&inside, &info) || !info.dli_fname)
    return ".";
  return sys::path::parent_path(info.dli_fname).str();
}

// What both passes need; an error is told to the module's context.
static std::optional<std::pair<Mode, Lists>> settings(Module &module, StringRef modeName) {
  std::optional<Mode> mode = modeNamed(modeName);
  if (!mode) {
    module.getContext().emitError("`" + modeName + "` is not a mode; TRELLIS_COMPILER_MODE must be full, heap or line");
    return std::nullopt;
  }
  SmallVector<StringRef> names;
  environment("TRELLIS_COMPILER_NATIVE_FILES").split(names, ':', -1, /*KeepEmpty=*/false);
  std::vector<std::string> files(names.begin(), names.end());
  SmallString<128> folder(ownFolder());
  sys::path::append(folder, "lists");
  Expected<Lists> lists = Lists::read(folder, files);
  if (!lists) {
    module.getContext().emitError(toString(lists.takeError()));
    return std::nullopt;
  }
  return std::make_pair(*mode, std::move(*lists));
}

namespace {
// Functions that are not optimised are translated like all others, so both passes are required.
struct ProvidedPass : PassInfoMixin<ProvidedPass> {
  static bool isRequired() { return true; }

  PreservedAnalyses run(Module &module, ModuleAnalysisManager &) {
    auto chosen = settings(module, environment("TRELLIS_COMPILER_MODE"));
    if (chosen && chosen->first != Mode::Line)
      dropProvided(module, chosen->second);
    return PreservedAnalyses::none();
  }
};

struct TranslationPass : PassInfoMixin<TranslationPass> {
  std::string modeName;

  explicit TranslationPass(StringRef modeName) : modeName(modeName) {}
  static bool isRequired() { return true; }

  PreservedAnalyses run(Module &module, ModuleAnalysisManager &) {
    auto chosen = settings(module, modeName);
    bool changed =
        chosen && translate(module, chosen->first, chosen->second, environment("TRELLIS_COMPILER_COUNT_FILE"));
    return changed ? PreservedAnalyses::none() : PreservedAnalyses::all();
  }
};
} // namespace

static void registerPasses(PassBuilder &builder) {
  builder.registerPipelineStartEPCallback([](ModulePassManager &passes, OptimizationLevel) {
    passes.addPass(ProvidedPass());
    // What only those copies used would otherwise be linked at -O0, and miss what it uses in turn.
    if (environment("TRELLIS_COMPILER_MODE") != "line")
      passes.addPass(GlobalDCEPass());
  });
  builder.registerOptimizerLastEPCallback([](ModulePassManager &passes, OptimizationLevel) {
    passes.addPass(TranslationPass(environment("TRELLIS_COMPILER_MODE")));
  });
  builder.registerPipelineParsingCallback(
      [](StringRef name, ModulePassManager &passes, ArrayRef<PassBuilder::PipelineElement>) {
        if (!name.consume_front("trellis<") || !name.consume_back(">"))
          return false;
        passes.addPass(TranslationPass(name));
        return true;
      });
}

} // namespace trellis

extern "C" __attribute__((visibility("default"))) PassPluginLibraryInfo llvmGetPassPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "trellis", LLVM_VERSION_STRING, trellis::registerPasses};
}
