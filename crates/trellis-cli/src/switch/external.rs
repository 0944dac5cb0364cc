//! `trellis switch run --openflow`: controls a switch of another program by OpenFlow, in builds with the cargo feature
//! `openflow`.
//!
//! Promises: if a signal ends the wait for the other program, the socket for it is removed.

use trellis_output::sockets::SocketFile;
use trellis_switch::switches::openflow::{COUNTED_PAGES, OpenFlow, OpenFlowPort, OpenFlowWiring};
use trellis_switch::switches::waits::CONNECTING;
use trellis_switch::{Cluster, Switch};

use super::failure;
use super::run::{Listed, RunArguments};
use trellis_command::ending::Ends;
use trellis_command::exit::{self, Failure};

pub(super) use trellis_switch::switches::openflow::ConnectionMethod;

/// Connects to a switch of another program; also returns the file of the socket at which that connects, if there is one.
pub(super) fn connect(
    arguments: &RunArguments,
    method: &ConnectionMethod,
    cluster: Cluster,
    listed: &[Listed],
    ends: &Ends,
) -> Result<(Box<dyn Switch>, Option<SocketFile>), Failure> {
    let refused = |sentence: String| Failure::new(exit::CONFIGURATION, sentence);
    if let Some(kind) = arguments.switch.as_deref().filter(|&kind| kind != "openflow") {
        return Err(refused(format!(
            "the switch {kind} is no switch of another program; with --openflow, leave --switch out"
        )));
    }
    let port = |(listed, number): (&Listed, u16)| {
        let at_switch = listed.interface.parse().map_err(|_| {
            let named = &listed.interface;
            refused(format!(
                "`{named}` is not a number of a port of the switch; with --openflow, give numbers in place of interfaces"
            ))
        })?;
        Ok(OpenFlowPort { number, at_switch, host_mac: listed.hardware_address })
    };
    let wiring = OpenFlowWiring {
        cluster,
        method: method.clone(),
        datapath: None,
        ports: listed.iter().zip(1..).map(port).collect::<Result<_, Failure>>()?,
        redirects_max: arguments.redirects,
        counted_pages_max: COUNTED_PAGES,
        timeout: CONNECTING.time(),
        report: Some(trellis_output::lines::report),
    };
    let (switch, file) = ends.prepare(|| {
        let switch = OpenFlow::listen(&wiring).map_err(|error| failure(&error))?;
        let file = switch.socket_file().cloned();
        let removed = file.clone();
        Ok::<_, Failure>(((switch, file), move || removed.iter().for_each(SocketFile::remove)))
    })?;
    switch.begin(wiring.timeout).map_err(|error| failure(&error))?;
    Ok((Box::new(switch), file))
}
