// Which library functions are known: those that touch no memory of the program, and those that are wrapped.
//
// A list is a text file in the folder `lists` beside the plugin. `#` begins a comment. A line is one of
//     native NAME     the function touches no memory of the program (or only native memory); called as it is
//     wrap NAME       calls go to `__trellis_wrap_NAME` of the runtime archive, in modes full and heap
//     wrap-always NAME            the same, in mode line too
//     refuse NAME REASON...       a call is an error in modes full and heap, with that reason
// NAME may end in `*` (native and refuse only). The longest match wins; a line of the user wins over ours.
//
// Promises: a malformed line is an error that names file and line. It must never guess about a name it does not know.
#pragma once

#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"

#include <string>
#include <vector>

namespace trellis {

struct Known {
  enum Kind { Unknown, Native, Wrap, WrapAlways, Refuse } kind = Unknown;
  std::string reason;
};

class Lists {
public:
  // Every `*.txt` in `folder`, then `files` in order.
  static llvm::Expected<Lists> read(llvm::StringRef folder, llvm::ArrayRef<std::string> files);
  Known find(llvm::StringRef name) const;

private:
  llvm::Error readFile(const std::string &path);
  llvm::Error readLine(llvm::StringRef line, const std::string &path, unsigned number);

  llvm::StringMap<Known> exact;
  std::vector<std::pair<std::string, Known>> prefixes;
};

} // namespace trellis
