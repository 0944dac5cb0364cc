//! What the operating system gives. All unsafe code about page tables, signals and kernel
//! structures is below here.

pub(crate) mod linux;
