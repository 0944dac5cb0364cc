//! The program with its memory at a memory server, in labs of this benchmark.
//!
//! It runs in the process that [`inside`] makes, so that servers and labs end with the benchmark.

use std::process::{Command, Stdio};

use trellis::remote::HostPrefix;
use trellis_switch::lab::{Host, Lab};
use trellis_switch::switches;

use super::program::{self, Passes};
use super::{Found, Made, PagingTask};
use crate::bench::switch::latency::up;
use crate::bench::switch::served::{self, Answers, Served};
use crate::bench::switch::{bare, inside};
use trellis_command::exit::{self, Failure};
use trellis_command::installed;

/// The way without a switch.
pub(super) const VETH: &str = "remote_veth";
/// A server's memory in addition to the working set: room for rounding up to objects.
const ROOM_BYTES: u64 = 256 << 20;

/// Measures every way that uses a network.
pub(crate) fn measure(task: &PagingTask) -> Result<Found, Failure> {
    let mut found = Vec::new();
    for (place, switch) in task.switches.iter().enumerate() {
        let way = format!("remote_{switch}");
        let lab = match up("paging", switch, 2, 2, switches::REDIRECTS) {
            Ok(lab) => lab,
            Err(failure) => {
                found.push((way, Err(failure.sentence)));
                continue;
            }
        };
        if place == 0 {
            found.push((VETH.to_owned(), without_switch(&lab, task)?));
        }
        let [client, server] = [served::host(&lab, "c1")?, served::host(&lab, "s1")?];
        let [own, home] = [client, server].map(|host| served::prefix(lab.cluster(), host.plan().number));
        found.push((way, Ok(run(task, client, own, server, home)?)));
    }
    Ok(Found(found))
}

fn without_switch(lab: &Lab, task: &PagingTask) -> Result<Made, Failure> {
    let [client, server] = [served::host(lab, "c2")?, served::host(lab, "s2")?];
    let [own, home] = bare::join(lab, client, server)?;
    run(task, client, own, server, home).map(Ok)
}

/// Runs the program in one host with its memory in another.
fn run(task: &PagingTask, client: &Host, own: HostPrefix, server: &Host, home: HostPrefix) -> Result<Passes, Failure> {
    let memory_bytes = usize::try_from(task.sizes.bytes + ROOM_BYTES)
        .map_err(|_| Failure::new(exit::USAGE, "the working set is larger than any memory"))?;
    let _served = Served::start(server, home, memory_bytes, Answers::Process)?;
    let url = format!("memory-server:{home}?prefix={own}&piece={}&deadline=60", task.piece_bytes);
    let mut command = Command::new(installed::command()?);
    command.args([
        "store",
        "run",
        "--statistics",
        "--store",
        &url,
        "--cache",
        &task.sizes.cache_bytes.to_string(),
        "--",
    ]);
    command.arg(&task.program).args(program::arguments(task.sizes)).stdin(Stdio::null());
    // The variables of the user's shell about regions do not apply to this program.
    for variable in
        ["TRELLIS_STORE_REGION", "TRELLIS_STORE_DELAY_US", "TRELLIS_STORE_HEAP", "TRELLIS_STORE_REGION_BYTES"]
    {
        command.env_remove(variable);
    }
    let output = client.run(|| command.output()).map_err(|error| inside::failure(&error))?;
    program::read(&output.map_err(program::cannot_run)?, true)
}
