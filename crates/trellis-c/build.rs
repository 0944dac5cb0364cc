//! Gives the shared library the name under which programs will look for it, whatever cargo calls the file.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The number changes when a program linked with an older library would no longer work.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtrellis.so.{}", env!("CARGO_PKG_VERSION_MAJOR"));
    // Threads and signal handlers of the library outlive any dlclose(3).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
