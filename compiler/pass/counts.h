// The paper's instruction counts (section 6.2): how many instructions each function has before and after.
//
// Promises: one line of JSON for each function that is defined in the module, appended to the file at once, so that
// several compilers may write the same file. It must never count debug information, or functions of other modules.
#pragma once

#include "context.h"

#include <string>
#include <vector>

namespace trellis {

class Counts {
public:
  explicit Counts(const llvm::Module &module);
  // Appends to `path`; an error is told to the module's context.
  void write(Context &context, llvm::StringRef path) const;

private:
  struct Row {
    const llvm::Function *function;
    std::string name;
    unsigned original;
  };
  std::vector<Row> rows;
};

} // namespace trellis
