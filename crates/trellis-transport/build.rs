//! Compiles the bridge to libfabric if the feature `fabric` is on; does nothing otherwise.
//!
//! Promises: on a machine without libfabric the error is one sentence that names the package.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "fabric")]
    fabric::build();
}

#[cfg(feature = "fabric")]
mod fabric {
    use std::process::Command;

    const BRIDGE: &str = "src/links/fabric/libfabric.c";

    pub(super) fn build() {
        println!("cargo::rerun-if-changed={BRIDGE}");
        println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
        let Some(flags) = flags() else {
            println!(
                "cargo::error=the feature `fabric` needs libfabric 1.17 or newer and pkg-config does not find it; \
                 install libfabric-dev (Debian), or set PKG_CONFIG_PATH to where libfabric.pc is"
            );
            return;
        };
        let mut build = cc::Build::new();
        build.file(BRIDGE).flag("-std=gnu11").warnings(true);
        for folder in flags.iter().filter_map(|flag| flag.strip_prefix("-I")) {
            build.include(folder);
        }
        build.compile("trellis_libfabric");
        for folder in flags.iter().filter_map(|flag| flag.strip_prefix("-L")) {
            println!("cargo::rustc-link-search=native={folder}");
        }
        println!("cargo::rustc-link-lib=dylib=fabric");
    }

    /// The compiler's and the linker's search paths according to pkg-config.
    fn flags() -> Option<Vec<String>> {
        let asked = Command::new("pkg-config").args(["--cflags", "--libs", "libfabric >= 1.17"]).output().ok()?;
        asked
            .status
            .success()
            .then(|| String::from_utf8_lossy(&asked.stdout).split_whitespace().map(str::to_owned).collect())
    }
}
