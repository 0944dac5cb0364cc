; Inline assembly: refused where it may touch memory, let through where it cannot.
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-pc-linux-gnu"

; FULL-ERROR: in function `touches`: inline assembly cannot be translated: an operand is memory
; FULL-ERROR-NOT: function `barriers`
; HEAP-ERROR: in function `touches`: inline assembly cannot be translated: an operand is memory
; HEAP-ERROR-NOT: function `barriers`
; LINE-LABEL: @touches(
; LINE: asm sideeffect "incl $0"
define void @touches(ptr %p) {
  call void asm sideeffect "incl $0", "=*m,*m"(ptr elementtype(i32) %p, ptr elementtype(i32) %p)
  ret void
}
define i32 @barriers(i32 %x) {
  %local = alloca i16
  call void asm sideeffect "", "~{memory}"()
  call void asm sideeffect "mfence", "~{memory}"()
  %y = call i32 asm "leal 3($1), $0", "=r,r"(i32 %x)
  ret i32 %y
}
