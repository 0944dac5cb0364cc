//! What a machine offers for memory behind a switch: a server's socket, each kind of switch, memory in the kernel. It also
//! lists the stores of this build.
//!
//! Each kind is tried in a short-lived process of its own, in networks that end with it: nothing of the machine changes.

use std::fmt::Write;
use std::process::{Command, Stdio};

use serde_json::json;
use trellis::remote::PORT;
use trellis::transport::links::ipv6::Endpoint;
use trellis_store::stores::{self, StoreKind};
use trellis_switch::lab::{Lab, Plan, alone, space};
use trellis_switch::switches::{Attach, KINDS, REDIRECTS, SwitchKind};

use trellis_command::exit::{self, Ending, Failure};

/// Something that was tried: its name, and the details if it works, or the reason why not.
type Tried = (String, Result<String, String>);

/// Writes both sections for people.
pub(crate) fn describe(out: &mut String) {
    let _ = writeln!(out, "\nStores of this build");
    let (built, missing) = built_and_missing();
    let _ = writeln!(out, "  yes  {}", built.join(", "));
    for name in missing {
        let _ = writeln!(
            out,
            "  no   {name}: `cargo xtask install --prefix PREFIX --features {name}` installs one with it"
        );
    }
    let _ = writeln!(out, "\nMemory behind a switch (`trellis serve`, `trellis switch`, `trellis lab`)");
    for (name, tried) in look() {
        let _ = match tried {
            Ok(what) => writeln!(out, "  yes  {name}: {what}"),
            Err(why) => writeln!(out, "  no   {name}: {why}"),
        };
    }
}

/// Adds the same to the object for programs.
pub(crate) fn add_to(object: &mut serde_json::Value) {
    let behind_a_switch: Vec<serde_json::Value> = look()
        .into_iter()
        .map(|(name, tried)| json!({ "name": name, "works": tried.is_ok(), "detail": tried.unwrap_or_else(|why| why) }))
        .collect();
    let (built, missing) = built_and_missing();
    object["stores"] = json!(built);
    object["stores_not_built"] = json!(missing);
    object["behind_a_switch"] = json!(behind_a_switch);
}

/// The kinds of stores that this build opens, and those that it was built without.
fn built_and_missing() -> (Vec<&'static str>, Vec<&'static str>) {
    let (built, missing): (Vec<StoreKind>, Vec<StoreKind>) = stores::KINDS.into_iter().partition(|kind| kind.is_built);
    let names = |kinds: Vec<StoreKind>| kinds.into_iter().map(|kind| kind.scheme).collect();
    (names(built), names(missing))
}

/// Tries everything.
fn look() -> Vec<Tried> {
    let socket = Endpoint::open(PORT).map_err(|error| format!("port {PORT} cannot be had: {error}"));
    let socket = socket.map(|_| format!("port {PORT} is free, and every address of a prefix can be answered for"));
    let mut all = vec![("a server's socket".to_owned(), socket)];
    all.extend(KINDS.into_iter().map(|kind| (format!("switch `{}`", kind.name), switch(kind))));
    all.push(("memory in the kernel".to_owned(), in_kernel()));
    all
}

/// Joins two hosts with this kind of switch and ends; [`look`] starts a process for it.
pub(crate) fn try_switch(kind: &str) -> Ending {
    let name = "doctor".to_owned();
    let (switch, attach) = (kind.to_owned(), Attach::Auto);
    let redirects_max = REDIRECTS;
    let plan = Plan { name, clients: 1, servers: 1, switch, mtu_bytes: 1500, redirects_max, attach };
    // A user who is not root is root over networks of its own.
    let entered = if space::is_root() { Ok(()) } else { alone(plan.cluster()) };
    let tried = entered.and_then(|()| Lab::up(&plan));
    tried.map(|_| exit::FINE).map_err(|error| Failure::new(exit::FAILED, error.to_string()))
}

fn switch(kind: SwitchKind) -> Result<String, String> {
    let SwitchKind { name, is_built, is_rootless, what } = kind;
    if !is_built {
        return Err(missing(name));
    }
    if !is_rootless && !space::is_root() {
        return Err("root's rights are needed".to_owned());
    }
    let own = std::env::current_exe().map_err(|error| format!("this program cannot be started again: {error}"))?;
    let output = Command::new(own).args(["doctor", "--try-switch", name]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("this program cannot be started again: {error}"))?;
    match output.status.success() {
        true => Ok(format!("joined two hosts: {what}")),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim().lines().last().unwrap_or_default();
            Err(said.strip_prefix("trellis: ").unwrap_or(said).to_owned())
        }
    }
}

#[cfg(feature = "bpf")]
fn in_kernel() -> Result<String, String> {
    if !space::is_root() {
        return Err("root's rights are needed".to_owned());
    }
    Ok("this build has it; `trellis serve --in-kernel on` says whether a device takes it".to_owned())
}

#[cfg(not(feature = "bpf"))]
fn in_kernel() -> Result<String, String> {
    Err(missing("bpf"))
}

fn missing(feature: &str) -> String {
    format!("`cargo xtask install --prefix PREFIX --features {feature}` installs a build with it")
}

#[cfg(test)]
pub(crate) fn check(text: &str, object: &serde_json::Value) {
    assert!(text.contains("yes  embedded, embedded-durable, redis"), "{text}");
    assert_eq!(text.contains("--features etcd"), !cfg!(feature = "etcd"), "{text}");
    let listed = ["stores", "stores_not_built"].map(|key| object[key].as_array().expect("a list").len());
    assert_eq!(listed.iter().sum::<usize>(), stores::KINDS.len());
}
