//! `cargo xtask matrix`: runs the programs of `examples/parmacs`, in C with the macros and in C++, on 1 to 8 nodes,
//! under every mode of release consistency, over every link, with every catcher, home and way to notice stores.
//!
//! Promises: every program verifies its own result. A run that is wrong, fails or hangs is reported with the command
//! that repeats it, and the others are still run. The choice of runs depends only on this file: the short form
//! combines every three values of different choices, the long form everything. The short form uses the build of the
//! tests, the long form the build for use. It must never leave a process behind.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use trellis_base::Random;

use crate::workspace::{Profile, Workspace};
use crate::{fabric, programs, setup, step};

/// A program, and options that make it short but leave work for every node.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) options: &'static [&'static str],
}

pub(crate) const PROGRAMS: &[Program] = &[
    Program { name: "barnes", options: &["-n", "520", "-s", "2"] },
    Program { name: "fft", options: &["-m", "12"] },
    Program { name: "lu", options: &["-n", "150", "-b", "16"] },
    Program { name: "lu", options: &["-n", "70", "-b", "16", "-r"] },
    Program { name: "matmul", options: &["-n", "130"] },
    Program { name: "ocean", options: &["-n", "130", "-s", "10"] },
    Program { name: "radix", options: &["-n", "20000", "-r", "256", "-m", "65536"] },
];
const INTERFACES: &[&str] = &["parmacs", "cpp"];
const NODES: &[&str] = &["1", "2", "3", "4", "8"];

/// The keys that vary, and their values.
const KEYS: [(&str, &[&str]); 5] = [
    ("coherence", &["hlrc(invalidate)", "hlrc(update)", "hlrc(adaptive)"]),
    ("home", &["manager", "interleaved", "first-touch", "migrating"]),
    ("catch", &["signal", "handler", "mprotect"]),
    ("write_detection", &["auto", "faults"]),
    ("link", &["tcp", "udp", "shm", "auto", FABRIC]),
];
/// Only in a library that is built for it.
const FABRIC: &str = "fabric";

/// Settings of every command. The time-out is only as long as is needed to be sure that a run hangs.
const FIXED: &[&str] = &["region_bytes=64MiB", "wait_seconds_max=60"];
/// When a run that does not end by itself is ended; far more than any of them needs.
const STUCK: Duration = Duration::from_secs(150);

const CHOICES: usize = KEYS.len() + 3;

/// One run: the index of a value of every choice, in this order: program, interface, nodes, and the keys.
type Row = [u8; CHOICES];

/// Runs the matrix, for at most so many minutes.
pub(crate) fn run(workspace: &Workspace, quick: bool, minutes: Option<u32>) -> Result<()> {
    setup::ensure(&[setup::COMPILER, setup::MACRO_PROCESSOR])?;
    let with_fabric = !quick && setup::FABRIC.is_here();
    if !quick && !with_fabric {
        eprintln!("SKIPPED link fabric: libfabric is not installed");
    }
    let bench = Bench::build(workspace, if quick { Profile::Debug } else { Profile::Release }, with_fabric)?;
    let sizes = sizes(with_fabric);
    let rows = if quick { every_three(&sizes) } else { everything(&sizes) };
    let until = minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * u64::from(minutes)));
    let form = if quick { "short form" } else { "long form" };
    step::step(&format!("programs verify themselves: {} runs, {form}", rows.len()), || bench.run_all(&rows, until))
}

/// The built programs, and the folder for the output of runs.
pub(crate) struct Bench {
    pub(crate) folder: PathBuf,
    pub(crate) trellis: PathBuf,
    fabric: Option<(PathBuf, PathBuf)>,
}

impl Bench {
    pub(crate) fn build(workspace: &Workspace, profile: Profile, with_fabric: bool) -> Result<Bench> {
        workspace.build(profile)?;
        let folder = workspace.target.join("matrix");
        let prefix = folder.join("prefix");
        std::fs::create_dir_all(&folder)?;
        programs::install_library(workspace, profile, &prefix)?;
        let fabric = if with_fabric { Some(fabric::install(workspace, &folder.join("prefix-fabric"))?) } else { None };
        step::step("build the programs of examples/parmacs", || {
            let mut make = workspace.command("make");
            make.args(["--silent", "-C", "examples/parmacs", "MACROS=../../parmacs/c.m4.trellis"]);
            // A make that runs this task must not influence this one.
            make.env_remove("MAKEFLAGS").env_remove("MFLAGS").arg(format!("OUT={}", folder.join("parmacs").display()));
            let (include, lib) = (prefix.join("include"), prefix.join("lib"));
            let (include, lib) = (include.display(), lib.display());
            step::run(make.arg(format!("TRELLIS_FLAGS=-I{include} -L{lib} -Wl,-rpath,{lib} -ltrellis")))?;
            std::fs::create_dir_all(folder.join("cpp"))?;
            let names: BTreeSet<&str> = PROGRAMS.iter().map(|program| program.name).collect();
            names.iter().try_for_each(|name| {
                let source = format!("examples/parmacs/{name}/{name}.cpp");
                programs::compile(workspace, &source, &folder.join("cpp").join(name), Some(&prefix))
            })
        })?;
        Ok(Bench { folder, trellis: workspace.built(profile, "trellis"), fabric })
    }

    fn run_all(&self, rows: &[Row], until: Option<Instant>) -> Result<()> {
        let (start, mut printed) = (Instant::now(), Instant::now());
        let (mut failed, mut done) = (0, 0);
        for row in rows {
            if until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            let mut command = self.command(row);
            if let Err(error) = self.run(&mut command) {
                failed += 1;
                eprintln!("    FAILED: {error:#}\n    again: {}", quoted(&command));
            }
            done += 1;
            if printed.elapsed() > Duration::from_secs(10) {
                printed = Instant::now();
                eprintln!("    {done} of {}, {failed} failed, {}", rows.len(), step::seconds(start.elapsed()));
            }
        }
        match failed {
            0 => eprintln!("    {done} of {} runs, every result is right", rows.len()),
            _ => bail!("{failed} of {done} runs failed; the commands that repeat them are above"),
        }
        Ok(())
    }

    fn command(&self, row: &Row) -> Command {
        let program = &PROGRAMS[usize::from(row[0])];
        let (interface, nodes) = (INTERFACES[usize::from(row[1])], NODES[usize::from(row[2])]);
        let settings: Vec<String> = KEYS
            .iter()
            .zip(&row[3..])
            .map(|((key, values), &value)| format!("{key}={}", values[usize::from(value)]))
            .collect();
        let is_fabric = settings.contains(&format!("link={FABRIC}"));
        let mut command = match self.fabric.as_ref().filter(|_| is_fabric) {
            Some((trellis, libraries)) => {
                let mut command = Command::new("env");
                command.arg(format!("LD_LIBRARY_PATH={}", libraries.display())).arg(trellis);
                command.args(["run", "--set", "fabric_provider=tcp"]);
                command
            }
            None => {
                let mut command = Command::new(&self.trellis);
                command.arg("run");
                command
            }
        };
        command.args(["-n", nodes, "--output", "raw"]);
        for setting in settings.iter().map(String::as_str).chain(FIXED.iter().copied()) {
            command.args(["--set", setting]);
        }
        command.arg("--").arg(self.folder.join(interface).join(program.name)).args(program.options);
        if interface == "parmacs" {
            command.args(["-p", nodes]);
        }
        command
    }

    /// Runs a command to its end; its result must be verified.
    pub(crate) fn run(&self, command: &mut Command) -> Result<()> {
        let (out, errors) = (self.folder.join("stdout"), self.folder.join("stderr"));
        let into = |file: &Path| File::create(file).with_context(|| format!("cannot write {}", file.display()));
        command.stdin(Stdio::null()).stdout(into(&out)?).stderr(into(&errors)?);
        let status = end_of(command)?;
        let printed = std::fs::read_to_string(&out).unwrap_or_default();
        if status.is_some_and(|status| status.success()) && printed.trim_end().ends_with(" verified=yes") {
            return Ok(());
        }
        let complained = std::fs::read_to_string(&errors).unwrap_or_default();
        let how = match status {
            Some(status) => format!("it ended with {status}"),
            None => format!("it was ended after {}", step::seconds(STUCK)),
        };
        bail!("{how}; it said {:?} and {:?}", printed.trim_end(), complained.trim_end());
    }
}

/// Waits for the end of a process; None, after ending it, if it hangs.
fn end_of(command: &mut Command) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start `{}`", step::shown(command)))?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > STUCK {
            // The nodes end with their launcher.
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The command as shell text.
pub(crate) fn quoted(command: &Command) -> String {
    let words = step::shown(command);
    let quote = |word: &str| if word.contains('(') { format!("'{word}'") } else { word.to_owned() };
    words.split(' ').map(quote).collect::<Vec<_>>().join(" ")
}

/// The number of values of each choice.
fn sizes(with_fabric: bool) -> Row {
    let mut sizes = [0; CHOICES];
    let keys = KEYS.iter().map(|(_, values)| values.iter().filter(|value| with_fabric || **value != FABRIC).count());
    let all = [PROGRAMS.len(), INTERFACES.len(), NODES.len()].into_iter().chain(keys);
    sizes.iter_mut().zip(all).for_each(|(size, count)| *size = count as u8);
    sizes
}

/// Every row, in an order in which adjacent rows differ in everything, so that a part of it is a sample.
fn everything(sizes: &Row) -> Vec<Row> {
    let count: usize = sizes.iter().map(|&size| usize::from(size)).product();
    // This prime divides no size, so every row occurs once.
    const STRIDE: usize = 10_007;
    let row = |index: usize| {
        let mut rest = index * STRIDE % count;
        sizes.map(|size| {
            let value = rest % usize::from(size);
            rest /= usize::from(size);
            value as u8
        })
    };
    (0..count).map(row).collect()
}

/// Rows in which every value of every choice is combined with every two values of two others.
fn every_three(sizes: &Row) -> Vec<Row> {
    /// The number of candidate rows that contain a missing set of values; the one with the most missing sets is
    /// taken.
    const TRIED: usize = 20;
    let mut missing = all_triples(sizes);
    let mut rows = Vec::new();
    let mut random = Random::new(1);
    while let Some(&wanted) = missing.first() {
        let candidates = (0..TRIED).map(|_| {
            let mut row = sizes.map(|size| random.below(size.into()) as u8);
            wanted.iter().for_each(|&(choice, value)| row[usize::from(choice)] = value);
            row
        });
        let best = candidates.max_by_key(|row| triples(row).filter(|triple| missing.contains(triple)).count());
        let best = best.unwrap_or_default();
        for triple in triples(&best) {
            missing.remove(&triple);
        }
        rows.push(best);
    }
    rows
}

/// Every set of three values of different choices.
fn all_triples(sizes: &Row) -> BTreeSet<[(u8, u8); 3]> {
    let values = |choice: u8| (0..sizes[usize::from(choice)]).map(move |value| (choice, value));
    let mut all = BTreeSet::new();
    for three in triples(&[0; CHOICES]) {
        let [one, two, three] = three.map(|(choice, _)| choice);
        let pairs = values(one).flat_map(|first| values(two).map(move |second| [first, second]));
        all.extend(pairs.flat_map(|[first, second]| values(three).map(move |third| [first, second, third])));
    }
    all
}

/// All sets of three values of a row, with their choices.
fn triples(row: &Row) -> impl Iterator<Item = [(u8, u8); 3]> {
    let row = *row;
    let three = move |one: usize, two: usize| {
        (two + 1..CHOICES).map(move |three| [one, two, three].map(|choice| (choice as u8, row[choice])))
    };
    (0..CHOICES).flat_map(move |one| (one + 1..CHOICES).flat_map(move |two| three(one, two)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_form_is_everything_once() {
        for with_fabric in [false, true] {
            let sizes = sizes(with_fabric);
            let rows = everything(&sizes);
            let different: BTreeSet<Row> = rows.iter().copied().collect();
            assert_eq!(different.len(), rows.len());
            assert_eq!(rows.len(), sizes.iter().map(|&size| usize::from(size)).product::<usize>());
            assert!(rows.iter().all(|row| row.iter().zip(&sizes).all(|(value, size)| value < size)));
        }
    }

    #[test]
    fn the_short_form_meets_every_three_values_and_is_short() {
        let sizes = sizes(false);
        let rows = every_three(&sizes);
        let all = all_triples(&sizes);
        // The sets of the rows with the least and with the greatest values are among them.
        assert!(triples(&[0; CHOICES]).chain(triples(&sizes.map(|size| size - 1))).all(|triple| all.contains(&triple)));
        let met: BTreeSet<_> = rows.iter().flat_map(triples).collect();
        assert_eq!(all, met);
        assert!((140..300).contains(&rows.len()), "{} rows", rows.len());
        assert_eq!(rows, every_three(&sizes), "it is the same every time");
    }

    #[test]
    fn a_command_can_be_pasted() {
        let bench = Bench { folder: "/m".into(), trellis: "/t".into(), fabric: None };
        let command = bench.command(&[3, 0, 4, 1, 3, 2, 0, 3]);
        assert_eq!(
            quoted(&command),
            "/t run -n 8 --output raw --set 'coherence=hlrc(update)' --set home=migrating --set catch=mprotect \
             --set write_detection=auto --set link=auto --set region_bytes=64MiB --set wait_seconds_max=60 \
             -- /m/parmacs/lu -n 70 -b 16 -r -p 8"
        );
    }
}
