//! Decodes a signal's machine context: whether the access was a write, and where the stack was.
//!
//! It is called from signal handlers, and must never change the context.

use libc::ucontext_t;

/// Whether the fault that raised the signal was a write.
///
/// On x86-64, this is bit 1 of the page-fault error code.
///
/// # Safety
/// `context` is the third argument of a signal handler.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn was_write(context: *const ucontext_t) -> bool {
    const WRITE: i64 = 1 << 1;
    // SAFETY: the caller's promise.
    let code = unsafe { (*context).uc_mcontext.gregs[libc::REG_ERR as usize] };
    code & WRITE != 0
}

/// The stack pointer of the interrupted code.
///
/// # Safety
/// `context` is the third argument of a signal handler.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn stack_pointer(context: *const ucontext_t) -> usize {
    // SAFETY: the caller's promise.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RSP as usize] as usize }
}

/// Whether the fault that raised the signal was a write.
///
/// On aarch64, the kernel appends records to the context. The one with the exception syndrome has bit WnR, which cache
/// maintenance (bit CM) sets too although it needs no right to write.
///
/// # Safety
/// `context` is the third argument of a signal handler.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn was_write(context: *const ucontext_t) -> bool {
    const SYNDROME_MAGIC: u32 = 0x4553_5201;
    const RECORDS_OFFSET: usize = 288;
    const RECORDS_BYTES: usize = 4096;
    const WRITE_NOT_READ: u64 = 1 << 6;
    const CACHE_MAINTENANCE: u64 = 1 << 8;
    // SAFETY: the caller's promise; the records follow the registers inside the same object.
    let records = unsafe { (&raw const (*context).uc_mcontext).cast::<u8>().add(RECORDS_OFFSET) };
    let mut offset = 0;
    while offset + 16 <= RECORDS_BYTES {
        // SAFETY: within the records' area, which the kernel filled up to a record of magic and size zero.
        let (magic, bytes) = unsafe {
            let head = records.add(offset).cast::<u32>();
            (head.read(), head.add(1).read())
        };
        if magic == SYNDROME_MAGIC {
            // SAFETY: the syndrome follows the head of its record.
            let syndrome = unsafe { records.add(offset + 8).cast::<u64>().read() };
            return syndrome & WRITE_NOT_READ != 0 && syndrome & CACHE_MAINTENANCE == 0;
        }
        if bytes == 0 {
            break;
        }
        offset += bytes as usize;
    }
    // There is no syndrome. A write that is taken for a read faults again, as a write, when the page is readable.
    false
}

/// The stack pointer of the interrupted code.
///
/// # Safety
/// `context` is the third argument of a signal handler.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn stack_pointer(context: *const ucontext_t) -> usize {
    // SAFETY: the caller's promise.
    unsafe { (*context).uc_mcontext.sp as usize }
}
