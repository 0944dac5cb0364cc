//! The command `history`: checks that one order of operations explains the loads and exchanges of real processes.
//!
//! It records them, or reads them from logs. Promises: a history that no order explains is a failure, printed as the
//! shortest cycle that was found. It must never check a history of which a part is missing.

use super::explore::protocols;
use super::real::{HistoryRequest, Host};
use super::{json_text, refused};
use crate::history::check::{Checked, check};
use crate::history::record::RecordPlan;
use crate::history::{History, log};
use clap::{Args, value_parser};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use trellis_output::exit::{self, Failure};
use trellis_output::files;
use trellis_output::lines::say;

#[derive(Args, Debug)]
pub(super) struct HistoryArguments {
    /// Logs of all nodes of one run; without any, a run is made.
    files: Vec<PathBuf>,
    /// The protocol, for example `lock(ivy)`; `all` for each that the tests cover.
    #[arg(long, default_value = "all")]
    protocol: String,
    /// Number of processes.
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u16).range(1..=16))]
    nodes: u16,
    /// Threads of each process.
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u16).range(1..=16))]
    threads: u16,
    /// Operations of all threads together.
    #[arg(long, default_value_t = 100_000, value_parser = value_parser!(u64).range(1..=100_000_000))]
    operations: u64,
    /// Selects the operations.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Override one configuration key; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = super::litmus::setting)]
    set: Vec<(String, String)>,
    /// Keep the log of each protocol's run in this folder.
    #[arg(long)]
    keep: Option<PathBuf>,
}

pub(super) fn run(chosen: &HistoryArguments, host: Option<&mut dyn Host>, json: bool) -> Result<bool, Failure> {
    if !chosen.files.is_empty() {
        let mut history = History::default();
        for file in &chosen.files {
            let name = file.display().to_string();
            let opened = std::fs::File::open(file).map_err(|error| refused(format!("{name}: {error}")))?;
            log::read(&name, &mut BufReader::new(opened), &mut history).map_err(refused)?;
        }
        return Ok(judge("logs", &history, json));
    }
    let Some(host) = host else {
        let sentence = "this command starts no processes; use `trellis check history`, or name log files";
        return Err(refused(sentence.into()));
    };
    let mut passed = true;
    let protocols = protocols(&chosen.protocol).map_err(refused)?;
    if let Some(folder) = &chosen.keep {
        std::fs::create_dir_all(folder)
            .map_err(|error| Failure::new(exit::FILE, format!("cannot make {}: {error}", folder.display())))?;
        for protocol in &protocols {
            files::expect_writable(&kept_file(folder, &protocol.to_string()))?;
        }
    }
    for protocol in protocols {
        let mut plan = RecordPlan::new(chosen.nodes, chosen.threads, chosen.operations);
        plan.seed = chosen.seed;
        let request = HistoryRequest { protocol, plan, settings: chosen.set.clone() };
        let history = host.history(&request).map_err(refused)?;
        if let Some(folder) = &chosen.keep {
            let file = kept_file(folder, &protocol.to_string());
            files::write_with(&file, |to| log::write(to, &history.threads))?;
        }
        passed &= judge(&protocol.to_string(), &history, json);
    }
    Ok(passed)
}

/// Where the history of a protocol is kept.
fn kept_file(folder: &Path, protocol: &str) -> PathBuf {
    folder.join(format!("{}.history", protocol.replace(['(', ')', ',', ' '], "-")))
}

fn judge(name: &str, history: &History, json: bool) -> bool {
    let checked = check(history);
    let operations = history.len();
    let (fault, story) = match &checked {
        Ok(_) => ("none", &[][..]),
        Err(wrong) => (wrong.fault.name(), &wrong.story[..]),
    };
    if json {
        let story: Vec<String> = story.iter().map(|line| json_text(line)).collect();
        say!(
            "{{\"history\": {}, \"operations\": {operations}, \"fault\": \"{fault}\", \"story\": [{}]}}",
            json_text(name),
            story.join(", ")
        );
    } else {
        match &checked {
            Ok(Checked { reads, writes, cells, .. }) => {
                say!(
                    "{name}: {operations} operations ({reads} reads, {writes} exchanges, {cells} cells): one order explains them"
                );
            }
            Err(_) => {
                say!("{name}: {operations} operations: {fault}");
                story.iter().for_each(|line| say!("  {line}"));
            }
        }
    }
    checked.is_ok()
}
