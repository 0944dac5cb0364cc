; What provably lies elsewhere stays as it is.
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-pc-linux-gnu"

@variable = global i32 1
@constant = constant i32 2
@tls = thread_local global i32 3

; HEAP-LABEL: @private.trellis_heap(
; HEAP-NOT: icmp
; HEAP: ret i32
; LINE-LABEL: @private(
; LINE-NOT: icmp
; LINE: ret i32
; FULL-LABEL: @private.trellis_full(
; FULL: call void @__trellis_store_4(ptr %local
; FULL: call i32 @__trellis_load_4(ptr @variable)
; FULL: load i32, ptr @constant
; FULL: load i32, ptr %tls
define i32 @private() {
  %local = alloca i32
  store i32 1, ptr %local
  %a = load i32, ptr @variable
  %b = load i32, ptr @constant
  %tls = call ptr @llvm.threadlocal.address.p0(ptr @tls)
  %c = load i32, ptr %tls
  %d = add i32 %a, %b
  %e = add i32 %c, %d
  ret i32 %e
}

; A parameter of a function whose callers all pass private memory, through the slot that -O0 makes of it.
; HEAP-LABEL: define internal void @inner(
; HEAP-NOT: icmp
; HEAP: ret void
define internal void @inner(ptr %p) {
  %slot = alloca ptr
  store ptr %p, ptr %slot
  %again = load ptr, ptr %slot
  store i8 0, ptr %again
  ret void
}
define void @caller() {
  %local = alloca [4 x i8]
  call void @inner(ptr %local)
  ret void
}

; One caller that passes something else is enough.
; HEAP-LABEL: define internal void @mixed(
; HEAP: icmp eq
define internal void @mixed(ptr %p) {
  store i8 0, ptr %p
  ret void
}
define void @callers(ptr %any) {
  %local = alloca i8
  call void @mixed(ptr %local)
  call void @mixed(ptr %any)
  ret void
}

; Mode full: a thread-local whose address goes elsewhere is kept native.
; FULL-LABEL: @escaping.trellis_full(
; FULL: call void @__trellis_keep_native(ptr %t, i64 4)
declare ptr @llvm.threadlocal.address.p0(ptr)
declare void @use(ptr)
define void @escaping() {
  %t = call ptr @llvm.threadlocal.address.p0(ptr @tls)
  call void @use(ptr %t)
  ret void
}
