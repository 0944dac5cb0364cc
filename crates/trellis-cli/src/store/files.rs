//! `trellis store check`, `backup` and `salvage`: check the file of a durable store, copy it, and save what is left
//! of a damaged one.
//!
//! It must never write into the file that is read, or overwrite an existing one.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use trellis_store::StoreError;
use trellis_store::stores::embedded_durable::rescue::{self, Damage, Report};

use super::{failure, file_of};
use trellis_command::chart::byte_text;
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::{Progress, say};

const CHECK_EXAMPLES: &str = "\
Example:
  trellis store check /var/lib/trellis/store

Compares every page in use with its checksum. Nobody may have the store open meanwhile; nothing is \
changed but a mode that lets other users at the file.

Exit codes: 0 everything is as it was written; 1 something is damaged; 70 the file is not a store, is \
open, or cannot be read; 78 there is no such file.";

/// Check whether the file of a durable store is intact
#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct CheckArguments {
    /// The file, or the store's address
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const BACKUP_EXAMPLES: &str = "\
Example:
  trellis store backup /var/lib/trellis/store /mnt/copies/store-monday

The copy is a store itself. It belongs to you alone (mode 0600), has its name only when it was \
looked through, and is never written over another file. Nobody may have the store open meanwhile; a \
damaged one is not copied.

Exit codes: 0 copied; 70 the store is damaged or open, or the copy cannot be made; 78 there is no \
such file.";

/// Copy the file of a durable store, and check the copy
#[derive(Debug, Args)]
#[command(after_help = BACKUP_EXAMPLES)]
pub(crate) struct BackupArguments {
    /// The file, or the store's address
    path: PathBuf,
    /// The new file
    copy: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const SALVAGE_EXAMPLES: &str = "\
Example:
  trellis store salvage /var/lib/trellis/store /var/lib/trellis/store-salvaged

Reads what can still be read of a damaged store into a new one, and names what cannot. A single \
wrong bit is found and turned back. Where the last commit cannot be read, the one before is taken, \
and that is said. The damaged file stays as it is. If there is a good copy, rather use that.

Exit codes: 0 nothing was lost; 1 something was, and is named; 70 nothing can be read, the file is \
open, or the new one cannot be written; 78 there is no such file.";

/// Copy what is left of a damaged durable store into a new one
#[derive(Debug, Args)]
#[command(after_help = SALVAGE_EXAMPLES)]
pub(crate) struct SalvageArguments {
    /// The damaged file, or the store's address
    path: PathBuf,
    /// The new file
    new: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `trellis store check`.
pub(super) fn check(arguments: &CheckArguments) -> Ending {
    let path = whole_path(&arguments.path)?;
    let report = watched(|on_progress| rescue::check(&path, on_progress))?;
    if arguments.json {
        say!("{}", report_json(&path, &report));
    } else if report.is_whole() {
        say!("{} is whole: {}", path.display(), counts(&report));
    } else {
        say!("{} is damaged: {}", path.display(), counts(&report));
        print_damage(&report);
        say!("`trellis store salvage {} NEW` reads what can still be read into a new store", path.display());
    }
    Ok(if report.is_whole() { exit::FINE } else { exit::FAILED })
}

/// Runs `trellis store backup`.
pub(super) fn backup(arguments: &BackupArguments) -> Ending {
    let (path, copy) = (whole_path(&arguments.path)?, whole_path(&arguments.copy)?);
    let report = watched(|on_progress| rescue::backup(&path, &copy, on_progress))?;
    if arguments.json {
        say!("{}", report_json(&copy, &report));
    } else {
        say!("{} is a whole copy: {}", copy.display(), counts(&report));
    }
    Ok(exit::FINE)
}

/// Runs `trellis store salvage`.
pub(super) fn salvage(arguments: &SalvageArguments) -> Ending {
    let (path, new) = (whole_path(&arguments.path)?, whole_path(&arguments.new)?);
    let report = watched(|on_progress| rescue::salvage(&path, &new, on_progress))?;
    if arguments.json {
        say!("{}", report_json(&new, &report));
    } else {
        print_damage(&report);
        match report.commits_back {
            0 => {}
            _ => say!("the last commit cannot be read as a whole: this is the store as it was before it"),
        }
        let lost = match report.lost_pairs {
            _ if !report.has_losses() => "nothing is lost".to_owned(),
            0 => "what is lost is named above".to_owned(),
            lost => format!("{lost} pairs are lost"),
        };
        say!("{} has {}, and {lost}", new.display(), counts(&report));
    }
    Ok(if report.has_losses() { exit::FAILED } else { exit::FINE })
}

/// Runs `work`, and shows its progress.
fn watched(work: impl FnOnce(rescue::OnProgress) -> Result<Report, StoreError>) -> Result<Report, Failure> {
    let mut progress = Progress::default();
    let done = work(&mut |now| {
        progress.step(&format!(
            "{}: {} of {}",
            now.step,
            byte_text(now.done_bytes as f64),
            byte_text(now.of_bytes as f64)
        ));
    });
    progress.clear();
    done.map_err(|error| match error {
        StoreError::Missing { .. } => Failure::new(exit::CONFIGURATION, error.to_string()),
        error => failure(error),
    })
}

/// An absolute path; it may be given as the address of a store.
fn whole_path(given: &Path) -> Result<PathBuf, Failure> {
    let file = given.to_str().and_then(file_of).unwrap_or(given);
    std::path::absolute(file)
        .map_err(|error| Failure::new(exit::FILE, format!("{} is no path of a file: {error}", file.display())))
}

fn counts(report: &Report) -> String {
    format!(
        "{} pairs in {} of pages, of a file of {}",
        report.pairs,
        byte_text(report.read_bytes as f64),
        byte_text(report.bytes as f64)
    )
}

fn print_damage(report: &Report) {
    for damage in &report.damage {
        say!("  {}", described(damage));
    }
    let listed = report.damage.len() as u64;
    if report.damaged_count > listed {
        say!("  and {} places more", report.damaged_count - listed);
    }
}

fn described(damage: &Damage) -> String {
    match (damage.mended_bit, damage.to_byte) {
        (Some(bit), _) => format!("byte {}, bit {}: {}", bit / 8, bit % 8, damage.what),
        // It has no location: it follows from what is lost.
        (None, 0) => damage.what.clone(),
        (None, to) => format!("bytes {} to {}: {}", damage.from_byte, to - 1, damage.what),
    }
}

fn report_json(path: &Path, report: &Report) -> Value {
    let damage: Vec<Value> = report
        .damage
        .iter()
        .map(|damage| {
            json!({
                "from_byte": damage.from_byte,
                "to_byte": damage.to_byte,
                "mended_bit": damage.mended_bit,
                "what": damage.what,
                "is_loss": damage.is_loss,
            })
        })
        .collect();
    json!({
        "file": path,
        "bytes": report.bytes,
        "read_bytes": report.read_bytes,
        "pairs": report.pairs,
        "damage": damage,
        "damaged_count": report.damaged_count,
        "lost_pairs": report.lost_pairs,
        "commits_back": report.commits_back,
    })
}
