//! The files for Kubernetes: their forms are checked, and containers run as their pods would.
//!
//! Promises: the manifests, what Kustomize makes of them, and what Helm makes of the chart are valid under the
//! published schemas, without an unknown field. No cluster is asked: there is none. Two containers with the user, the
//! secret and the capabilities of the pods meet, are ready and leave, with and without userfaultfd(2). Tools have fixed versions and
//! are installed once, into the target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use trellis_output::programs;

use crate::setup::{self, Needed};
use crate::spelling;
use crate::step;
use crate::workspace::Workspace;

/// Runs containers.
pub(crate) const CONTAINERS: Needed = Needed::new("crun", "crun");

const VALIDATOR: &str = "1.37.0";
/// The tools that turn the files into manifests: modules of Go with their versions.
const TOOLS: [(&str, &str); 2] =
    [("helm", "helm.sh/helm/v3/cmd/helm@v3.16.4"), ("kustomize", "sigs.k8s.io/kustomize/kustomize/v5@v5.5.0")];
const FOLDER: &str = "packaging/kubernetes";
/// The user of the pods.
const USER: u32 = 65532;

/// Checks the forms of all files.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let validator = validator(workspace)?;
    let folder = workspace.root.join(FOLDER);
    let is_valid = |manifests: &[PathBuf]| {
        let mut validate = Command::new(&validator);
        step::output(validate.arg("--strict").args(manifests).stdin(Stdio::null())).map(drop)
    };
    step::step("the manifests", || is_valid(&["job.yaml", "service.yaml"].map(|name| folder.join("base").join(name))))?;
    if programs::find("go").is_none() {
        eprintln!("    SKIPPED Kustomize and Helm (program): go is not installed");
        return Ok(());
    }
    let tools = workspace.target.join("kubernetes/tools");
    for (name, module) in TOOLS {
        let program = tools.join(name);
        if !program.is_file() {
            let mut install = Command::new("go");
            install.args(["install", module]).env("GOBIN", &tools).env("GOFLAGS", "-mod=mod");
            step::command(&format!("install {name}"), &mut install)?;
        }
    }
    let made = workspace.target.join("kubernetes/made.yaml");
    let make = |name: &str, words: &[&str], from: &str| {
        let mut command = Command::new(tools.join(name));
        fs::write(&made, step::output(command.args(words).arg(folder.join(from)))?)?;
        is_valid(std::slice::from_ref(&made))
    };
    step::step("what Kustomize makes", || make("kustomize", &["build"], "base"))?;
    step::step("what Helm makes", || {
        make(
            "helm",
            &["template", "hello", "--set", "nodes=8,command[0]=program,settings.TRELLIS_COHERENCE=hlrc"],
            "chart",
        )
    })
}

/// The program that knows the schemas, from the Python package index.
fn validator(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target.join(format!("kubernetes-validate-{VALIDATOR}"));
    let program = folder.join("bin/kubernetes-validate");
    if !program.is_file() {
        spelling::install_python(&folder, &format!("kubernetes-validate=={VALIDATOR}"))?;
    }
    Ok(program)
}

/// Runs two containers on a system with Trellis and a compiler: they meet, are probed and end as pods do.
pub(crate) fn run_containers(system: &Path, scratch: &Path) -> Result<()> {
    setup::ensure(&[CONTAINERS])?;
    let [secret, program] = ["secret", "program"].map(|name| scratch.join(name));
    fs::create_dir_all(&secret)?;
    fs::write(system.join("tmp/try/lasting.cpp"), LASTING)?;
    let compile = "c++ -std=c++20 -O2 lasting.cpp $(pkg-config --cflags --libs trellis) -o lasting";
    step::output(Command::new("chroot").arg(system).args(["sh", "-c", &format!("cd /tmp/try && {compile}")]))?;
    // The containers have a /tmp of their own.
    step::run(Command::new("cp").arg("-r").arg(system.join("tmp/try")).arg(&program))?;
    fs::write(secret.join("secret"), "5e".repeat(32))?;
    step::run(Command::new("chown").arg("-R").arg(format!("0:{USER}")).arg(&secret))?;
    step::run(Command::new("chmod").arg("0440").arg(secret.join("secret")))?;
    for (allows, catcher) in [(true, "signal"), (false, "mprotect")] {
        for node in 0..2 {
            let bundle = scratch.join(format!("node-{node}"));
            fs::create_dir_all(&bundle)?;
            let process_namespace = scratch.join(format!("pause-{node}"));
            let shared = [&secret, &program, &process_namespace];
            fs::write(bundle.join("config.json"), container(system, &shared, node, allows).to_string())?;
        }
        let mut shell = Command::new("unshare");
        shell
            .args(["--net", "--mount-proc", "--pid", "--fork", "--kill-child", "sh", "-e", "-c", PODS, "sh"])
            .arg(scratch);
        let said = step::output(shell.stdin(Stdio::null()))?;
        if !said.contains("node 1 leaves") || !said.contains(&format!("the catcher `{catcher}` is used")) {
            bail!("two containers, userfaultfd allowed: {allows}: {said}");
        }
    }
    Ok(())
}

/// A program that works until SIGTERM, and then leaves with the others.
const LASTING: &str = r#"
#include <chrono>
#include <csignal>
#include <iostream>
#include <thread>
#include <trellis.hpp>

volatile std::sig_atomic_t asked = 0;

int main() {
    std::signal(SIGTERM, [](int) { asked = 1; });
    trellis::cluster cluster;
    while (!asked) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::cout << "node " << cluster.node() << " leaves" << std::endl;
}
"#;

/// Runs the containers of the folder `$1` in one network, sends SIGTERM to them when their probes succeed, and prints what
/// they say. Each has a process beside it with number 1, as the pause container has. crun(1) knows only the second version
/// of cgroups, which the pods do not see.
const PODS: &str = r#"
umount -R /sys/fs/cgroup 2>/dev/null || :
mount -t tmpfs none /sys/fs/cgroup
ip link set lo up
crun="crun --cgroup-manager=disabled --root $1/state"
for node in 0 1; do
    touch "$1/pause-$node"
    unshare --pid="$1/pause-$node" --fork --kill-child sleep 600 &
    until mountpoint -q "$1/pause-$node"; do sleep 0.1; done
done
$crun run --bundle "$1/node-0" node-0 >"$1/said-0" 2>&1 &
first=$!
$crun run --bundle "$1/node-1" node-1 >"$1/said-1" 2>&1 &
second=$!
is_ready() { $crun exec "$1" test -e /run/trellis/ready; }
until is_ready node-0 2>/dev/null && is_ready node-1 2>/dev/null; do
    kill -0 "$first" "$second" || { cat "$1"/said-* >&2; exit 1; }
    sleep 0.1
done
$crun kill node-0 TERM
$crun kill node-1 TERM
wait "$first" || { cat "$1"/said-* >&2; exit 1; }
wait "$second" || { cat "$1"/said-* >&2; exit 1; }
cat "$1"/said-*
"#;

/// A container as the manifest describes a pod, but for the network, which all of them share (the runtime specification
/// of OCI, version 1.0.2).
fn container(system: &Path, shared: &[&PathBuf; 3], node: u32, allows_userfaultfd: bool) -> Value {
    let [secret, program, process_namespace] = shared;
    let action = if allows_userfaultfd { "SCMP_ACT_ALLOW" } else { "SCMP_ACT_ERRNO" };
    let environment = [
        "PATH=/usr/bin:/bin".to_owned(),
        "TRELLIS_RENDEZVOUS=127.0.0.1:7000".to_owned(),
        "TRELLIS_RENDEZVOUS_NODES=2".to_owned(),
        "TRELLIS_RENDEZVOUS_JOB=hello".to_owned(),
        format!("TRELLIS_NODE={node}"),
        "TRELLIS_SECRET_FILE=/etc/trellis/secret".to_owned(),
        "TRELLIS_READY_FILE=/run/trellis/ready".to_owned(),
    ];
    let temporary =
        |place: &str| json!({ "destination": place, "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"] });
    let from_here = |place: &str, source: &Path| json!({ "destination": place, "type": "bind", "source": source, "options": ["rbind", "ro"] });
    let mut namespaces = ["ipc", "uts", "mount"].map(|kind| json!({ "type": kind })).to_vec();
    namespaces.push(json!({ "type": "pid", "path": process_namespace }));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": USER, "gid": USER },
            "args": ["sh", "-c", "trellis doctor | grep 'By default'; exec /program/lasting"],
            "env": environment,
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": { "bounding": [], "effective": [], "permitted": [] },
        },
        "root": { "path": system, "readonly": true },
        "hostname": format!("hello-{node}"),
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            temporary("/dev"),
            temporary("/tmp"),
            temporary("/run/trellis"),
            from_here("/sys", Path::new("/sys")),
            from_here("/etc/trellis", secret),
            from_here("/program", program),
        ],
        "linux": {
            "namespaces": namespaces,
            "seccomp": {
                "defaultAction": "SCMP_ACT_ALLOW",
                "syscalls": [{ "names": ["userfaultfd"], "action": action }],
            },
        },
    })
}
