//! Create, read, update and delete of one page each: over UDP through the switch, and over libfabric.
//!
//! Promises: the same four operations on objects of one page, one after the other, each answered before the next;
//! what is read is what was written. Over libfabric, the bytes of a page are written one-sidedly into the receiver's
//! memory, and create and delete are messages, as in the paper.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use trellis_switch::lab::Lab;

use super::measure::PaperTask;
use crate::bench::figures::p50;
use crate::bench::switch::latency::client_in;
use crate::bench::switch::served::{self, Answers, PAGE_BYTES, Served};
use trellis_command::exit::{self, Failure};

/// The server's memory; every object is deleted before the next one is created.
const MEMORY_BYTES: usize = 1 << 20;
/// In the paper's order.
pub(super) const OPERATIONS: [&str; 4] = ["Create", "Read", "Update", "Delete"];

/// The median times of the operations, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Requests {
    /// What they ran over.
    pub(super) over: String,
    pub(super) us_p50: [f64; 4],
}

/// One object after the other is created, written, read and deleted.
pub(super) fn over_udp(task: &PaperTask, lab: &Lab) -> Result<Requests, Failure> {
    let host = served::host(lab, "s2")?;
    let home = served::prefix(lab.cluster(), host.plan().number);
    let _server = Served::start(host, home, MEMORY_BYTES, Answers::Process)?;
    let mut client = client_in(lab, "c1")?;
    let mut times = [(); 4].map(|()| Vec::with_capacity(task.pages));
    let mut page = vec![0; PAGE_BYTES];
    for number in 0..task.pages * task.runs as usize {
        let mut timed = |operation: usize, work: &mut dyn FnMut() -> Result<(), Failure>| {
            let start = Instant::now();
            work()?;
            times[operation].push(start.elapsed().as_secs_f64() * 1e6);
            Ok::<(), Failure>(())
        };
        let mut pointer = None;
        timed(0, &mut || {
            pointer = Some(client.create(home.host, PAGE_BYTES as u64).map_err(served::remote)?);
            Ok(())
        })?;
        let pointer = pointer.expect("it was made");
        page[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
        timed(2, &mut || client.write(pointer, &page).map_err(served::remote))?;
        let mut read = vec![0; PAGE_BYTES];
        timed(1, &mut || client.read(pointer, &mut read).map_err(served::remote))?;
        if read != page {
            return Err(Failure::new(exit::FAILED, "what was read is not what was written"));
        }
        timed(3, &mut || client.delete(pointer).map_err(served::remote))?;
    }
    Ok(Requests { over: format!("UDP, switch {}", task.switch), us_p50: times.map(p50) })
}
