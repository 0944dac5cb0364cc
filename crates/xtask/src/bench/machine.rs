//! The conditions of a benchmark run: date, processor, kernel, commit.

use serde_json::{Value, json};
use trellis_base::proc_bytes;

use crate::step;
use crate::workspace::Workspace;

/// The context of a figure.
pub(crate) struct Machine {
    /// Year, month and day.
    pub(crate) date: String,
    processor: String,
    cores: usize,
    memory_gib: u64,
    kernel: String,
    commit: String,
    /// Whether files differed from the commit.
    is_changed: bool,
}

impl Machine {
    /// Collects the facts; those that cannot be found out are called unknown.
    pub(crate) fn look(workspace: &Workspace) -> Machine {
        let say = |program: &str, arguments: &[&str]| {
            let mut command = workspace.command(program);
            command.args(arguments).stderr(std::process::Stdio::null());
            step::output(&mut command).map(|text| text.trim().to_owned()).ok().filter(|text| !text.is_empty())
        };
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Machine {
            date: say("date", &["-u", "+%Y-%m-%d"]).unwrap_or_else(unknown),
            processor: field(&processors, "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            memory_gib: memory_gib(&memory),
            kernel: say("uname", &["-sr"]).unwrap_or_else(unknown),
            commit: say("git", &["rev-parse", "--short=10", "HEAD"]).unwrap_or_else(unknown),
            is_changed: say("git", &["status", "--porcelain"]).is_some(),
        }
    }

    /// The name of the folder: date, machine, commit.
    pub(crate) fn folder(&self) -> String {
        let machine: String =
            self.processor.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
        let words: Vec<&str> =
            machine.split('-').filter(|word| !word.is_empty() && *word != "R" && *word != "TM").collect();
        let changed = if self.is_changed { "-changed" } else { "" };
        format!("{}-{}-{}-cores-{}{changed}", self.date, words.join("-").to_ascii_lowercase(), self.cores, self.commit)
    }

    /// One sentence for people.
    pub(crate) fn sentence(&self) -> String {
        format!(
            "{}, {} cores, {} GiB, {}; {}; {}",
            self.processor,
            self.cores,
            self.memory_gib,
            self.kernel,
            self.commit(),
            self.date
        )
    }

    /// The commit for people, and whether the files are those of the commit.
    pub(crate) fn commit(&self) -> String {
        let changed = if self.is_changed { " with changes" } else { "" };
        format!("commit {}{changed}", self.commit)
    }

    /// The facts for programs.
    pub(crate) fn describe(&self) -> Value {
        json!({ "date": self.date, "processor": self.processor, "cores": self.cores, "memory_gib": self.memory_gib,
                "kernel": self.kernel, "commit": self.commit, "changed": self.is_changed })
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// The value after `name :` in a file of the kernel.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|before| before.trim() == name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn memory_gib(text: &str) -> u64 {
    proc_bytes(text, "MemTotal").map_or(0, |bytes| (bytes as f64 / f64::from(1 << 30)).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_a_plain_name() {
        let machine = Machine {
            date: "2026-01-31".to_owned(),
            processor: "Fast(R) Processor(TM) @ 2.0GHz".to_owned(),
            cores: 2,
            memory_gib: 23,
            kernel: "Linux 6.18".to_owned(),
            commit: "0123456789".to_owned(),
            is_changed: false,
        };
        assert_eq!(machine.folder(), "2026-01-31-fast-processor-2-0ghz-2-cores-0123456789");
        assert!(machine.sentence().ends_with("23 GiB, Linux 6.18; commit 0123456789; 2026-01-31"));
    }

    #[test]
    fn the_kernels_files_are_read() {
        assert_eq!(field("a: 1\nmodel name\t: Fast\n", "model name").as_deref(), Some("Fast"));
        assert_eq!(memory_gib("MemTotal:       24113404 kB\n"), 23);
        assert_eq!(memory_gib(""), 0);
    }
}
