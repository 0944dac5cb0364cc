//! The operating system. All unsafe code about page tables, signals and kernel structures is in this folder.

pub(crate) mod linux;
