//! The settings of a program: the variables `OMP_…` of the environment, and functions like `omp_set_num_threads` (the
//! internal control variables of OpenMP 5.2, section 2).
//!
//! Promises: each thread has its own settings, which it inherits from the thread that began its region. A variable that
//! is malformed counts as if it were not set, as in the libraries of the compilers.

use super::sharing::Kind;
use crate::control::SLOTS;
use crate::processors;

/// The greatest number of nested regions that can be active.
pub(super) const LEVELS_MAX: u32 = 8;

/// The settings of one thread; see the module text.
#[derive(Clone, Copy, PartialEq)]
#[repr(C)]
pub(super) struct Settings {
    /// The number of threads of a region, by its level: `OMP_NUM_THREADS` may have several. 0 ends the list; the first is 0
    /// while the settings are not known.
    threads: [u32; LEVELS_MAX as usize],
    pub(super) thread_limit: u32,
    /// The greatest number of nested regions with several threads.
    pub(super) active_levels_max: u32,
    pub(super) is_dynamic: bool,
    /// Whether constructs can be cancelled.
    pub(super) cancels: bool,
    /// The allocator that a call without one uses.
    pub(super) allocator: usize,
    /// The schedule that `schedule(runtime)` stands for.
    pub(super) schedule: Kind,
    pub(super) batch: u32,
    /// Whether the program wants its batches to ascend, which they always do.
    pub(super) is_monotonic: bool,
}

impl Settings {
    /// The settings before the environment was read.
    pub(super) const UNKNOWN: Settings = Settings {
        threads: [0; LEVELS_MAX as usize],
        thread_limit: 0,
        active_levels_max: 1,
        is_dynamic: false,
        cancels: false,
        allocator: super::allocators::DEFAULT,
        schedule: Kind::Dynamic,
        batch: 1,
        is_monotonic: false,
    };

    pub(super) fn is_known(&self) -> bool {
        self.threads[0] > 0
    }

    /// The settings from the environment of the program.
    pub(super) fn of_environment() -> Settings {
        let text = |name: &str| std::env::var(name).ok();
        let number = |name: &str| text(name).and_then(|value| value.trim().parse::<u32>().ok());
        let is_true = |name: &str| text(name).is_some_and(|value| value.trim().eq_ignore_ascii_case("true"));
        let processors = processors::count() as u32;
        let thread_limit = number("OMP_THREAD_LIMIT").filter(|limit| *limit > 0);
        let mut settings = Settings { thread_limit: thread_limit.unwrap_or(SLOTS as u32), ..Settings::UNKNOWN };
        let list = text("OMP_NUM_THREADS").and_then(|list| threads_of(&list));
        settings.threads = list.unwrap_or([processors, 0, 0, 0, 0, 0, 0, 0]);
        let is_nested = is_true("OMP_NESTED") || settings.threads[1] > 0;
        settings.active_levels_max =
            number("OMP_MAX_ACTIVE_LEVELS").unwrap_or(if is_nested { LEVELS_MAX } else { 1 }).min(LEVELS_MAX);
        settings.is_dynamic = is_true("OMP_DYNAMIC");
        settings.cancels = is_true("OMP_CANCELLATION");
        if let Some((kind, batch)) = text("OMP_SCHEDULE").and_then(|schedule| schedule_of(&schedule)) {
            (settings.schedule, settings.batch) = (kind, batch);
        }
        settings
    }

    /// The number of threads of the next region.
    pub(super) fn threads(&self) -> u32 {
        self.threads[0].min(self.thread_limit)
    }

    pub(super) fn set_threads(&mut self, threads: u32) {
        self.threads[0] = threads.max(1);
    }

    /// The settings of the threads of a region with several threads.
    pub(super) fn inside(mut self) -> Settings {
        if self.threads[1] > 0 {
            self.threads.rotate_left(1);
            self.threads[LEVELS_MAX as usize - 1] = 0;
        }
        self
    }
}

/// `OMP_NUM_THREADS`: numbers with commas between them.
fn threads_of(list: &str) -> Option<[u32; LEVELS_MAX as usize]> {
    let mut threads = [0; LEVELS_MAX as usize];
    for (place, number) in list.split(',').enumerate() {
        let number = number.trim().parse::<u32>().ok().filter(|number| *number > 0)?;
        if let Some(place) = threads.get_mut(place) {
            *place = number;
        }
    }
    Some(threads)
}

/// `OMP_SCHEDULE`: a kind, perhaps after a modifier and a colon, perhaps with a comma and the size of a batch.
fn schedule_of(text: &str) -> Option<(Kind, u32)> {
    let text = text.rsplit(':').next()?;
    let (kind, batch) = text.split_once(',').map_or((text, None), |(kind, batch)| (kind, Some(batch)));
    let batch = match batch {
        Some(batch) => batch.trim().parse::<u32>().ok()?,
        None => 0,
    };
    let kind = match kind.trim().to_ascii_lowercase().as_str() {
        "static" => Kind::Static,
        "dynamic" => Kind::Dynamic,
        "guided" => Kind::Guided,
        "auto" => return Some((Kind::Static, 0)),
        _ => return None,
    };
    Some((kind, if kind == Kind::Static { batch } else { batch.max(1) }))
}
