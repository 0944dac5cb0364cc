; Memory intrinsics, masked vectors, parameters by value, variadic functions.
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-pc-linux-gnu"

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.inline.p0.p0.i64(ptr, ptr, i64, i1)
; FULL-LABEL: @bulk.trellis_full(
; FULL: call void @__trellis_copy(ptr %p, ptr %q, i64 %n)
; FULL: call void @__trellis_move(ptr %p, ptr %q, i64 3)
; FULL: call void @__trellis_set(ptr %p, i32 %{{.*}}, i64 9)
; FULL: call void @__trellis_copy(ptr %p, ptr %q, i64 16)
; HEAP-LABEL: @bulk.trellis_heap(
; HEAP: or i1
; HEAP: call void @__trellis_copy(
; HEAP: call void @llvm.memcpy
; LINE-LABEL: @bulk(
; LINE: call void @__trellis_line_read(ptr %q, i64 %n)
; LINE: call void @__trellis_line_write(ptr %p, i64 %n)
; LINE: call void @llvm.memcpy
define void @bulk(ptr %p, ptr %q, i64 %n, i8 %b) {
  call void @llvm.memcpy.p0.p0.i64(ptr %p, ptr %q, i64 %n, i1 false)
  call void @llvm.memmove.p0.p0.i64(ptr %p, ptr %q, i64 3, i1 false)
  call void @llvm.memset.p0.i64(ptr %p, i8 %b, i64 9, i1 true)
  call void @llvm.memcpy.inline.p0.p0.i64(ptr %p, ptr %q, i64 16, i1 false)
  ret void
}

declare <4 x i32> @llvm.masked.load.v4i32.p0(ptr, i32, <4 x i1>, <4 x i32>)
declare void @llvm.masked.scatter.v2i64.v2p0(<2 x i64>, <2 x ptr>, i32, <2 x i1>)
; FULL-LABEL: @masked.trellis_full(
; FULL: extractelement <4 x i1> %m, i64 0
; FULL: call i32 @__trellis_load_4(
; FULL-COUNT-3: call i32 @__trellis_load_4(
; FULL-COUNT-2: call void @__trellis_store_8(
; FULL-NOT: llvm.masked
; FULL: ret
; HEAP-LABEL: @masked.trellis_heap(
; HEAP: call <4 x i32> @llvm.masked.load
; HEAP: call i1 @llvm.vector.reduce.or
; HEAP: call void @llvm.masked.scatter
; LINE-LABEL: @masked(
; LINE: call void @__trellis_line_read(ptr %p, i64 16)
; LINE: call <4 x i32> @llvm.masked.load
; LINE-COUNT-2: call void @__trellis_line_write(ptr %{{.*}}, i64 8)
; LINE: call void @llvm.masked.scatter
define <4 x i32> @masked(ptr %p, <4 x i1> %m, <2 x i64> %v, <2 x ptr> %ps, <2 x i1> %n) {
  %r = call <4 x i32> @llvm.masked.load.v4i32.p0(ptr %p, i32 4, <4 x i1> %m, <4 x i32> poison)
  call void @llvm.masked.scatter.v2i64.v2p0(<2 x i64> %v, <2 x ptr> %ps, i32 8, <2 x i1> %n)
  ret <4 x i32> %r
}

; FULL-LABEL: @by_value.trellis_full(
; FULL: call void @__trellis_import(ptr %o, i64 64)
; FULL: call void @__trellis_load(ptr %p, ptr %[[C:.*]], i64 64)
; FULL: call void @by_value.trellis_full(ptr byval([8 x i64]) %[[C]], ptr
; HEAP-LABEL: @by_value.trellis_heap(
; HEAP: call void @__trellis_load(ptr %p, ptr %[[C:.*]], i64 64)
; HEAP: call void @by_value.trellis_heap(ptr byval([8 x i64]) %[[C]], ptr
define void @by_value(ptr byval([8 x i64]) %o, ptr %p) {
  call void @by_value(ptr byval([8 x i64]) %p, ptr %p)
  ret void
}

declare void @llvm.va_start.p0(ptr)
; FULL-LABEL: @variadic.trellis_full(
; FULL: load i64, ptr %[[SLOT:.*]]
; FULL: store i64 0, ptr %[[SLOT]]
; FULL: call void @llvm.va_start
; FULL: call void @__trellis_import(ptr %{{.*}}, i64 176)
; FULL: call void @__trellis_import(ptr
; FULL: call void @__trellis_store(ptr %list, ptr %{{.*}}, i64 24)
; Seven integers: one register was taken by the fixed one, so two are on the stack.
; FULL: store i64 16, ptr
; FULL: call void (i32, ...) @variadic.trellis_full(
define void @variadic(i32 %n, ...) {
  %list = alloca [24 x i8], align 16
  call void @llvm.va_start.p0(ptr %list)
  call void (i32, ...) @variadic(i32 7, i32 1, i32 2, i32 3, i32 4, i32 5, i64 6, i64 7)
  ret void
}

; What was promised about memory no longer holds.
; FULL-LABEL: define i32 @promised.trellis_full(
; FULL-NOT: memory(
; FULL: call i32 @__trellis_load_4
define i32 @promised(ptr readonly dereferenceable(4) %p) memory(argmem: read) willreturn nosync nofree {
  %v = load i32, ptr %p
  ret i32 %v
}
