; Names: what is translated is found under a name of its own, and only there.
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-pc-linux-gnu"

; HEAP-DAG: $inline.trellis_heap = comdat any
; HEAP-DAG: @_ZTV1X.trellis_heap = linkonce_odr constant { [1 x ptr] } { [1 x ptr] [ptr @inline.trellis_heap] }, comdat
; HEAP-DAG: @shared = linkonce_odr global i32 0, comdat
; HEAP-DAG: @sin = alias double (double), ptr @sin.trellis_heap
$inline = comdat any
$_ZTV1X = comdat any
$shared = comdat any
@_ZTV1X = linkonce_odr constant { [1 x ptr] } { [1 x ptr] [ptr @inline] }, comdat
@shared = linkonce_odr global i32 0, comdat

; HEAP-LABEL: define linkonce_odr void @inline.trellis_heap() comdat
; LINE-LABEL: define linkonce_odr void @inline() comdat
define linkonce_odr void @inline() comdat {
  ret void
}

; A definition with the name of a native function stays reachable under it.
; HEAP: define double @sin.trellis_heap(
define double @sin(double %x) {
  ret double %x
}

; HEAP-LABEL: define i32 @main()
; HEAP: call void @unknown.trellis_heap()
; HEAP: call i32 @getpid()
; HEAP: call ptr @malloc.trellis_heap(i64 8)
; LINE-LABEL: define i32 @main()
; LINE: call void @unknown()
; LINE: call i32 @getpid()
; LINE: call ptr @malloc.trellis_line(i64 8)
declare void @unknown()
declare i32 @getpid()
declare ptr @malloc(i64)
define i32 @main() {
  call void @unknown()
  %p = call i32 @getpid()
  %m = call ptr @malloc(i64 8)
  ret i32 %p
}
