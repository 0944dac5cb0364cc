//! The operating system. All unsafe code about page tables, signals and kernel structures is below here.

pub(crate) mod linux;
