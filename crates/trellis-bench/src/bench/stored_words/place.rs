//! The folder of one run of the benchmark, and its clean-up.
//!
//! Promises: registered processes, their control group, swap and files are gone when the value is dropped, and also
//! when this process is killed: a shell waits for the end of a pipe that only this process holds, and then cleans up.
//! It must never end a process that was not registered, or touch a file outside of its folder.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use trellis_command::exit::{self, Failure};

/// The commands of the shell at the end of the pipe: $1 is the folder, $2 that of the group. Processes end first, then
/// what they used.
const CLEAN: &str = r#"
trap '' INT TERM HUP QUIT PIPE
read -r _
for file in "$1"/*.pid; do
    if [ -s "$file" ]; then kill -KILL "$(cat "$file")" 2>/dev/null; fi
done
if [ -d "$2" ]; then
    for process in $(cat "$2/cgroup.procs"); do kill -KILL "$process" 2>/dev/null; done
    tries=0
    until rmdir "$2" 2>/dev/null || [ $tries -ge 100 ]; do sleep 0.1; tries=$((tries + 1)); done
fi
if [ -e "$1/swap" ]; then swapoff "$1/swap" 2>/dev/null; fi
rm -rf "$1"
"#;

/// A folder that is removed with this value, and with this process.
#[derive(Debug)]
pub(in crate::bench) struct Place {
    folder: PathBuf,
    name: String,
    cleaner: Child,
}

impl Place {
    pub(in crate::bench) fn new(directory: &Path) -> Result<Place, Failure> {
        let name = format!("trellis-bench-{}", std::process::id());
        let failed = |what: &Path, error: std::io::Error| {
            Failure::new(exit::FILE, format!("cannot make {}: {error} (see --directory)", what.display()))
        };
        let directory = directory.canonicalize().map_err(|error| failed(directory, error))?;
        let folder = directory.join(&name);
        std::fs::DirBuilder::new().mode(0o700).create(&folder).map_err(|error| failed(&folder, error))?;
        let group = super::limit::folder().map_or_else(|| folder.join("none"), |base| base.join(&name));
        let mut command = Command::new("sh");
        command.args(["-c", CLEAN, "sh"]).arg(&folder).arg(group);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // In a process group of its own: an interrupt from the terminal must not end the clean-up.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        match command.spawn() {
            Ok(cleaner) => Ok(Place { folder, name, cleaner }),
            Err(error) => {
                // It is still empty.
                let _ = std::fs::remove_dir(&folder);
                Err(Failure::new(exit::SYSTEM, format!("cannot start sh: {error}")))
            }
        }
    }

    /// Compiles a program of the examples here; returns its path.
    pub(in crate::bench) fn compile(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let (source, program) = (self.file(&format!("{name}.c")), self.file(name));
        std::fs::write(&source, text)
            .map_err(|error| Failure::new(exit::FILE, format!("cannot write {}: {error}", source.display())))?;
        let output = Command::new("cc").arg("-O2").arg(&source).arg("-o").arg(&program).stdin(Stdio::null()).output();
        let output = output.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Failure::new(exit::NOT_FOUND, "cc is not installed; `apt-get install gcc` brings it")
            }
            _ => Failure::new(exit::SYSTEM, format!("cannot start cc: {error}")),
        })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Failure::new(exit::FAILED, format!("cc cannot compile {name}.c: {said}")));
        }
        Ok(program)
    }

    /// The name for a control group.
    pub(in crate::bench) fn name(&self) -> &str {
        &self.name
    }

    pub(in crate::bench) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(in crate::bench) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Removes a file early, so that the next way has its room on the disk.
    pub(in crate::bench) fn remove(&self, name: &str) {
        // It may not exist; otherwise it is removed with the folder.
        let _ = std::fs::remove_file(self.file(name));
    }

    /// Lets the disk finish the writes of earlier ways, and (for root) lets the kernel drop its file cache.
    pub(in crate::bench) fn settle(&self) {
        let script = "sync; echo 3 >/proc/sys/vm/drop_caches";
        // If it fails, the next way's figures are slightly worse; nothing else depends on it.
        let _ = Command::new("sh").args(["-c", script]).stderr(Stdio::null()).status();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.cleaner.stdin.take());
        let _ = self.cleaner.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_processes_go_with_the_value() {
        let place = Place::new(&std::env::temp_dir()).expect("a folder");
        let folder = place.folder().to_owned();
        let mut sleeper = Command::new("sleep").arg("1000").spawn().expect("sleep");
        std::fs::write(place.file("sleeper.pid"), sleeper.id().to_string()).expect("a file");
        drop(place);
        let ended = sleeper.wait().expect("it ended");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(libc::SIGKILL));
        assert!(!folder.exists());
    }
}
