//! Lets the library be initialised before all others, so that what it does at the end of a process comes last.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Threads outlive any dlclose(3).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
