// Where an address surely lies.
//
// Promises: an answer other than Unknown is a proof, whatever the program does within the language's rules.
// It must never call memory private that may be in the region.
#pragma once

#include "context.h"

namespace trellis {

enum class Origin {
  Unknown, // may be anywhere
  Private, // the frame of a function or a variable of the program: never in the region
  Native,  // constants and thread-locals: plain memory in every mode
};

Origin originOf(const llvm::Value *pointer);

// Whether plain instructions stay as they are: nothing of the store is ever at this address in this mode.
bool staysNative(const Context &context, const llvm::Value *pointer);

} // namespace trellis
