//! Figure 4.2: the memory of a process that has allocated a gibibyte.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde::Serialize;
use serde_json::json;

use super::super::Reproduced;
use super::bars::Bars;
use super::programs::{Mode, Place, Programs, Source, sentence};
use super::servers::{Folder, Process};
use trellis_base::proc_bytes;
use trellis_command::exit::{self, Failure};
use trellis_command::terminal::Progress;

const SOURCE: Source = Source { name: "allocate.c", text: include_str!("allocate.c") };
const GIBIBYTE: u64 = 1 << 30;

/// What `top` shows as DATA, VIRT, RES and SHR, in KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct Usage {
    data_kib: u64,
    size_kib: u64,
    resident_kib: u64,
    shared_kib: u64,
}

impl Usage {
    /// Reads the text of `/proc/PID/status`.
    fn parse(status: &str) -> Option<Usage> {
        let of = |name| proc_bytes(status, name).map(|bytes| bytes >> 10);
        Some(Usage {
            data_kib: of("VmData")?,
            size_kib: of("VmSize")?,
            resident_kib: of("VmRSS")?,
            shared_kib: of("RssFile")? + of("RssShmem")?,
        })
    }

    fn columns(&self) -> [u64; 4] {
        [self.data_kib, self.size_kib, self.resident_kib, self.shared_kib]
    }
}

/// A run of the figure.
struct Configuration {
    name: &'static str,
    mode: Mode,
    heap: &'static str,
    bytes: u64,
    /// The paper's DATA, VIRT, RES and SHR.
    paper: Option<[u64; 4]>,
}

const fn configuration(
    name: &'static str,
    mode: Mode,
    heap: &'static str,
    bytes: u64,
    paper: Option<[u64; 4]>,
) -> Configuration {
    Configuration { name, mode, heap, bytes, paper }
}

const CONFIGURATIONS: [Configuration; 8] = [
    configuration("original, nothing", Mode::Original, "", 0, None),
    configuration(
        "original, default malloc",
        Mode::Original,
        "",
        GIBIBYTE,
        Some([1_076_392, 1_317_384, 12_948, 10_044]),
    ),
    configuration("heap, nothing", Mode::Heap, "", 0, Some([27_812, 268_804, 13_052, 10_152])),
    configuration("heap, first-fit", Mode::Heap, "first-fit", GIBIBYTE, Some([27_812, 268_804, 12_912, 10_020])),
    configuration("heap, bump", Mode::Heap, "bump", GIBIBYTE, Some([27_812, 268_796, 12_536, 9724])),
    configuration("heap, scalable", Mode::Heap, "scalable", GIBIBYTE, None),
    configuration("line, scalable", Mode::Line, "scalable", GIBIBYTE, None),
    configuration("page, scalable", Mode::Page, "scalable", GIBIBYTE, None),
];

/// Figure 4.2.
pub(super) fn figure(progress: &mut Progress) -> Result<Reproduced, Failure> {
    let programs = Programs::new()?;
    let mut measured = Vec::new();
    for configuration in &CONFIGURATIONS {
        progress.step(&format!("figure 4.2: {}", configuration.name));
        measured.push((configuration, usage(&programs, configuration)?));
    }
    Ok(shown(&measured))
}

/// Starts the program, and reads its usage when it has its memory.
fn usage(programs: &Programs, configuration: &Configuration) -> Result<Usage, Failure> {
    let program = programs.build(&SOURCE, configuration.mode, "-O2")?;
    let place = Place { url: "embedded:", round_trip_us: 0, heap: configuration.heap };
    let failed = |why: String| Failure::new(exit::FAILED, format!("figure 4.2, {}: {why}", configuration.name));
    let folder = Folder::new()?;
    let child = programs
        .command(&program, configuration.mode, &place)
        .arg(configuration.bytes.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(folder.log()?)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let mut process = Process(child);
    let mut said = String::new();
    if let Some(stdout) = process.0.stdout.take() {
        BufReader::new(stdout).read_line(&mut said).map_err(|error| failed(error.to_string()))?;
    }
    if said != "ready\n" {
        // Its error message was written before its output ended.
        return Err(failed(sentence(&folder.said(), "it ended before it had its memory")));
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.0.id()));
    let usage = status.ok().as_deref().and_then(Usage::parse);
    usage.ok_or_else(|| failed("the kernel does not say how much memory it has".to_owned()))
}

fn shown(measured: &[(&Configuration, Usage)]) -> Reproduced {
    let heads = ["run (KiB)", "paper: DATA", "VIRT", "RES", "SHR", "here: DATA", "VIRT", "RES", "SHR"];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    let mut rows = Vec::new();
    for (configuration, usage) in measured {
        let mut cells = vec![configuration.name.to_owned()];
        match configuration.paper {
            Some(paper) => cells.extend(paper.map(|number| number.to_string())),
            None => cells.extend(std::iter::repeat_n(String::new(), 4)),
        }
        cells.extend(usage.columns().map(|number| number.to_string()));
        table.push(cells);
        rows.push(json!({
            "run": configuration.name, "mode": configuration.mode.name(), "heap": configuration.heap,
            "bytes": configuration.bytes, "usage": usage, "paper": configuration.paper,
        }));
    }
    let group = |(configuration, usage): &(&Configuration, Usage)| {
        (configuration.name.to_owned(), usage.columns().map(|number| Some(number as f64)).to_vec())
    };
    let picture = Bars {
        title: "Figure 4.2: memory of a process that allocated 1 GiB".to_owned(),
        along: "KiB".to_owned(),
        series: ["DATA", "VIRT", "RES", "SHR"].map(str::to_owned).to_vec(),
        groups: measured.iter().map(group).collect(),
        note: "As the kernel says it. The axis is logarithmic.".to_owned(),
    };
    Reproduced {
        title: "Figure 4.2: memory with 1 GiB allocated",
        table,
        remark: "The program allocates and does not write, as the paper's. DATA, VIRT, RES and SHR as top calls them: \
                 VmData, VmSize, VmRSS, and RssFile with RssShmem. DATA and VIRT count address space that is kept free for the \
                 region and for the states of its lines; only RES is memory."
            .to_owned(),
        json: json!({ "rows": rows }),
        pictures: vec![("figure4.2.svg".to_owned(), picture.draw())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\trun\nVmSize:\t  268804 kB\nVmRSS:\t   13052 kB\nRssAnon:\t    2900 kB\n\
                          RssFile:\t   10000 kB\nRssShmem:\t     152 kB\nVmData:\t   27812 kB\n";

    #[test]
    fn usage_is_what_top_shows() {
        let usage = Usage::parse(STATUS).expect("all fields are there");
        assert_eq!(usage.columns(), [27_812, 268_804, 13_052, 10_152]);
        assert_eq!(Usage::parse("VmSize:\t 1 kB\n"), None);
        let own = std::fs::read_to_string("/proc/self/status").expect("this kernel has it");
        assert!(Usage::parse(&own).is_some_and(|usage| usage.resident_kib > 0));
    }

    #[test]
    fn every_run_has_a_row_and_the_papers_numbers_stand_beside_it() {
        let usage = Usage { data_kib: 1, size_kib: 2, resident_kib: 3, shared_kib: 4 };
        let measured: Vec<_> = CONFIGURATIONS.iter().map(|configuration| (configuration, usage)).collect();
        let made = shown(&measured);
        assert_eq!(made.table.len(), 1 + CONFIGURATIONS.len());
        assert_eq!(made.table[2][1..6].join(" "), "1076392 1317384 12948 10044 1");
        assert_eq!(made.json["rows"][3]["usage"]["resident_kib"], 3);
    }
}
