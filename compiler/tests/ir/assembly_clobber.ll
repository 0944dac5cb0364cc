; Inline assembly that may change memory that it does not name.
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-pc-linux-gnu"

; FULL-ERROR: in function `clobbers`: inline assembly cannot be translated: it may change memory
; HEAP-ERROR: in function `clobbers`: inline assembly cannot be translated: it may change memory
; LINE-LABEL: @clobbers(
; LINE: rep stosb
define void @clobbers() {
  call void asm sideeffect "rep stosb", "~{memory}"()
  ret void
}
