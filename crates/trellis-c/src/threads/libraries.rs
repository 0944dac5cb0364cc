//! Libraries that the program loads after its start (dlopen(3)).
//!
//! Every node loads them, at the same addresses, before any of their functions has run. Then their variables become pages of
//! the region, as those of the program did at its start.
//!
//! Promises: when every node has called [`trellis_threads_share_libraries`], the variables are the region's, with the
//! contents that they had at node 0. Libraries that belong to the process stay as they are, each node's own.

use std::ops::Range;

use trellis_base::fnv1a;

use super::start::with_contents;
use super::{cluster, stop};
use crate::layout::{Layout, Object, objects};

/// The addresses of these libraries. Nothing else lies there: the kernel chooses addresses for mappings from the other end.
pub(super) const LIBRARIES: Range<usize> = 0x0fe0_0000_0000..0x0fe1_0000_0000;

/// Shares the variables of the libraries that lie at these addresses; a number that tells their files and places.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_share_libraries(start: usize, end: usize) -> u64 {
    let new: Vec<Object> = objects().into_iter().filter(|object| (start..end).contains(&object.base)).collect();
    let layout = Layout::of(&new);
    // SAFETY: variables of libraries of which no function has run.
    unsafe {
        with_contents(&layout.images, || {
            for pages in &layout.images {
                if let Err(error) = cluster().region().occupy_part(pages.clone()) {
                    stop(format_args!("the variables of a library cannot be shared: {error}"));
                }
            }
        });
    }
    fnv1a(layout.objects.as_bytes())
}
