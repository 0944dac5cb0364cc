// Questions about ranges; the header says what the answers mean.

#include "ready.h"

#include "llvm/Support/MathExtras.h"

using namespace llvm;

namespace trellis {

Value *isOutside(Context &context, IRBuilder<> &builder, Value *first, Value *last) {
  // The range meets the region exactly where `last` lies in the region made longer by the range, modulo 2^64.
  Value *length = builder.CreateSub(last, first);
  Value *from_base = builder.CreateSub(last, context.word(TRELLIS_REGION_BASE));
  return builder.CreateICmpUGE(from_base, builder.CreateAdd(length, context.word(TRELLIS_REGION_SPAN)));
}

Value *isOutside(Context &context, IRBuilder<> &builder, Value *last, uint64_t bytes) {
  Value *from_base = builder.CreateSub(last, context.word(TRELLIS_REGION_BASE));
  return builder.CreateICmpUGE(from_base, context.word(TRELLIS_REGION_SPAN + bytes - 1));
}

// Every module has its own copy of this function, and the linker keeps one:
//
//   bool __trellis_lines_ready(uint64_t first, uint64_t last, uint64_t bytes_max, uint64_t bits) {
//     if (outside(first, last)) return true;
//     if (last - first >= bytes_max || first < BASE || last - BASE >= SPAN) return false;
//     uint8_t *at = state of first, *end = state of last + 1;
//     for (; end - at >= 8; at += 8) if ((*(uint64_t *)at & bits) != bits) return false;
//     for (; at != end; at++) if ((*at & (uint8_t)bits) != (uint8_t)bits) return false;
//     return true;
//   }
static Function *readyFunction(Context &context) {
  constexpr const char *name = "__trellis_lines_ready";
  if (Function *made = context.module.getFunction(name))
    return made;
  Type *word = context.wordType, *truth = Type::getInt1Ty(context.llvm);
  auto *type = FunctionType::get(truth, {word, word, word, word}, false);
  auto *function = Function::Create(type, GlobalValue::LinkOnceODRLinkage, name, context.module);
  function->setVisibility(GlobalValue::HiddenVisibility);
  function->setComdat(context.module.getOrInsertComdat(name));
  function->addFnAttr(Attribute::NoUnwind);
  function->addFnAttr(Attribute::NoInline);
  auto block = [&](const char *label) { return BasicBlock::Create(context.llvm, label, function); };
  BasicBlock *entry = block("entry"), *inside = block("inside"), *table = block("table"), *words = block("words"),
             *eight = block("eight"), *bytes = block("bytes"), *one = block("one"), *yes = block("yes"),
             *no = block("no");
  Value *first = function->getArg(0), *last = function->getArg(1), *bits = function->getArg(3);
  IRBuilder<> builder(entry);
  Value *length = builder.CreateSub(last, first);
  builder.CreateCondBr(isOutside(context, builder, first, last), yes, inside);

  builder.SetInsertPoint(inside);
  Value *end_offset = builder.CreateSub(last, context.word(TRELLIS_REGION_BASE));
  Value *wrong = builder.CreateICmpUGE(length, function->getArg(2));
  wrong = builder.CreateOr(wrong, builder.CreateICmpULT(first, context.word(TRELLIS_REGION_BASE)));
  wrong = builder.CreateOr(wrong, builder.CreateICmpUGE(end_offset, context.word(TRELLIS_REGION_SPAN)));
  builder.CreateCondBr(wrong, no, table);

  builder.SetInsertPoint(table);
  constexpr uint64_t zero = TRELLIS_LINE_STATES - (TRELLIS_REGION_BASE >> TRELLIS_LINE_SHIFT);
  Value *from = builder.CreateAdd(builder.CreateLShr(first, TRELLIS_LINE_SHIFT), context.word(zero));
  Value *end = builder.CreateAdd(builder.CreateLShr(last, TRELLIS_LINE_SHIFT), context.word(zero + 1));
  builder.CreateBr(words);

  builder.SetInsertPoint(words);
  PHINode *at = builder.CreatePHI(word, 2);
  at->addIncoming(from, table);
  builder.CreateCondBr(builder.CreateICmpUGE(builder.CreateSub(end, at), context.word(8)), eight, bytes);

  builder.SetInsertPoint(eight);
  Value *states = builder.CreateAlignedLoad(word, builder.CreateIntToPtr(at, context.pointerType), Align(1));
  at->addIncoming(builder.CreateAdd(at, context.word(8)), eight);
  builder.CreateCondBr(builder.CreateICmpEQ(builder.CreateAnd(states, bits), bits), words, no);

  builder.SetInsertPoint(bytes);
  PHINode *byte = builder.CreatePHI(word, 2);
  byte->addIncoming(at, words);
  builder.CreateCondBr(builder.CreateICmpEQ(byte, end), yes, one);

  builder.SetInsertPoint(one);
  Value *bit = builder.CreateTrunc(bits, context.byteType);
  Value *state = builder.CreateLoad(context.byteType, builder.CreateIntToPtr(byte, context.pointerType));
  byte->addIncoming(builder.CreateAdd(byte, context.word(1)), one);
  builder.CreateCondBr(builder.CreateICmpEQ(builder.CreateAnd(state, bit), bit), bytes, no);

  builder.SetInsertPoint(yes);
  builder.CreateRet(ConstantInt::getTrue(context.llvm));
  builder.SetInsertPoint(no);
  builder.CreateRet(ConstantInt::getFalse(context.llvm));
  return function;
}

Value *areReady(Context &context, IRBuilder<> &builder, Value *first, Value *last, Value *bytes_max, bool write) {
  constexpr uint64_t every_byte = 0x0101010101010101;
  uint64_t bit = write ? TRELLIS_LINE_WRITABLE : TRELLIS_LINE_READABLE;
  return builder.CreateCall(readyFunction(context), {first, last, bytes_max, context.word(bit * every_byte)});
}

} // namespace trellis
