//! Measures the paper's figures and its table, in the process that has the lab.
//!
//! Promises: every condition has its turn in every run, on one processor with everything that it uses; a READ without
//! a fault is one of them. It must never mix runs: a ratio is the median of the ratios of the runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use trellis::remote::{Client, Pointer};
use trellis_memory::Catcher;
use trellis_switch::lab::Lab;
use trellis_switch::switches;

use super::disk::Disk;
use super::fault::{self, FaultTimes, Source};
use super::requests::{self, Requests};
use crate::bench::figures::p50;
use crate::bench::switch::latency::{Directory, client_in, pages_in, up};
use crate::bench::switch::served::{self, Answers, PAGE_BYTES, Pages, Served, is_page};
use trellis_base::statistics::quantile;
use trellis_command::exit::Failure;

/// The task of the process that measures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PaperTask {
    pub(super) switch: String,
    /// The number of pages, each touched once, and of requests of each kind.
    pub(super) pages: usize,
    pub(super) runs: u32,
    pub(super) has_faults: bool,
    pub(super) has_requests: bool,
}

/// Where the pages of a fault come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Condition {
    WithDirectory,
    WithoutDirectory,
    Signal,
    InKernel,
    Cached,
    Disk,
}

impl Condition {
    pub(super) const ALL: [Condition; 6] = [
        Condition::WithDirectory,
        Condition::WithoutDirectory,
        Condition::Signal,
        Condition::InKernel,
        Condition::Cached,
        Condition::Disk,
    ];

    /// The name in tables.
    pub(super) fn words(self) -> &'static str {
        match self {
            Condition::WithDirectory => "remote, with a directory service",
            Condition::WithoutDirectory => "remote, the switch as directory",
            Condition::Signal => "the same, in the faulting thread",
            Condition::InKernel => "remote, the server's kernel answers",
            Condition::Cached => "local file, in the kernel's cache",
            Condition::Disk => "local file, from the disk",
        }
    }

    /// The name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Condition::WithDirectory => "with_directory",
            Condition::WithoutDirectory => "without_directory",
            Condition::Signal => "signal",
            Condition::InKernel => "in_kernel",
            Condition::Cached => "local_cached",
            Condition::Disk => "local_disk",
        }
    }

    fn catcher(self) -> Catcher {
        if self == Condition::Signal { Catcher::Signal } else { Catcher::Handler }
    }
}

/// Two quantiles of the samples: 50 % and 95 %.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Spread {
    pub(super) p50: f64,
    pub(super) p95: f64,
}

impl Spread {
    fn of(mut samples: Vec<f64>) -> Spread {
        Spread { p50: quantile(&mut samples, 0.5), p95: quantile(&mut samples, 0.95) }
    }
}

/// The faults of one condition, in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Faults {
    pub(super) total: Spread,
    pub(super) enter: Spread,
    pub(super) directory: Spread,
    pub(super) data: Spread,
    pub(super) exit: Spread,
    /// The time of a fault divided by that of a READ in the same run.
    pub(super) over_read: f64,
}

impl Faults {
    /// The parts in the order in which they happen.
    pub(super) fn parts(&self) -> [Spread; 4] {
        [self.enter, self.directory, self.data, self.exit]
    }
}

/// The measurements.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PaperFound {
    pub(super) faults: BTreeMap<String, Faults>,
    pub(super) left_out: BTreeMap<String, String>,
    pub(super) read_us_p50: f64,
    pub(super) directory_over_switch: f64,
    pub(super) requests: Vec<Requests>,
    /// Why there are no requests over libfabric.
    pub(super) fabric_left_out: Option<String>,
}

/// Measures on one processor, in the process for that.
pub(super) fn measure(task: &PaperTask) -> Result<PaperFound, Failure> {
    let mut found = PaperFound::default();
    let lab = up("paper", &task.switch, 1, 3, switches::REDIRECTS)?;
    if task.has_faults {
        faults(task, &lab, &mut found)?;
    }
    if task.has_requests {
        found.requests.push(requests::over_udp(task, &lab)?);
    }
    Ok(found)
}

/// Pages at a server whose address the client keeps, like BlueBridge's pointers.
struct Remote {
    client: Client,
    pages: Pages,
}

impl Source for Remote {
    fn fetch(&mut self, page: usize, into: &mut [u8]) -> Result<(), Failure> {
        self.pages.read(&mut self.client, page, into)
    }
}

/// The same pages, each found by a request to a directory service.
struct Asking {
    directory: Arc<Mutex<Directory>>,
    client: Client,
    place: Option<Pointer>,
}

impl Source for Asking {
    fn locate(&mut self, page: usize) -> Result<(), Failure> {
        let mut directory = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
        self.place = Some(directory.look_up(page)?);
        Ok(())
    }

    fn fetch(&mut self, page: usize, into: &mut [u8]) -> Result<(), Failure> {
        let place = self.place.take().expect("it was asked for");
        self.client.read(place, into).map_err(served::remote)?;
        is_page(page, into)
    }
}

/// All sources of pages.
struct Sources<'a> {
    lab: &'a Lab,
    pages: Pages,
    directory: Arc<Mutex<Directory>>,
    /// The same pages at a server whose kernel answers.
    in_kernel: Result<(Served, Pages), Failure>,
    disk: Disk,
}

impl Sources<'_> {
    /// The inner error is the reason why there is no such source.
    fn open(&self, condition: Condition) -> Result<Result<Box<dyn Source>, String>, Failure> {
        let client = || client_in(self.lab, "c1");
        Ok(match condition {
            Condition::WithDirectory => {
                let directory = Arc::clone(&self.directory);
                Ok(Box::new(Asking { directory, client: client()?, place: None }))
            }
            Condition::WithoutDirectory | Condition::Signal => {
                Ok(Box::new(Remote { client: client()?, pages: self.pages }))
            }
            Condition::InKernel => match &self.in_kernel {
                Ok((_, pages)) => Ok(Box::new(Remote { client: client()?, pages: *pages })),
                Err(why) => Err(why.sentence.clone()),
            },
            Condition::Cached => self.disk.cached(),
            Condition::Disk => self.disk.direct(),
        })
    }
}

fn faults(task: &PaperTask, lab: &Lab, found: &mut PaperFound) -> Result<(), Failure> {
    let (_server, pages) = pages_in(lab, "c1", "s1", task.pages, Answers::Process)?;
    let directory = Arc::new(Mutex::new(Directory::start(lab, "c1", "s2", pages)?));
    let in_kernel = pages_in(lab, "c1", "s3", task.pages, Answers::Kernel);
    let sources = Sources { lab, pages, directory, in_kernel, disk: Disk::make(task.pages)? };
    let mut reads = Vec::new();
    let mut all: BTreeMap<Condition, Vec<Vec<FaultTimes>>> = BTreeMap::new();
    for _ in 0..task.runs {
        reads.push(plain_reads(lab, pages)?);
        for condition in Condition::ALL {
            let works = trellis_memory::choose(Some(condition.catcher()), &trellis_memory::probe());
            let opened = match works {
                Ok(_) => sources.open(condition)?,
                Err(why) => Err(why),
            };
            match opened {
                Ok(source) => {
                    let parts = fault::run(condition.catcher(), source, pages.count)?;
                    all.entry(condition).or_default().push(parts);
                }
                Err(why) => drop(found.left_out.insert(condition.name().to_owned(), why)),
            }
        }
    }
    let read_rounds: Vec<f64> = reads.iter().map(|times| p50(times.iter().copied())).collect();
    found.read_us_p50 = p50(reads.concat());
    let rounds = |condition| -> Vec<f64> {
        let runs = all.get(&condition).map_or(&[][..], Vec::as_slice);
        runs.iter().map(|run| p50(run.iter().map(FaultTimes::total))).collect()
    };
    found.directory_over_switch = ratio(&rounds(Condition::WithDirectory), &rounds(Condition::WithoutDirectory));
    for (condition, runs) in &all {
        let spread = |part: fn(&FaultTimes) -> f64| Spread::of(runs.iter().flatten().map(part).collect());
        let faults = Faults {
            total: spread(FaultTimes::total),
            enter: spread(|parts| parts.enter),
            directory: spread(|parts| parts.directory),
            data: spread(|parts| parts.data),
            exit: spread(|parts| parts.exit),
            over_read: ratio(&rounds(*condition), &read_rounds),
        };
        found.faults.insert(condition.name().to_owned(), faults);
    }
    Ok(())
}

/// READs of every page in turn, without a fault, in microseconds.
fn plain_reads(lab: &Lab, pages: Pages) -> Result<Vec<f64>, Failure> {
    let (mut client, mut room) = (client_in(lab, "c1")?, vec![0; PAGE_BYTES]);
    let timed = |page| {
        let start = Instant::now();
        pages.read(&mut client, page, &mut room)?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    (0..pages.count).map(timed).collect()
}

/// The median of the ratios of runs; NaN if there are none.
fn ratio(above: &[f64], below: &[f64]) -> f64 {
    p50(above.iter().zip(below).map(|(above, below)| above / below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_that_of_runs() {
        assert_eq!(ratio(&[4.0, 30.0, 6.0], &[2.0, 10.0, 3.0]), 2.0);
        assert!(ratio(&[], &[1.0]).is_nan());
        let spread = Spread::of((1..=101).map(f64::from).collect());
        assert_eq!((spread.p50, spread.p95), (51.0, 96.0));
    }
}
