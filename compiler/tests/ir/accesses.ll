; Loads and stores of one word each, in every mode.
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-pc-linux-gnu"

; FULL-LABEL: define i32 @load.trellis_full(
; FULL-NEXT: call i32 @__trellis_load_4(ptr %p)
; FULL-NEXT: ret i32
; HEAP-LABEL: define i32 @load.trellis_heap(
; HEAP: %[[A:.*]] = ptrtoint ptr %p to i64
; HEAP-NEXT: %[[O:.*]] = lshr i64 %[[A]], 40
; HEAP-NEXT: %[[IN:.*]] = icmp eq i64 %[[O]], 32
; HEAP-NEXT: br i1 %[[IN]], label %{{.*}}, label %{{.*}}, !prof
; HEAP: %[[S:.*]] = call i32 @__trellis_load_4(ptr %p)
; HEAP: %[[N:.*]] = load i32, ptr %p
; HEAP: phi i32 [ %[[S]], %{{.*}} ], [ %[[N]], %{{.*}} ]
; LINE-LABEL: define i32 @load(
; LINE: lshr i64 %{{.*}}, 40
; LINE: icmp eq i64 %{{.*}}, 32
; LINE: lshr i64 %{{.*}}, 6
; LINE: getelementptr i8, ptr inttoptr (i64 33535104647168 to ptr), i64
; LINE: and i8 %{{.*}}, 1
; LINE: call void @__trellis_line_read(ptr %p, i64 4)
; LINE: load i32, ptr %p
define i32 @load(ptr %p) {
  %v = load i32, ptr %p, align 4
  ret i32 %v
}

; FULL-LABEL: @types.trellis_full(
; FULL: call double @__trellis_load_double(ptr %p)
; FULL: call void @__trellis_store_double(ptr %q, double
; FULL: call ptr @__trellis_load_pointer(
; FULL: call void @__trellis_store_pointer(
; FULL: %[[B:.*]] = call i8 @__trellis_load_1(
; FULL: trunc i8 %[[B]] to i1
; FULL: call void @__trellis_load(ptr %p, ptr %[[T:.*]], i64 10)
; FULL: load x86_fp80, ptr %[[T]]
; FULL: call void @__trellis_store(ptr %q, ptr %{{.*}}, i64 16)
; FULL-NOT: store
; FULL: ret void
define void @types(ptr %p, ptr %q) {
  %d = load double, ptr %p
  store double %d, ptr %q
  %r = load ptr, ptr %p
  store ptr %r, ptr %q
  %b = load i1, ptr %p
  %l = load x86_fp80, ptr %p
  %v = load volatile <4 x i32>, ptr %p
  store <4 x i32> %v, ptr %q
  ret void
}

; Mode line: both ends where an access may straddle two lines, one where it cannot.
; LINE-LABEL: @straddle(
; LINE-COUNT-2: load i8, ptr
; LINE: call void @__trellis_line_write(ptr %p, i64 16)
; LINE: load i8, ptr
; LINE-NOT: load i8, ptr
; LINE: call void @__trellis_line_write(ptr %q, i64 16)
define void @straddle(ptr %p, ptr %q) {
  store <4 x i32> zeroinitializer, ptr %p, align 4
  store <4 x i32> zeroinitializer, ptr %q, align 16
  ret void
}

; Mode line: a load and a store of one address need one check, for writing; a call in between asks again.
; LINE-LABEL: @both(
; LINE-NOT: line_read
; LINE: call void @__trellis_line_write(ptr %p, i64 4)
; LINE-NOT: line_
; LINE: call void @other()
; LINE: call void @__trellis_line_read(ptr %p, i64 4)
define i32 @both(ptr %p) {
  %v = load i32, ptr %p
  %w = add i32 %v, 1
  store i32 %w, ptr %p
  call void @other()
  %x = load i32, ptr %p
  ret i32 %x
}
declare void @other()

; Mode line: neighbours share one check of both ends of what they touch; what is too far away has its own.
; LINE-LABEL: @neighbours(
; LINE: call void @__trellis_line_write(ptr %p, i64 24)
; LINE-NOT: line_
; LINE: call void @__trellis_line_read(ptr %{{.*}}, i64 8)
; LINE-NOT: line_
; LINE: ret
define i64 @neighbours(ptr %p) {
  %a = load i64, ptr %p
  %p1 = getelementptr i8, ptr %p, i64 16
  store i64 %a, ptr %p1
  %p2 = getelementptr i8, ptr %p, i64 8
  %b = load i64, ptr %p2
  %p3 = getelementptr i8, ptr %p, i64 64
  %c = load i64, ptr %p3
  %d = add i64 %b, %c
  ret i64 %d
}

; optnone functions are translated, too.
; FULL-LABEL: @plain.trellis_full(
; FULL: call i64 @__trellis_load_8(
define i64 @plain(ptr %p) noinline optnone {
  %v = load i64, ptr %p
  ret i64 %v
}
