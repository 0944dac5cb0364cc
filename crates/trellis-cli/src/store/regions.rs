//! `trellis store ls`, `stat` and `rm`: list the regions of a store, show what is in one, and remove it.
//!
//! It must never remove a region that a process may be using, unless forced.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use trellis::stored::StoredError;
use trellis::stored::region::{self, Details, Removed, Summary};

use super::Which;
use trellis_command::chart::byte_text;
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::{self, say};

/// List the regions of a store
#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    which: Which,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const STAT_EXAMPLES: &str = "\
Example:
  trellis store stat queue --store redis://127.0.0.1:6379

Pages are counted in the store: those that somebody stored to and released. A process that was \
killed is listed among those that use the region until another one takes its place, or the region \
is removed.

Exit codes: 0 it is there; 1 there is no such region; 70 the store failed; 78 its address is \
refused, or names a file that is not there.";

/// Show what is in a region, and which processes use it
#[derive(Debug, Args)]
#[command(after_help = STAT_EXAMPLES)]
pub(crate) struct StatArguments {
    /// Its name, or # and its number as `trellis store ls` shows it
    region: String,
    #[command(flatten)]
    which: Which,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const REMOVE_EXAMPLES: &str = "\
Examples:
  trellis store rm queue --store redis://127.0.0.1:6379
  trellis store rm '#17'                what a program that was killed left behind
  trellis store rm '#18' --force        the same, of a program of another machine

Exit codes: 0 removed; 1 there is no such region, or processes use it; 70 the store failed; 78 its \
address is refused, or names a file that is not there.";

/// Remove regions with everything in them
#[derive(Debug, Args)]
#[command(after_help = REMOVE_EXAMPLES)]
pub(crate) struct RemoveArguments {
    /// Names, or # and numbers as `trellis store ls` shows them
    #[arg(required = true, value_name = "REGION")]
    regions: Vec<String>,
    #[command(flatten)]
    which: Which,
    /// Also regions that processes seem to use; what these processes have there is lost
    #[arg(long)]
    force: bool,
}

/// Runs `trellis store ls`.
pub(super) fn list(arguments: &ListArguments) -> Ending {
    let store = arguments.which.open_existing()?;
    let regions = region::list(&*store).map_err(failure)?;
    if arguments.json {
        let list: Vec<Value> = regions.iter().map(summary_json).collect();
        say!("{}", json!({ "store": store.name(), "regions": list }));
    } else if regions.is_empty() {
        say!("no regions in store {}", store.name());
    } else {
        terminal::put(format_args!("{}", table(&regions)));
    }
    Ok(exit::FINE)
}

/// Runs `trellis store stat`.
pub(super) fn stat(arguments: &StatArguments) -> Ending {
    let store = arguments.which.open_existing()?;
    let details = region::stat(&*store, &arguments.region).map_err(failure)?;
    let Some(details) = details else { return Err(no_region(&arguments.region, store.name())) };
    if arguments.json {
        say!("{}", details_json(&details));
    } else {
        terminal::put(format_args!("{}", described(&details)));
    }
    Ok(exit::FINE)
}

/// Runs `trellis store rm`.
pub(super) fn remove(arguments: &RemoveArguments) -> Ending {
    let store = arguments.which.open_existing()?;
    for name in &arguments.regions {
        match region::remove(&*store, name, arguments.force).map_err(failure)? {
            Removed::Keys(keys) => say!("removed {name}: {keys} keys"),
            Removed::Nothing => return Err(no_region(name, store.name())),
            Removed::InUse(members) => {
                let whom: Vec<String> = members.iter().map(|member| member.describe()).collect();
                let sentence = format!(
                    "region `{name}` may be in use by {}; end it, or remove the region with --force",
                    whom.join(", ")
                );
                return Err(Failure::new(exit::FAILED, sentence));
            }
        }
    }
    Ok(exit::FINE)
}

fn no_region(name: &str, store: &str) -> Failure {
    let sentence = format!("store {store} has no region `{name}`; `trellis store ls` lists those it has");
    Failure::new(exit::FAILED, sentence)
}

fn failure(error: StoredError) -> Failure {
    match error {
        StoredError::Store(error) => super::failure(error),
        error => Failure::new(exit::CLUSTER, error.to_string()),
    }
}

fn table(regions: &[Summary]) -> String {
    let rows: Vec<[String; 4]> = std::iter::once(["region", "size", "page", "age"].map(str::to_owned))
        .chain(regions.iter().map(|region| {
            let header = &region.header;
            let sizes = [header.bytes as f64, f64::from(header.page_bytes)].map(byte_text);
            let [size, page] = sizes;
            [region.name.clone(), size, page, age(region.age)]
        }))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let line = |row: &[String; 4]| {
        let [name, size, page, age] = row;
        format!("{name:<0$}  {size:>1$}  {page:>2$}  {age}\n", widths[0], widths[1], widths[2])
    };
    rows.iter().map(line).collect()
}

fn described(details: &Details) -> String {
    let Details { summary, pages, releases, synchronisation_keys, heap_keys, redo_records, is_pending, members } =
        details;
    let page_bytes = u64::from(summary.header.page_bytes);
    let mut text = format!(
        "region        {} (number {})\nsize          {} at {:#x}, pages of {}\nmade          {} ago\n\
         in the store  {} pages ({}), {releases} releases\nkeys          {synchronisation_keys} of locks and the like, \
         {heap_keys} of the heap\n",
        summary.name,
        summary.number,
        byte_text(summary.header.bytes as f64),
        summary.header.base,
        byte_text(page_bytes as f64),
        age(summary.age),
        pages,
        byte_text((pages * page_bytes) as f64),
    );
    if *redo_records > 0 || *is_pending {
        let state = if *is_pending { "committed; the next process finishes it" } else { "not committed" };
        text += &format!("release       {redo_records} redo records are staged, {state}\n");
    }
    match members.as_slice() {
        [] => text += "used by       nobody\n",
        members => members.iter().for_each(|member| text += &format!("used by       {}\n", member.describe())),
    }
    text
}

fn summary_json(region: &Summary) -> Value {
    json!({
        "region": region.name,
        "number": region.number,
        "bytes": region.header.bytes,
        "page_bytes": region.header.page_bytes,
        "base_address": region.header.base,
        "age_seconds": region.age.as_secs(),
    })
}

fn details_json(details: &Details) -> Value {
    let mut object = summary_json(&details.summary);
    object["pages"] = details.pages.into();
    object["releases"] = details.releases.into();
    object["synchronisation_keys"] = details.synchronisation_keys.into();
    object["heap_keys"] = details.heap_keys.into();
    object["redo_records"] = details.redo_records.into();
    object["pending"] = details.is_pending.into();
    let members = details
        .members
        .iter()
        .map(|member| json!({ "member": member.number, "process": member.process, "host": member.host }));
    object["members"] = members.collect::<Vec<_>>().into();
    object
}

/// A duration for people, in at most its two largest units.
fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_read_at_a_glance() {
        let shown = [0, 59, 61, 3_725, 90_061].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(shown, ["0 s", "59 s", "1 min", "1 h 2 min", "1 d 1 h"]);
    }
}
