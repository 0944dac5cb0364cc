//! A swap file for one run.
//!
//! Promises: the kernel uses it no more when the value is gone. Must never change swap that was there before.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::place::Place;

/// A file that the kernel swaps to.
#[derive(Debug)]
pub(in crate::bench) struct Swap(PathBuf);

impl Swap {
    /// Makes it; the answer is the reason when that does not work.
    pub(in crate::bench) fn on(place: &Place, bytes: u64) -> Result<Swap, String> {
        let file = place.file("swap");
        let swap = Swap(file.clone());
        let length = bytes.to_string();
        // Every block is there: a file with holes is no swap.
        command("fallocate", &["--length", &length], &file)?;
        command("chmod", &["600"], &file)?;
        command("mkswap", &[], &file)?;
        // Before every other swap, so that it is this disk that is measured.
        command("swapon", &["--priority", "32767"], &file)?;
        Ok(swap)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // What was never on is refused, and the folder's cleaner tries again.
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
