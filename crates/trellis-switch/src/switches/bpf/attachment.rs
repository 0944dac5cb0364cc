//! Loads the program of the switch, in one of its two forms, and attaches it to the interfaces.

use aya::maps::{DevMap, MapData};
use aya::programs::{Program, SchedClassifier, TcAttachType, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};

use super::{failed, table};
use crate::entries::Port;
use crate::error::SwitchError;
use crate::switches::{self, Attach, Wiring};

const PROGRAM: &str = "trellis_switch";
static AT_TC: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/switch.bpf.o"));
static AT_XDP: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/switch.xdp.bpf.o"));

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// After the kernel has built a packet from a frame. A pair of interfaces is crossed without a queue.
    Tc,
    /// Before that, in the driver if it supports this.
    Xdp,
}

/// The forms to be tried, the best one first. If each host is behind an interface of its own, and not behind a pair, a
/// frame is forwarded faster before a packet is built from it.
pub(super) fn forms(wiring: &Wiring) -> &'static [Form] {
    let behind_wires = !wiring.ports.is_empty() && wiring.ports.iter().all(|port| !port.is_pair);
    match wiring.attach {
        Attach::Tc => &[Form::Tc],
        Attach::Xdp => &[Form::Xdp],
        Attach::Auto if behind_wires => &[Form::Xdp, Form::Tc],
        Attach::Auto => &[Form::Tc],
    }
}

/// Loads the program into the kernel. This must happen before any of its tables may be closed.
pub(super) fn load(form: Form, redirects_max: u32) -> Result<Ebpf, SwitchError> {
    let object = match form {
        Form::Tc => AT_TC,
        Form::Xdp => AT_XDP,
    };
    let mut all = EbpfLoader::new()
        .map_max_entries("redirects", redirects_max)
        .load(object)
        .map_err(|error| failed("load the switch into the kernel", &error))?;
    let loaded = match program(&mut all)? {
        Program::SchedClassifier(classifier) => classifier.load(),
        Program::Xdp(xdp) => xdp.load(),
        _ => return Err(failed("use the program of the switch", &PROGRAM)),
    };
    loaded.map_err(|error| failed("load the program of the switch", &error))?;
    Ok(all)
}

fn program(all: &mut Ebpf) -> Result<&mut Program, SwitchError> {
    all.program_mut(PROGRAM).ok_or_else(|| failed("find the program of the switch", &PROGRAM))
}

/// Attaches it to the interfaces.
pub(super) fn attach(all: &mut Ebpf, ports: &[Port]) -> Result<(), SwitchError> {
    if matches!(program(all)?, Program::Xdp(_)) {
        let mut devices: DevMap<MapData> = table(all, "devices")?;
        for port in ports {
            let index = switches::interface_index(port)?;
            devices
                .set(u32::from(port.number), index, None, 0)
                .map_err(|error| failed("fill the table of devices", &error))?;
        }
    }
    for port in ports {
        let done = match program(all)? {
            Program::SchedClassifier(classifier) => at_tc(classifier, port),
            Program::Xdp(xdp) => at_xdp(xdp, port),
            _ => Ok(()),
        };
        done.map_err(|error| failed(format!("put the program of the switch at {}", port.interface), &error))?;
    }
    Ok(())
}

fn at_tc(classifier: &mut SchedClassifier, port: &Port) -> Result<(), aya::programs::ProgramError> {
    classifier.attach(&port.interface, TcAttachType::Ingress).map(drop)
}

fn at_xdp(xdp: &mut Xdp, port: &Port) -> Result<(), aya::programs::ProgramError> {
    xdp.attach(&port.interface, XdpMode::Default).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Cluster;

    #[test]
    fn frames_are_seen_early_where_no_host_is_behind_a_pair() {
        let port = |is_pair| Port { number: 1, interface: "x".to_owned(), host_mac: [2; 6], is_pair };
        let chosen = |attach, ports: &[bool]| {
            let ports = ports.iter().map(|&is_pair| port(is_pair)).collect();
            forms(&Wiring { cluster: Cluster::new(1), ports, redirects_max: 1, attach })
        };
        assert_eq!(chosen(Attach::Auto, &[false, false]), [Form::Xdp, Form::Tc]);
        assert_eq!(chosen(Attach::Auto, &[false, true]), [Form::Tc]);
        assert_eq!(chosen(Attach::Auto, &[]), [Form::Tc]);
        assert_eq!(chosen(Attach::Tc, &[false]), [Form::Tc]);
        assert_eq!(chosen(Attach::Xdp, &[true]), [Form::Xdp]);
    }
}
