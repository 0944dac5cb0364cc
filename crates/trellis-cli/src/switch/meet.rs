//! `trellis switch run --meet`: controls a switch of another program by OpenFlow, in builds with the cargo feature
//! `openflow`.
//!
//! Promises: if a signal ends the wait for the other program, the socket for it is removed. Must never remove a file
//! that is not a socket.

use std::fs;
use std::os::unix::fs::FileTypeExt;

use trellis_switch::switches::openflow::{COUNTED_PAGES, OpenFlow, OpenFlowPort, OpenFlowWiring};
use trellis_switch::switches::waits::CONNECTING;
use trellis_switch::{Cluster, Switch};

use super::failure;
use super::run::{Listed, RunArguments};
use trellis_command::ending::Ends;
use trellis_command::exit::{self, Failure};

pub(super) use trellis_switch::switches::openflow::ConnectionMethod;

/// Connects to a switch of another program.
pub(super) fn meet(
    arguments: &RunArguments,
    method: &ConnectionMethod,
    cluster: Cluster,
    listed: &[Listed],
    ends: &Ends,
) -> Result<Box<dyn Switch>, Failure> {
    if let ConnectionMethod::ListenFile(file) = method.clone() {
        // Until the other program has connected, there is nothing else to end.
        ends.by(move || {
            // The file may not exist yet, and a file that is not a socket belongs to others.
            if fs::symlink_metadata(&file).is_ok_and(|about| about.file_type().is_socket()) {
                let _ = fs::remove_file(file);
            }
            std::process::exit(128 + libc::SIGTERM);
        });
    }
    let refused = |sentence: String| Failure::new(exit::CONFIGURATION, sentence);
    if let Some(kind) = arguments.switch.as_deref().filter(|&kind| kind != "openflow") {
        return Err(refused(format!("the switch {kind} is met nowhere; --meet is for --switch openflow")));
    }
    let port = |(listed, number): (&Listed, u16)| {
        let at_switch = listed.interface.parse().map_err(|_| {
            let named = &listed.interface;
            refused(format!(
                "`{named}` is not a number of a port of the switch; with --meet, give numbers in place of interfaces"
            ))
        })?;
        Ok(OpenFlowPort { number, at_switch, host_mac: listed.hardware_address })
    };
    let switch = OpenFlow::open(&OpenFlowWiring {
        cluster,
        method: method.clone(),
        datapath: None,
        ports: listed.iter().zip(1..).map(port).collect::<Result<_, Failure>>()?,
        redirects_max: arguments.redirects,
        counted_pages_max: COUNTED_PAGES,
        timeout: CONNECTING.time(),
        report: Some(trellis_store::complain),
    });
    Ok(Box::new(switch.map_err(|error| failure(&error))?))
}
