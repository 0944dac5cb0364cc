; Atomics: one call each, loops for what the store does not have.
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-pc-linux-gnu"

; FULL-LABEL: @atomics.trellis_full(
; FULL: call i64 @__trellis_atomic_load(ptr %p, i32 4)
; FULL: call void @__trellis_atomic_store(ptr %p, i64 %{{.*}}, i32 4)
; FULL: call i64 @__trellis_atomic_update(ptr %p, i64 7, i32 8, i32 1)
; FULL: call i64 @__trellis_atomic_update(ptr %p, i64 %{{.*}}, i32 1, i32 10)
; FULL: call i1 @__trellis_atomic_compare_exchange(ptr %p, ptr %{{.*}}, i64 5, i32 4)
; FULL: call void @__trellis_fence()
; FULL: ret
; HEAP-LABEL: @atomics.trellis_heap(
; HEAP: call i64 @__trellis_atomic_load(
; HEAP: load atomic i32
; HEAP: phi i32
; HEAP: atomicrmw add
; HEAP: cmpxchg weak
; HEAP: phi { i32, i1 }
; LINE-LABEL: @atomics(
; LINE: call void @__trellis_line_write(ptr %p, i64 4)
; LINE-NOT: __trellis_atomic
; LINE: ret
define i32 @atomics(ptr %p, i32 %x, i8 %y) {
  %a = load atomic i32, ptr %p seq_cst, align 4
  store atomic i32 %x, ptr %p release, align 4
  %b = atomicrmw add ptr %p, i64 7 acq_rel
  %c = atomicrmw umin ptr %p, i8 %y monotonic
  %d = cmpxchg weak ptr %p, i32 %x, i32 5 seq_cst monotonic
  fence seq_cst
  %e = extractvalue { i32, i1 } %d, 0
  %f = add i32 %a, %e
  ret i32 %f
}

; FULL-LABEL: @loop.trellis_full(
; FULL: call i64 @__trellis_atomic_load(ptr %p, i32 4)
; FULL: fadd float
; FULL: %[[OK:.*]] = call i1 @__trellis_atomic_compare_exchange(
; FULL: br i1 %[[OK]]
define float @loop(ptr %p) {
  %old = atomicrmw fadd ptr %p, float 1.0 seq_cst
  ret float %old
}
