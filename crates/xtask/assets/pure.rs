//! Two nodes of the real protocol, and a memory server that grants a lease, in a program without `std`, libc and
//! loader.
//!
//! Node 1 stores into a page whose home is node 0, over the real wire format, with several protocols. The exit status
//! is 0 if node 1 may store and node 0 may not even load, 1 if not, 2 after a panic, 3 if the memory did not suffice.
#![no_std]
#![no_main]
// The functions below must not be compiled into calls of themselves.
#![no_builtins]

extern crate alloc;

use alloc::vec::Vec;
use core::alloc::{GlobalAlloc, Layout};
use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

use trellis_cluster_protocol::coherence::{Coherence, Effect, Geometry, Input, Protocol, Running};
use trellis_cluster_protocol::homes::{Home, Manager};
use trellis_cluster_protocol::wire::{self, Limits, Message};
use trellis_cluster_protocol::{Access, NodeId, PageIndex, PageRange};
use trellis_fabric_protocol::lease::server::{Input as Fact, RangeServer};
use trellis_fabric_protocol::lease::{Ask, Effect as Order, Host, Message as Said, Party, Status, Timing};

const PAGE: PageIndex = PageIndex(3);
const PAGES: u32 = 16;

/// With a manager, without one, and with a layer.
fn prove_all() -> bool {
    let locked = "lock(dynamic(forward))".parse();
    prove(Protocol::IVY) && prove(Protocol::DYNAMIC) && locked.is_ok_and(prove) && prove_lease()
}

/// A server grants the first client's request if no other host has copies.
fn prove_lease() -> bool {
    let mut effects = Vec::new();
    let mut server = RangeServer::alone(Host(1), 4, Timing::new(1_000, 600, 10, 0), 1, 0, None);
    let client = Party { host: Host(2), incarnation: 1 };
    server.step(1, Fact::Message(client, Said::Request { page: 3, request: 1, ask: Ask::Update }), &mut effects);
    let is_granted = |effect: &Order| {
        matches!(effect, Order::Send { to, message: Said::Reply { page: 3, status: Status::Ok, .. }, .. } if *to == client)
    };
    effects.iter().any(is_granted)
}

fn prove(protocol: Protocol) -> bool {
    let limits = Limits { pages: PAGES, page_bytes: 4096, nodes: 2, epoch: 1 };
    let mut nodes = [start(protocol, NodeId(0)), start(protocol, NodeId(1))];
    let mut network: Vec<(NodeId, NodeId, wire::Encoded)> = Vec::new();
    let fault = Input::Fault { page: PAGE, write: true, wanted: PageRange::one(PAGE) };
    step(&mut nodes[1], NodeId(1), fault, &mut network);
    while !network.is_empty() {
        let (from, to, frame) = network.remove(0);
        let Ok(Message::Coherence(message)) = wire::decode(&frame.header, frame.body(), &limits) else {
            return false;
        };
        step(&mut nodes[usize::from(to.0)], to, Input::Message { from, message }, &mut network);
    }
    nodes[1].access(PAGE) == Access::Write && nodes[0].access(PAGE) == Access::None
}

fn start(protocol: Protocol, me: NodeId) -> Running {
    let home = Home::Manager(Manager(NodeId(0)));
    protocol.start(Geometry { me, nodes: 2, founders: 2, pages: PAGES, shard: 0, shards: 1, home, marks: false })
}

fn step(node: &mut Running, me: NodeId, input: Input, network: &mut Vec<(NodeId, NodeId, wire::Encoded)>) {
    let mut effects = Vec::new();
    node.step(0, input, &mut effects);
    for effect in effects {
        if let Effect::Send { to, message } = effect {
            network.push((me, to, wire::encode(&Message::Coherence(message), 1)));
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn pure_main() -> ! {
    exit(if prove_all() { 0 } else { 1 })
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(2)
}

// The kernel enters with an aligned stack without a return address.
#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "and rsp, -16", "call pure_main", "ud2");
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x29, #0", "mov x30, #0", "bl pure_main", "udf #0");

#[cfg(target_arch = "x86_64")]
fn exit(code: usize) -> ! {
    // SAFETY: exit_group(2) takes one number and does not return.
    unsafe { asm!("syscall", in("rax") 231, in("rdi") code, options(noreturn)) }
}

#[cfg(target_arch = "aarch64")]
fn exit(code: usize) -> ! {
    // SAFETY: exit_group(2) takes one number and does not return.
    unsafe { asm!("svc #0", in("x8") 94, in("x0") code, options(noreturn)) }
}

const MEMORY_BYTES: usize = 4 << 20;

/// Memory that is allocated once and never freed.
#[repr(align(64))]
struct Memory(UnsafeCell<[u8; MEMORY_BYTES]>, AtomicUsize);

// SAFETY: every byte is allocated once, and the count is atomic.
unsafe impl Sync for Memory {}

#[global_allocator]
static MEMORY: Memory = Memory(UnsafeCell::new([0; MEMORY_BYTES]), AtomicUsize::new(0));

// SAFETY: blocks are aligned, of the requested length, inside the array, and disjoint.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = self.1.load(Ordering::Relaxed).next_multiple_of(layout.align());
        if layout.align() > 64 || start + layout.size() > MEMORY_BYTES {
            exit(3);
        }
        self.1.store(start + layout.size(), Ordering::Relaxed);
        // SAFETY: `start` is inside the array.
        unsafe { self.0.get().cast::<u8>().add(start) }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

// Functions that the compiler itself calls, and that a C library would otherwise provide.

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    for index in 0..count {
        // SAFETY: the caller's promise.
        unsafe { *to.add(index) = *from.add(index) };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if (to as usize) <= from as usize {
        // SAFETY: with the target first, ascending order never overwrites bytes that are still to be read.
        return unsafe { memcpy(to, from, count) };
    }
    for index in (0..count).rev() {
        // SAFETY: the caller's promise.
        unsafe { *to.add(index) = *from.add(index) };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
    for index in 0..count {
        // SAFETY: the caller's promise.
        unsafe { *to.add(index) = value as u8 };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    for index in 0..count {
        // SAFETY: the caller's promise.
        let (left, right) = unsafe { (*left.add(index), *right.add(index)) };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
    }
    0
}

/// `core` and `alloc` are compiled for unwinding and refer to these two; with `panic=abort` they are never called.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() -> ! {
    exit(2)
}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    exit(2)
}
