; Atomics that a store cannot do at once are refused with their place.
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-pc-linux-gnu"

; FULL-ERROR: in function `wide`: an atomic access of 16 bytes cannot be done
; HEAP-ERROR: in function `wide`: an atomic access of 16 bytes cannot be done
; LINE-LABEL: @wide(
; LINE: call void @__trellis_line_write(ptr %p, i64 16)
; LINE: cmpxchg
define i128 @wide(ptr %p) {
  %r = cmpxchg ptr %p, i128 0, i128 1 seq_cst seq_cst, align 16
  %v = extractvalue { i128, i1 } %r, 0
  ret i128 %v
}
