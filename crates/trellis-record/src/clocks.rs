//! The cost of reading clocks.

use std::time::Instant;

#[cfg(not(target_arch = "x86_64"))]
static ZERO: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();

/// The processor time of this thread.
pub fn thread_time_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to this stack; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A counter of the processor that rises all the time, one to four times in a nanosecond. It is read much faster than the
/// clock, and is good enough to say whether a moment has passed.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every processor of this kind has the instruction, and the kernel allows it.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        Instant::now().duration_since(*ZERO.get_or_init(Instant::now)).as_nanos() as u64
    }
}

/// The cost of one reading on this machine: of the clock, and of a thread's processor time.
pub(crate) fn clock_costs_ns() -> (f64, f64) {
    const READINGS: u32 = 2000;
    let cost = |read: &dyn Fn() -> u64| {
        let started = Instant::now();
        for _ in 0..READINGS {
            std::hint::black_box(read());
        }
        started.elapsed().as_nanos() as f64 / f64::from(READINGS)
    };
    let zero = Instant::now();
    (cost(&|| zero.elapsed().as_nanos() as u64), cost(&thread_time_ns))
}
