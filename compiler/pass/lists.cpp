// Reads the lists of known library functions; the header describes their form.

#include "lists.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"

#include <algorithm>

using namespace llvm;

namespace trellis {

Expected<Lists> Lists::read(StringRef folder, ArrayRef<std::string> files) {
  std::vector<std::string> paths;
  std::error_code code;
  for (sys::fs::directory_iterator entry(folder, code), end; entry != end && !code; entry.increment(code))
    if (sys::path::extension(entry->path()) == ".txt")
      paths.push_back(entry->path());
  if (code || paths.empty())
    return createStringError("the lists of known functions are not in " + folder +
                             "; install Trellis' compiler folder again, or set TRELLIS_COMPILER_DIRECTORY to it");
  std::sort(paths.begin(), paths.end());
  paths.insert(paths.end(), files.begin(), files.end());
  Lists lists;
  for (const std::string &path : paths)
    if (Error error = lists.readFile(path))
      return error;
  return lists;
}

Known Lists::find(StringRef name) const {
  auto found = exact.find(name);
  if (found != exact.end())
    return found->second;
  const std::pair<std::string, Known> *longest = nullptr;
  for (const auto &prefix : prefixes)
    if (name.starts_with(prefix.first) && (!longest || prefix.first.size() >= longest->first.size()))
      longest = &prefix;
  return longest ? longest->second : Known();
}

Error Lists::readFile(const std::string &path) {
  auto buffer = MemoryBuffer::getFile(path, /*IsText=*/true);
  if (!buffer)
    return createStringError("cannot read the list " + path + ": " + buffer.getError().message());
  SmallVector<StringRef> lines;
  (*buffer)->getBuffer().split(lines, '\n');
  for (unsigned number = 0; number < lines.size(); ++number)
    if (Error error = readLine(lines[number], path, number + 1))
      return error;
  return Error::success();
}

Error Lists::readLine(StringRef line, const std::string &path, unsigned number) {
  line = line.split('#').first.trim();
  if (line.empty())
    return Error::success();
  auto [word, rest] = line.split(' ');
  auto [name, reason] = rest.trim().split(' ');
  Known known;
  known.reason = reason.trim().str();
  if (word == "native")
    known.kind = Known::Native;
  else if (word == "wrap")
    known.kind = Known::Wrap;
  else if (word == "wrap-always")
    known.kind = Known::WrapAlways;
  else if (word == "refuse")
    known.kind = Known::Refuse;
  bool star = name.consume_back("*");
  bool wraps = known.kind == Known::Wrap || known.kind == Known::WrapAlways;
  if (known.kind == Known::Unknown || name.empty() || (star && wraps) ||
      known.reason.empty() == (known.kind == Known::Refuse))
    return createStringError(path + ":" + Twine(number) + ": `" + line +
                             "` is not a line of a list; write `native NAME`, `wrap NAME` or `refuse NAME REASON`");
  if (star)
    prefixes.emplace_back(name.str(), known);
  else
    exact[name] = known;
  return Error::success();
}

} // namespace trellis
