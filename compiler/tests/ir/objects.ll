; Mode heap: accesses to one object share a check.
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-pc-linux-gnu"

; From 8 to 28 bytes behind p: the range ends at 27, and is 20 bytes long.
; HEAP-LABEL: @update.trellis_heap(
; HEAP: %[[N:.*]] = ptrtoint ptr %p to i64
; HEAP-NEXT: %[[L:.*]] = add i64 %[[N]], 27
; HEAP-NEXT: %[[B:.*]] = sub i64 %[[L]], 35184372088832
; HEAP-NEXT: %[[O:.*]] = icmp uge i64 %[[B]], 1099511627795
; HEAP-NEXT: br i1 %[[O]], label %[[NATIVE:.*]], label %[[CHECKED:.*]], !prof
; HEAP: [[NATIVE]]:
; HEAP-NOT: lshr
; HEAP: store i32 %{{.*}}, ptr %last
; HEAP-NEXT: br label %[[AFTER:.*]]
; HEAP: [[CHECKED]]:
; HEAP: call i64 @__trellis_load_8(
; HEAP: call void @__trellis_store_8(
; HEAP: call i32 @__trellis_load_4(
; HEAP: call void @__trellis_store_4(
; HEAP: [[AFTER]]:
; HEAP-NEXT: phi i64 [ %{{.*}}, %[[NATIVE]] ], [ %{{.*}}, %{{.*}} ]
; HEAP: ret i64
define i64 @update(ptr %p) {
  %first = getelementptr i8, ptr %p, i64 8
  %last = getelementptr i8, ptr %p, i64 24
  %a = load i64, ptr %first
  %b = add i64 %a, 1
  store i64 %b, ptr %first
  %c = load i32, ptr %last
  %d = add i32 %c, 1
  store i32 %d, ptr %last
  ret i64 %b
}

; What one access finds is another object, with a check of its own; a call ends what is shared.
; HEAP-LABEL: @apart.trellis_heap(
; HEAP-NOT: icmp uge
; HEAP: call void @other
; HEAP-NOT: icmp uge
; HEAP: ret i64
define i64 @apart(ptr %p) {
  %q = load ptr, ptr %p
  %a = load i64, ptr %q
  call void @other()
  %b = load i64, ptr %p
  %c = add i64 %a, %b
  ret i64 %c
}
declare void @other()

; Two objects, more accesses: both are looked at before the first.
; HEAP-LABEL: @two.trellis_heap(
; HEAP: icmp uge
; HEAP: icmp uge
; HEAP-NEXT: and i1
; HEAP-NEXT: br i1
; HEAP: ret void
define void @two(ptr %p, ptr %q) {
  %a = load i64, ptr %p
  %b = load i64, ptr %q
  store i64 %b, ptr %p
  store i64 %a, ptr %q
  ret void
}

; A base that shared accesses made comes from either of their versions.
; HEAP-LABEL: @behind.trellis_heap(
; HEAP: %[[BASE:.*]] = phi ptr [ %q,
; HEAP: ptrtoint ptr %[[BASE]] to i64
; HEAP: icmp uge
; HEAP: ret void
define void @behind(ptr %p) {
  %second = getelementptr i8, ptr %p, i64 8
  %q = load ptr, ptr %p
  store i64 0, ptr %second
  %v = load i64, ptr %q
  %w = add i64 %v, 1
  store i64 %w, ptr %q
  ret void
}
