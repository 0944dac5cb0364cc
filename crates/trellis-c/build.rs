//! Sets the name under which programs look for the shared library, independent of cargo's file name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The number must change when a program linked with an older library would no longer work.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtrellis.so.{}", env!("CARGO_PKG_VERSION_MAJOR"));
    // Threads and signal handlers of the library outlive any dlclose(3).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
