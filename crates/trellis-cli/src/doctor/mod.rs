//! `trellis doctor`: what this machine offers, what was chosen and why, and what would make it faster.
//!
//! Inspects, tries and reports, and changes nothing. Every advice names the file or the setting.

mod hosts;
#[cfg(feature = "full")]
mod remote_memory;

use std::fmt::Write;
use std::fs;

use clap::Args;
use rustix::process::{Resource, getrlimit};
use serde_json::json;
use trellis::config::Config;
use trellis::transport::links::udp::{Interface, try_multicast};
use trellis_base::proc_bytes;
use trellis_command::terminal::say;
use trellis_memory::{CALLS, Capabilities, Capability, Catcher, choose, probe};

use trellis_command::chart::byte_text;
use trellis_command::exit::{self, Ending};
use trellis_command::installed;
use trellis_command::run::hosts::{HostsArguments, survey};

const EXAMPLES: &str = "\
Examples:
  trellis doctor
  trellis doctor --json | jq .catch
  trellis doctor --hosts a,b,c            what each host has, and how fast the ways are

Exit codes: 0 Trellis works here, or on all hosts; 1 nothing works here, or a host cannot take part.";

/// Show what this machine offers, which catcher is used and why, and what would make it faster
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    hosts: HostsArguments,
    #[cfg(feature = "full")]
    /// Join two hosts with a switch of this kind, and end; `doctor` starts itself with it
    #[arg(long, hide = true)]
    try_switch: Option<String>,
}

/// Runs the `doctor` subcommand.
pub(crate) fn doctor(arguments: &DoctorArguments) -> Ending {
    #[cfg(feature = "full")]
    if let Some(kind) = &arguments.try_switch {
        return remote_memory::try_switch(kind);
    }
    if let Some(survey) = survey(&arguments.hosts)? {
        return hosts::show(&survey, arguments.json);
    }
    let capabilities = Capabilities { calls: calls(), ..probe() };
    let machine = Machine::look();
    let chosen = choose(None, &capabilities).map_err(|why| format!("no catcher works here: {why}"));
    let advice = advice(&capabilities, &machine);
    if arguments.json {
        let object = as_json(&capabilities, &machine, &chosen, &advice);
        say!("{}", serde_json::to_string_pretty(&object).map_err(exit::not_json)?);
    } else {
        say!("{}", as_text(&capabilities, &machine, &chosen, &advice).trim_end());
    }
    Ok(if chosen.is_ok() { exit::FINE } else { exit::FAILED })
}

/// What programs get that `trellis run` starts; this command itself does not need it.
fn calls() -> Capability {
    let detail = match installed::loaded_first(installed::CALLS) {
        Some(library) => format!(
            "`trellis run` loads {} first; programs written in Go, linked statically or with a sanitizer do not get it, and \
             have the catcher `handler`",
            library.display()
        ),
        None => format!(
            "{} is not beside the command or in ../lib; `cargo xtask install --prefix PREFIX` puts it there",
            installed::CALLS
        ),
    };
    Capability { name: CALLS, available: installed::loaded_first(installed::CALLS).is_some(), detail }
}

/// Whether `trellis threads` works here; the error says why it does not.
fn threads(capabilities: &Capabilities) -> Result<&'static str, &'static str> {
    /// The bit of `AT_HWCAP2` by which the kernel says that programs may change their thread pointer.
    const HWCAP2_FSGSBASE: u64 = 1 << 1;
    if installed::loaded_first(installed::THREADS).is_none() {
        return Err(
            "libtrellis_threads.so is not beside the command or in ../lib; `cargo xtask install` puts it there",
        );
    }
    if !capabilities.system_calls_work(Catcher::Handler) {
        return Err(
            "userfaultfd is not allowed for faults of the kernel: `sysctl -w vm.unprivileged_userfaultfd=1`, or root",
        );
    }
    // SAFETY: reads what the kernel gave this process.
    if cfg!(target_arch = "x86_64") && unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_FSGSBASE == 0 {
        return Err("the instruction wrfsbase is not allowed: Linux 5.9 and a processor of 2013 or later allow it");
    }
    Ok("programs that are linked dynamically with the C library of GNU")
}

/// What the machine has, apart from catchers. Absent files give `None`.
struct Machine {
    cores: usize,
    memory_bytes: Option<u64>,
    available_bytes: Option<u64>,
    swap_free_bytes: Option<u64>,
    descriptors_soft: u64,
    descriptors_hard: u64,
    map_count_max: Option<u64>,
    overcommit: Option<u64>,
    interfaces: Vec<Interface>,
}

impl Machine {
    fn look() -> Machine {
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let descriptors = getrlimit(Resource::Nofile);
        Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: proc_bytes(&memory, "MemTotal"),
            available_bytes: proc_bytes(&memory, "MemAvailable"),
            swap_free_bytes: proc_bytes(&memory, "SwapFree"),
            descriptors_soft: descriptors.current.unwrap_or(u64::MAX),
            descriptors_hard: descriptors.maximum.unwrap_or(u64::MAX),
            map_count_max: number_in("/proc/sys/vm/max_map_count"),
            overcommit: number_in("/proc/sys/vm/overcommit_memory"),
            interfaces: try_multicast().unwrap_or_default(),
        }
    }

    /// The largest region that `reserve = "lazy"` accepts.
    fn region_bytes_max(&self) -> Option<u64> {
        Some(self.available_bytes? + self.swap_free_bytes.unwrap_or(0))
    }
}

fn number_in(file: &str) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// What would make Trellis faster or larger here, one sentence each, most useful first.
fn advice(capabilities: &Capabilities, machine: &Machine) -> Vec<String> {
    let mut advice = Vec::new();
    let works = |catcher| choose(Some(catcher), capabilities).is_ok();
    if !Catcher::ALL.into_iter().any(|catcher| works(catcher) && capabilities.system_calls_work(catcher)) {
        advice.push(
            "system calls fail on a shared page that is not here: install libtrellis_calls.so beside the command, or \
             `sysctl -w vm.unprivileged_userfaultfd=1`"
                .to_owned(),
        );
    }
    if !works(Catcher::Signal) && !works(Catcher::Handler) {
        advice.push(
            "only `mprotect` is left: use Linux 6.4 or newer with CONFIG_USERFAULTFD, and a container profile that \
             allows userfaultfd(2)"
                .to_owned(),
        );
    }
    if machine.cores < 2 {
        advice.push(
            "one core: nodes take turns, and every fault pays two context switches; give the machine two cores"
                .to_owned(),
        );
    }
    if machine.descriptors_soft < 1024 {
        advice.push(format!("{} open files at most: raise it with `ulimit -n 1024`", machine.descriptors_soft));
    }
    if let Some(count) = machine.map_count_max.filter(|count| *count < 262_144) {
        advice.push(format!(
            "vm.max_map_count is {count}: with the catcher `mprotect` a region may be cut into more pieces than that; \
             `sysctl -w vm.max_map_count=262144`"
        ));
    }
    if machine.overcommit == Some(2) {
        advice.push(
            "vm.overcommit_memory is 2: a region larger than the commit limit is refused; `sysctl -w vm.overcommit_memory=0`".to_owned(),
        );
    }
    advice
}

type Chosen = Result<(Catcher, String), String>;

fn as_text(capabilities: &Capabilities, machine: &Machine, chosen: &Chosen, advice: &[String]) -> String {
    let mut out = String::new();
    let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |bytes| byte_text(bytes as f64));
    let _ = writeln!(out, "Machine");
    for (name, value) in [
        ("kernel", capabilities.kernel.clone()),
        ("cores", machine.cores.to_string()),
        ("memory", format!("{}, {} available", known(machine.memory_bytes), known(machine.available_bytes))),
        ("largest region", format!("{} with reserve = \"lazy\"", known(machine.region_bytes_max()))),
        ("open files", format!("{} (hard limit {})", machine.descriptors_soft, machine.descriptors_hard)),
    ] {
        let _ = writeln!(out, "  {name:<16}{value}");
    }
    for (name, value) in &capabilities.sysctls {
        let _ = writeln!(out, "  {name} = {value}");
    }
    let _ = writeln!(out, "\nKernel");
    for capability in capabilities.all() {
        let mark = if capability.available { "yes" } else { "no " };
        let _ = writeln!(out, "  {mark}  {}: {}", capability.name, capability.detail);
    }
    let _ = writeln!(out, "\nShared memory between processes of this host (link `shm`, and `auto` takes it)");
    let _ = match shared_memory() {
        Ok(()) => writeln!(out, "  yes  nodes on this host use it; nodes on different hosts use tcp"),
        Err(why) => writeln!(out, "  no   {why}; nodes on this host use tcp"),
    };
    let _ = writeln!(
        out,
        "\nMulticast (link `udp`; between hosts the switches must carry it too, which each run finds out)"
    );
    for Interface { name, address, multicast } in &machine.interfaces {
        let _ = match multicast {
            Ok(()) => writeln!(out, "  yes  {name} {address}"),
            Err(why) => writeln!(out, "  no   {name} {address}: {why}"),
        };
    }
    if machine.interfaces.is_empty() {
        let _ = writeln!(out, "  no   no interface with an IPv4 address is up");
    }
    let _ = writeln!(out, "\nlibfabric (link `fabric`)");
    match fabric_providers() {
        Some(providers) if providers.is_empty() => {
            let _ = writeln!(out, "  no   it offers no provider here");
        }
        Some(providers) => {
            let _ = writeln!(out, "  yes  {}", providers.join(", "));
        }
        None => {
            let _ = writeln!(
                out,
                "  no   this build has no link fabric; `cargo xtask install --prefix PREFIX --features fabric` installs one with it"
            );
        }
    }
    #[cfg(feature = "full")]
    remote_memory::describe(&mut out);
    let _ = writeln!(out, "\nThreads of existing programs on several nodes (`trellis threads`)");
    let _ = match threads(capabilities) {
        Ok(what) => writeln!(out, "  yes  {what}"),
        Err(why) => writeln!(out, "  no   {why}"),
    };
    let _ = writeln!(out, "\nCatchers");
    for catcher in Catcher::ALL {
        match choose(Some(catcher), capabilities) {
            Ok(_) => {
                let _ = writeln!(out, "  yes  {catcher}");
            }
            Err(why) => {
                let _ = writeln!(out, "  no   {catcher}: {why}");
            }
        }
    }
    match chosen {
        Ok((catcher, why)) => {
            let _ = writeln!(out, "\nBy default the catcher `{catcher}` is used: {why}");
        }
        Err(why) => {
            let _ = writeln!(out, "\n{why}");
        }
    }
    let _ = writeln!(out, "Frames between hosts are `sealed`, on the loopback interface `{}`.", loopback_security());
    if !advice.is_empty() {
        let _ = writeln!(out, "\nAdvice");
        for sentence in advice {
            let _ = writeln!(out, "  - {sentence}");
        }
    }
    out
}

fn as_json(capabilities: &Capabilities, machine: &Machine, chosen: &Chosen, advice: &[String]) -> serde_json::Value {
    let catchers: serde_json::Map<String, serde_json::Value> = Catcher::ALL
        .into_iter()
        .map(|catcher| match choose(Some(catcher), capabilities) {
            Ok(_) => (catcher.to_string(), json!({ "works": true })),
            Err(why) => (catcher.to_string(), json!({ "works": false, "why": why })),
        })
        .collect();
    let kernel: Vec<serde_json::Value> = capabilities
        .all()
        .into_iter()
        .map(|capability| json!({ "name": capability.name, "available": capability.available, "detail": capability.detail }))
        .collect();
    let multicast: Vec<serde_json::Value> = machine
        .interfaces
        .iter()
        .map(|Interface { name, address, multicast }| {
            let why = multicast.as_ref().err();
            json!({ "interface": name, "address": address.to_string(), "works": multicast.is_ok(), "why": why })
        })
        .collect();
    let sysctls: serde_json::Map<String, serde_json::Value> =
        capabilities.sysctls.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    #[cfg_attr(not(feature = "full"), expect(unused_mut))]
    let mut object = json!({
        "works": chosen.is_ok(),
        "catch": chosen.as_ref().ok().map(|(catcher, _)| catcher.to_string()),
        "why": chosen.as_ref().map_or_else(|why| why, |(_, why)| why),
        "catchers": catchers,
        "threads": { "works": threads(capabilities).is_ok(), "detail": threads(capabilities).unwrap_or_else(|why| why) },
        "kernel_release": capabilities.kernel,
        "capabilities": kernel,
        "sysctls": sysctls,
        "cores": machine.cores,
        "memory_bytes": machine.memory_bytes,
        "memory_available_bytes": machine.available_bytes,
        "region_bytes_max": machine.region_bytes_max(),
        "open_files_max": machine.descriptors_soft,
        "map_count_max": machine.map_count_max,
        "overcommit_memory": machine.overcommit,
        "shared_memory": shared_memory().is_ok(),
        "shared_memory_why_not": shared_memory().err(),
        "multicast": multicast,
        "fabric_providers": fabric_providers(),
        "security_loopback": loopback_security(),
        "security_between_hosts": "sealed",
        "advice": advice,
    });
    #[cfg(feature = "full")]
    remote_memory::add_to(&mut object);
    object
}

/// Tries whether nodes on this host can share memory; the error is the reason why not.
fn shared_memory() -> Result<(), String> {
    trellis::transport::links::shm::probe()
}

/// Libfabric's providers for the link `fabric`, in its order; `None` in a build without that link.
fn fabric_providers() -> Option<Vec<String>> {
    #[cfg(feature = "fabric")]
    return Some(trellis::transport::links::fabric::providers());
    #[cfg(not(feature = "fabric"))]
    None
}

fn loopback_security() -> String {
    Config::default().security_in_use().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            cores: 2,
            memory_bytes: Some(8 << 30),
            available_bytes: Some(4 << 30),
            swap_free_bytes: Some(1 << 30),
            descriptors_soft: 4096,
            descriptors_hard: 4096,
            map_count_max: Some(1 << 20),
            overcommit: Some(0),
            interfaces: vec![
                Interface { name: "lo".into(), address: [127, 0, 0, 1].into(), multicast: Ok(()) },
                Interface { name: "eth9".into(), address: [10, 0, 0, 9].into(), multicast: Err("no way; try".into()) },
            ],
        }
    }

    #[test]
    fn advice_names_the_setting() {
        let capabilities = probe();
        let low =
            Machine { cores: 1, descriptors_soft: 64, map_count_max: Some(65_530), overcommit: Some(2), ..machine() };
        let said = advice(&capabilities, &low).join("\n");
        for setting in ["two cores", "ulimit -n", "vm.max_map_count", "vm.overcommit_memory"] {
            assert!(said.contains(setting), "{setting} is missing in {said}");
        }
        let fine = advice(&capabilities, &machine()).join("\n");
        assert!(!fine.contains("vm.max_map_count=") && !fine.contains("ulimit"), "{fine}");
    }

    #[test]
    fn text_and_json_tell_the_same_catcher() {
        let capabilities = probe();
        let chosen = choose(None, &capabilities).map_err(|why| why.clone());
        let text = as_text(&capabilities, &machine(), &chosen, &[]);
        let object = as_json(&capabilities, &machine(), &chosen, &[]);
        let catcher = object["catch"].as_str().expect("something works wherever tests run");
        assert!(text.contains(&format!("the catcher `{catcher}` is used")), "{text}");
        assert_eq!(object["region_bytes_max"], 5u64 << 30);
        #[cfg(feature = "full")]
        remote_memory::check(&text, &object);
        assert!(text.contains("yes  lo 127.0.0.1\n") && text.contains("no   eth9 10.0.0.9: no way; try\n"), "{text}");
        assert_eq!((&object["multicast"][0]["works"], &object["multicast"][0]["why"]), (&json!(true), &json!(null)));
        assert_eq!(
            (&object["multicast"][1]["works"], &object["multicast"][1]["why"]),
            (&json!(false), &json!("no way; try"))
        );
    }
}
