//! With the feature `bpf`: compiles `switch/switch.bpf.c` and `switch/memory.bpf.c` for the kernel; the switch in two
//! forms, for tc and for XDP.
//!
//! Promises: if the compiler is missing, the error names the next step. Without the feature it must never do anything.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The compilers in the order in which they are tried, after `TRELLIS_BPF_CLANG`.
const COMPILERS: [&str; 4] = ["clang-19", "clang", "clang-16", "clang-14"];
const SOURCES: [&str; 5] = ["switch.bpf.c", "memory.bpf.c", "layout.h", "memory_layout.h", "kernel.h"];

fn main() {
    println!("cargo::rerun-if-env-changed=TRELLIS_BPF_CLANG");
    // Read at run time, because several source trees may share a target folder.
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../../switch");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", folder.join(source).display());
    }
    if env::var_os("CARGO_FEATURE_BPF").is_none() {
        return;
    }
    let objects = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    for (program, object, define) in
        [("switch", "switch", None), ("switch", "switch.xdp", Some("-DTRELLIS_XDP")), ("memory", "memory", None)]
    {
        let (source, object) = (folder.join(format!("{program}.bpf.c")), objects.join(format!("{object}.bpf.o")));
        if let Err(sentence) = compile(&source, &object, define) {
            println!("cargo::error={sentence}");
        }
    }
}

fn compile(source: &Path, object: &Path, define: Option<&str>) -> Result<(), String> {
    let chosen = env::var("TRELLIS_BPF_CLANG").ok();
    let found = chosen.into_iter().chain(COMPILERS.map(str::to_owned)).find(|compiler| is_there(compiler));
    let compiler =
        found.ok_or("the feature `bpf` needs clang and there is none; `cargo xtask setup` installs clang-19")?;
    let mut command = Command::new(&compiler);
    command.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-std=gnu11"]);
    command.args(define);
    // The folder in which Debian keeps what the kernel's headers include.
    let machine = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    command.arg("-idirafter").arg(format!("/usr/include/{machine}-linux-gnu"));
    command.arg("-c").arg(source).arg("-o").arg(object);
    let output = command.output().map_err(|error| format!("cannot start {compiler}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{compiler} does not compile {}: {}",
            source.display(),
            String::from_utf8_lossy(&output.stderr).replace('\n', " | ")
        )),
    }
}

fn is_there(compiler: &str) -> bool {
    Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success())
}
