; Loops in two versions: the range of all addresses decides before the loop.
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-pc-linux-gnu"

; The version without checks loads as before; the other one has a check for each load.
; HEAP-LABEL: define i64 @sum.trellis_heap(
; HEAP: sub i64 %{{.*}}, 35184372088832
; HEAP: icmp uge
; HEAP: freeze i1
; HEAP: br i1 %{{.*}}, label %[[OWN:.*]], label %[[OTHER:.*]], !prof
; HEAP: [[OTHER]]:
; HEAP: lshr i64 %{{.*}}, 40
; HEAP: call i64 @__trellis_load_8(
; HEAP: [[OWN]]:
; HEAP-NOT: lshr
; HEAP: load i64, ptr
; HEAP-NOT: lshr
; HEAP: ret i64
; In mode line the lines of the range may all be ready.
; LINE-LABEL: define i64 @sum(
; LINE: br i1 %{{.*}}, label %[[OWN:.*]], label %[[LOOK:[^,]*]]{{$}}
; LINE: [[LOOK]]:
; LINE: call i1 @__trellis_lines_ready(i64 %{{.*}}, i64 %{{.*}}, i64 %{{.*}}, i64 72340172838076673)
; LINE: call void @__trellis_line_read(
; LINE: [[OWN]]:
; LINE-NOT: lshr
; LINE: load i64, ptr
; LINE-NOT: lshr
; LINE: ret i64
define i64 @sum(ptr %from, i64 %length) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %total = phi i64 [ 0, %entry ], [ %more, %loop ]
  %at = getelementptr inbounds i64, ptr %from, i64 %i
  %value = load i64, ptr %at
  %more = add i64 %total, %value
  %next = add nuw nsw i64 %i, 1
  %done = icmp eq i64 %next, %length
  br i1 %done, label %exit, label %loop
exit:
  ret i64 %more
}

; A trip count without a bound is looked at, so that the range cannot wrap around.
; HEAP-LABEL: @guarded.trellis_heap(
; HEAP: icmp ult i64 %{{.*}}, 2147483648
; HEAP: icmp ult i64 %{{.*}}, 536870912
; HEAP: br i1
define void @guarded(ptr %to, i64 %length, i64 %step) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %index = mul i64 %i, %step
  %at = getelementptr i8, ptr %to, i64 %index
  store i8 0, ptr %at
  %next = add nuw i64 %i, 1
  %done = icmp eq i64 %next, %length
  br i1 %done, label %exit, label %loop
exit:
  ret void
}

; A call may take lines away, so mode line keeps no answer over it; that data is not of the region stays true.
; LINE-LABEL: @calls(
; LINE-NOT: lines_ready
; LINE: br i1 %{{.*}}, label %[[OWN:.*]], label %[[OTHER:.*]], !prof
; LINE: [[OTHER]]:
; LINE: call void @other()
; LINE: line_write
; LINE: [[OWN]]:
; LINE-NOT: line_write
; LINE: call void @other()
; LINE-NEXT: store i64 0
; LINE-NOT: line_write
; LINE: ret void
define void @calls(ptr %to) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = getelementptr inbounds i64, ptr %to, i64 %i
  call void @other()
  store i64 0, ptr %at
  %next = add nuw nsw i64 %i, 1
  %done = icmp eq i64 %next, 100
  br i1 %done, label %exit, label %loop
exit:
  ret void
}
declare void @other()

; The addresses of a list are not known before the loop.
; HEAP-LABEL: @chase.trellis_heap(
; HEAP-NOT: icmp uge
; HEAP: lshr i64 %{{.*}}, 40
; HEAP-NOT: lshr
; HEAP: ret ptr
define ptr @chase(ptr %from, i64 %length) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = phi ptr [ %from, %entry ], [ %to, %loop ]
  %to = load ptr, ptr %at
  %next = add nuw nsw i64 %i, 1
  %done = icmp eq i64 %next, %length
  br i1 %done, label %exit, label %loop
exit:
  ret ptr %to
}

; Functions that are not optimised, or for size, have one version.
; HEAP-LABEL: @plain.trellis_heap(
; HEAP-NOT: icmp uge
; HEAP: lshr i64 %{{.*}}, 40
; HEAP-NOT: lshr
; HEAP: ret void
define void @plain(ptr %to) noinline optnone {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = getelementptr inbounds i64, ptr %to, i64 %i
  store i64 0, ptr %at
  %next = add nuw nsw i64 %i, 1
  %done = icmp eq i64 %next, 100
  br i1 %done, label %exit, label %loop
exit:
  ret void
}

; A nest whose ranges are known before it is decided about once, and in mode line also loop by loop behind that.
; HEAP-LABEL: @nest.trellis_heap(
; HEAP: icmp uge
; HEAP-NOT: icmp uge
; HEAP: ret void
; LINE-LABEL: @nest(
; LINE: call i1 @__trellis_lines_ready(i64 %{{.*}}, i64 %{{.*}}, i64 %{{.*}}, i64 144680345676153346)
; LINE: call i1 @__trellis_lines_ready(i64 %{{.*}}, i64 %{{.*}}, i64 %{{.*}}, i64 144680345676153346)
; LINE-NOT: call i1
; LINE: ret void
define void @nest(ptr %to) {
entry:
  br label %row
row:
  %i = phi i64 [ 0, %entry ], [ %below, %end ]
  %line = getelementptr inbounds [64 x i64], ptr %to, i64 %i
  br label %loop
loop:
  %j = phi i64 [ 0, %row ], [ %next, %loop ]
  %at = getelementptr inbounds i64, ptr %line, i64 %j
  store i64 0, ptr %at
  %next = add nuw nsw i64 %j, 1
  %done = icmp eq i64 %next, 64
  br i1 %done, label %end, label %loop
end:
  %below = add nuw nsw i64 %i, 1
  %over = icmp eq i64 %below, 64
  br i1 %over, label %exit, label %row
exit:
  ret void
}

; LINE: define linkonce_odr hidden i1 @__trellis_lines_ready(
