// Instruction counts before and after translation.

#include "counts.h"

#include "llvm/Demangle/Demangle.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

using namespace llvm;

namespace trellis {

Counts::Counts(const Module &module) {
  for (const Function &function : module)
    if (!function.isDeclaration() && !function.hasAvailableExternallyLinkage())
      rows.push_back({&function, demangle(function.getName()), function.getInstructionCount()});
}

void Counts::write(Context &context, StringRef path) const {
  std::string text;
  raw_string_ostream lines(text);
  for (const Row &row : rows) {
    if (row.function->isDeclaration())
      continue;
    lines << json::Value(json::Object{{"file", context.module.getSourceFileName()},
                                      {"function", row.name},
                                      {"original", row.original},
                                      {"after", row.function->getInstructionCount()}})
          << '\n';
  }
  std::error_code code;
  raw_fd_ostream file(path, code, sys::fs::CD_OpenAlways, sys::fs::FA_Write, sys::fs::OF_Append);
  if (code) {
    context.llvm.emitError("cannot write the instruction counts to " + path + ": " + code.message());
    return;
  }
  file << text;
}

} // namespace trellis
