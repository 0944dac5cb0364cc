//! Builds the published Yahoo! Cloud Serving Benchmark once, runs it, and parses its output.
//!
//! Promises: the benchmark is Maven's `site.ycsb:core` unchanged, with a binding of ours for the Redis protocol. A
//! run in which an operation failed or is missing is an error, although YCSB itself ends with success. It must never
//! build inside of the repository's sources.

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use trellis_base::Fnv1a;
use trellis_command::exit::{self, Failure};

/// The files of the project that is built: path in its folder, and text.
const PROJECT: [(&str, &str); 3] = [
    ("pom.xml", include_str!("../../../../../benchmarks/compare/ycsb/pom.xml")),
    (
        "src/main/java/org/trellis/ycsb/RespBinding.java",
        include_str!("../../../../../benchmarks/compare/ycsb/src/main/java/org/trellis/ycsb/RespBinding.java"),
    ),
    (
        "src/main/java/org/trellis/ycsb/RespConnection.java",
        include_str!("../../../../../benchmarks/compare/ycsb/src/main/java/org/trellis/ycsb/RespConnection.java"),
    ),
];
/// The result of the build, besides `libraries`.
const JAR: &str = "trellis-ycsb.jar";
const BINDING: &str = "org.trellis.ycsb.RespBinding";
/// Rows of the paper's tables, each of ten fields of 100 bytes, which is YCSB's default.
pub(super) const ROWS: usize = 1000;

/// What YCSB does in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workload {
    /// Insert rows.
    Load,
    /// Half reads, half updates.
    A,
    /// Half reads, half read-modify-writes.
    F,
}

impl Workload {
    pub(super) fn name(self) -> &'static str {
        match self {
            Workload::Load => "load",
            Workload::A => "A",
            Workload::F => "F",
        }
    }

    fn properties(self) -> &'static [&'static str] {
        match self {
            Workload::Load => &[],
            Workload::A => &["readproportion=0.5", "updateproportion=0.5"],
            Workload::F => &["readproportion=0.5", "updateproportion=0", "readmodifywriteproportion=0.5"],
        }
    }

    /// The operations that count for the workload.
    fn counted(self) -> &'static [&'static str] {
        match self {
            Workload::Load => &["INSERT"],
            Workload::A => &["READ", "UPDATE"],
            // Every operation of the workload reads once, also one that modifies and writes.
            Workload::F => &["READ"],
        }
    }
}

/// One run to be made.
#[derive(Debug, Clone)]
pub(super) struct Run<'a> {
    pub(super) server: SocketAddr,
    pub(super) workload: Workload,
    pub(super) table: &'a str,
    pub(super) rows: usize,
    pub(super) operations: usize,
    /// Whether YCSB compares everything that it reads with what it wrote.
    pub(super) verified: bool,
}

/// Latencies of one kind of operation, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Latency {
    pub(super) operations: usize,
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
}

/// The result of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Said {
    /// Operations in a second.
    pub(super) throughput: f64,
    /// By YCSB's names: `READ`, `UPDATE`, `INSERT`, `READ-MODIFY-WRITE`, `VERIFY`.
    pub(super) latencies: BTreeMap<String, Latency>,
}

impl Said {
    pub(super) fn latency(&self, operation: &str) -> Option<Latency> {
        self.latencies.get(operation).copied()
    }

    /// Parses YCSB's output for this many operations of a workload.
    pub(super) fn parse(text: &str, workload: Workload, operations: usize) -> Result<Said, String> {
        let mut said = Said::default();
        let mut refused = Vec::new();
        for line in text.lines() {
            let mut cells = line.split(", ");
            let (Some(section), Some(field), Some(value)) = (cells.next(), cells.next(), cells.next()) else {
                continue;
            };
            let Some(section) = section.strip_prefix('[').and_then(|section| section.strip_suffix(']')) else {
                continue;
            };
            let Ok(value) = value.trim().parse::<f64>() else { continue };
            match field {
                "Throughput(ops/sec)" if section == "OVERALL" => said.throughput = value,
                "Operations" => said.of(section).operations = value as usize,
                "AverageLatency(us)" => said.of(section).mean = value,
                "50thPercentileLatency(us)" => said.of(section).p50 = value,
                "99thPercentileLatency(us)" => said.of(section).p99 = value,
                _ => {
                    let answer = field.strip_prefix("Return=").filter(|answer| *answer != "OK");
                    refused.extend(answer.map(|answer| format!("{value} times {answer} for {section}")));
                }
            }
        }
        if !refused.is_empty() {
            return Err(refused.join(", "));
        }
        let made: usize =
            workload.counted().iter().filter_map(|name| said.latency(name)).map(|one| one.operations).sum();
        if made != operations || said.throughput <= 0.0 {
            return Err(format!("{made} of {operations} operations were made"));
        }
        Ok(said)
    }

    fn of(&mut self, section: &str) -> &mut Latency {
        self.latencies.entry(section.to_owned()).or_default()
    }
}

/// YCSB, ready to run.
#[derive(Debug)]
pub(super) struct Ycsb {
    build: PathBuf,
}

impl Ycsb {
    /// Builds it, unless an earlier build is still there.
    pub(super) fn new(mut tell: impl FnMut(&str)) -> Result<Ycsb, Failure> {
        let java = || Command::new("java").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        java().map_err(|error| missing("java", "default-jdk-headless", &error))?;
        let folder = cache(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")).join(fingerprint());
        let ycsb = Ycsb { build: folder.join("build") };
        // The libraries are copied after the jar is made; the file that marks the end is written last.
        let complete = folder.join("complete");
        if complete.is_file() {
            return Ok(ycsb);
        }
        tell("building YCSB with Maven");
        let project = folder.join(format!("project-{}", std::process::id()));
        for (name, text) in PROJECT {
            write(&project.join(name), text)?;
        }
        let built = build(&project, &ycsb.build);
        // Only the sources of a finished build; nothing depends on their removal.
        let _ = std::fs::remove_dir_all(&project);
        built?;
        write(&complete, "")?;
        Ok(ycsb)
    }

    /// Does one run.
    pub(super) fn run(&self, run: &Run) -> Result<Said, Failure> {
        let output = self
            .command(run)
            .output()
            .map_err(|error| Failure::new(exit::SYSTEM, format!("cannot run java: {error}")))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Said::parse(&text, run.workload, run.operations).map_err(|why| {
            let complaint = String::from_utf8_lossy(&output.stderr);
            let cause = complaint.lines().find(|line| line.contains("Exception") || line.starts_with("trellis-ycsb"));
            let cause = cause.map_or(String::new(), |cause| format!(" ({})", cause.trim()));
            Failure::new(exit::FAILED, format!("YCSB's {} at {}: {why}{cause}", run.workload.name(), run.server))
        })
    }

    fn command(&self, run: &Run) -> Command {
        let classes = format!("{}:{}", self.build.join(JAR).display(), self.build.join("libraries/*").display());
        let mut command = Command::new("java");
        command.args(["-cp", &classes, "site.ycsb.Client"]);
        command.arg(if run.workload == Workload::Load { "-load" } else { "-t" });
        command.args(["-db", BINDING, "-threads", "1"]);
        let properties = [
            "workload=site.ycsb.workloads.CoreWorkload".to_owned(),
            "requestdistribution=zipfian".to_owned(),
            "measurementtype=hdrhistogram".to_owned(),
            "hdrhistogram.percentiles=50,99".to_owned(),
            "fieldlengthdistribution=constant".to_owned(),
            format!("resp.host={}", run.server.ip()),
            format!("resp.port={}", run.server.port()),
            format!("table={}", run.table),
            format!("recordcount={}", run.rows),
            format!("operationcount={}", run.operations),
            format!("dataintegrity={}", run.verified),
        ];
        let more = run.workload.properties().iter().map(|&property| property.to_owned());
        for property in properties.into_iter().chain(more) {
            command.args(["-p", &property]);
        }
        command.stdin(Stdio::null());
        command
    }
}

fn build(project: &Path, into: &Path) -> Result<(), Failure> {
    let output = Command::new("mvn")
        .args(["-q", "-B", "-f"])
        .arg(project.join("pom.xml"))
        .arg(format!("-Dtrellis.build={}", into.display()))
        .arg("package")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| missing("mvn", "maven", &error))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let why = text.lines().find(|line| line.contains("ERROR")).unwrap_or("it gave no reason").trim();
    Err(Failure::new(
        exit::FAILED,
        format!(
            "Maven cannot build YCSB: {why}; the first build needs a way to Maven Central (see ~/.m2/settings.xml)"
        ),
    ))
}

/// The name of the build's folder; it depends on the sources, so that each version has a folder of its own.
fn fingerprint() -> String {
    let mut hash = Fnv1a::default();
    PROJECT.iter().for_each(|(_, text)| hash.write(text.as_bytes()));
    format!("ycsb-{:016x}", hash.finish())
}

/// The folder where builds are kept.
fn cache(cache_home: Option<std::ffi::OsString>, home: Option<std::ffi::OsString>) -> PathBuf {
    let absolute = |path: &PathBuf| path.is_absolute();
    cache_home
        .map(PathBuf::from)
        .filter(absolute)
        .or_else(|| home.map(PathBuf::from).filter(absolute).map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("trellis")
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).and_then(|()| std::fs::write(file, text)).map_err(|error| {
        Failure::new(exit::FILE, format!("cannot write {}: {error} (see XDG_CACHE_HOME)", file.display()))
    })
}

/// The error for a tool that cannot be started, with the package to install.
pub(super) fn missing(tool: &str, package: &str, error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            Failure::new(exit::NOT_FOUND, format!("{tool} is not installed; `apt-get install {package}` brings it"))
        }
        _ => Failure::new(exit::NOT_EXECUTABLE, format!("{tool} cannot be executed: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: &str = "\
YCSB Client 0.17.0
[OVERALL], RunTime(ms), 250
[OVERALL], Throughput(ops/sec), 4000.0
[TOTAL_GCs], Count, 0
[READ], Operations, 1000
[READ], AverageLatency(us), 53.25
[READ], MinLatency(us), 12
[READ], 50thPercentileLatency(us), 50
[READ], 99thPercentileLatency(us), 260
[READ], Return=OK, 1000
[READ-MODIFY-WRITE], Operations, 494
[READ-MODIFY-WRITE], AverageLatency(us), 99.5
[UPDATE], Operations, 494
[UPDATE], 50thPercentileLatency(us), 44
[UPDATE], Return=OK, 494
";

    #[test]
    fn latencies_and_throughput_are_read() {
        let said = Said::parse(F, Workload::F, 1000).expect("all of it was made");
        assert_eq!(said.throughput, 4000.0);
        assert_eq!(said.latency("READ"), Some(Latency { operations: 1000, mean: 53.25, p50: 50.0, p99: 260.0 }));
        assert_eq!(said.latency("READ-MODIFY-WRITE").map(|one| one.mean), Some(99.5));
        assert_eq!(said.latency("INSERT"), None);
    }

    #[test]
    fn an_operation_that_failed_is_said() {
        let text = format!("{F}[READ], Return=NOT_FOUND, 451\n");
        assert_eq!(Said::parse(&text, Workload::F, 1000), Err("451 times NOT_FOUND for READ".to_owned()));
    }

    #[test]
    fn operations_that_are_missing_are_said() {
        assert_eq!(Said::parse(F, Workload::F, 2000), Err("1000 of 2000 operations were made".to_owned()));
        let nothing = "[OVERALL], RunTime(ms), 45\n[OVERALL], Throughput(ops/sec), 0.0\n";
        assert_eq!(Said::parse(nothing, Workload::A, 10), Err("0 of 10 operations were made".to_owned()));
        // In A, a read and an update are one operation each.
        assert!(Said::parse(F, Workload::A, 1494).is_ok());
    }

    #[test]
    fn what_is_built_stays_in_the_users_cache() {
        let os = |text: &str| Some(std::ffi::OsString::from(text));
        assert_eq!(cache(os("/c"), os("/home/u")), Path::new("/c/trellis"));
        assert_eq!(cache(os("relative"), os("/home/u")), Path::new("/home/u/.cache/trellis"));
        assert_eq!(cache(None, None), std::env::temp_dir().join("trellis"));
        assert_eq!(fingerprint().len(), "ycsb-".len() + 16);
    }

    #[test]
    fn a_missing_tool_is_named_with_its_package() {
        let error = std::io::Error::from(std::io::ErrorKind::NotFound);
        let failure = missing("mvn", "maven", &error);
        assert_eq!(failure, Failure::new(exit::NOT_FOUND, "mvn is not installed; `apt-get install maven` brings it"));
    }

    #[test]
    fn a_command_says_everything_that_the_run_says() {
        let run = Run {
            server: "127.0.0.1:6379".parse().expect("an address"),
            workload: Workload::F,
            table: "warm",
            rows: 1000,
            operations: 5,
            verified: true,
        };
        let command = Ycsb { build: "/b".into() }.command(&run);
        let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        for word in [
            "-t",
            "/b/trellis-ycsb.jar:/b/libraries/*",
            "resp.port=6379",
            "table=warm",
            "recordcount=1000",
            "operationcount=5",
            "dataintegrity=true",
            "updateproportion=0",
            "readmodifywriteproportion=0.5",
        ] {
            assert!(words.iter().any(|other| other == word), "{word} is missing in {words:?}");
        }
    }
}
