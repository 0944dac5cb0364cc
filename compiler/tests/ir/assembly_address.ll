; Inline assembly that gets an address in a register.
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-pc-linux-gnu"

; FULL-ERROR: in function `address`: inline assembly cannot be translated: an operand is an address
; HEAP-ERROR: in function `address`: inline assembly cannot be translated: an operand is an address
; LINE-LABEL: @address(
; LINE: prefetchw
define void @address(ptr %p) {
  call void asm sideeffect "prefetchw ($0)", "r"(ptr %p)
  ret void
}
