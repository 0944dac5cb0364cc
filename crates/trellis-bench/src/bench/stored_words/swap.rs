//! A swap file for one run.
//!
//! Promises: the kernel no longer uses it when the value is gone. It must never change swap that was there before.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::place::Place;

/// A file to which the kernel swaps.
#[derive(Debug)]
pub(in crate::bench) struct Swap(PathBuf);

impl Swap {
    /// Makes it; the error is the reason why that does not work.
    pub(in crate::bench) fn on(place: &Place, bytes: u64) -> Result<Swap, String> {
        let file = place.file("swap");
        let swap = Swap(file.clone());
        let length = bytes.to_string();
        // Every block is allocated: swap files cannot have holes.
        command("fallocate", &["--length", &length], &file)?;
        command("chmod", &["600"], &file)?;
        command("mkswap", &[], &file)?;
        // With the highest priority, so that this disk is measured.
        command("swapon", &["--priority", "32767"], &file)?;
        Ok(swap)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // If it was never on, this is refused; the folder's cleaner tries again.
        let _ = command("swapoff", &[], &self.0);
        let _ = std::fs::remove_file(&self.0);
    }
}

fn command(program: &str, words: &[&str], file: &std::path::Path) -> Result<(), String> {
    let output = Command::new(program).args(words).arg(file).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program} cannot be started: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("{program} failed: {said}"))
}
