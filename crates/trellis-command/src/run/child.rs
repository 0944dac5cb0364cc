//! Starts one node: its process group, its descriptors, its environment, and its bond to the launcher.
//!
//! A node never outlives the launcher unnoticed: it gets the parent-death signal before its program runs.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::{CpuSet, sched_setaffinity};
use trellis::launch;
use trellis_output::programs;

use crate::ending::SignalSet;
use crate::exit::{self, Failure};
use crate::run::cause::Ended;
use crate::run::status::NodeStatus;

/// One node to start.
pub(super) struct NodeCommand<'a> {
    pub(super) node: usize,
    pub(super) nodes: usize,
    pub(super) program: &'a OsStr,
    pub(super) arguments: &'a [OsString],
    pub(super) environment: Vec<(String, OsString)>,
    /// Where the node listens; a process that joins a cluster has no such socket, and no number.
    pub(super) socket: Option<&'a OwnedFd>,
    pub(super) secret: Option<&'a [u8; 32]>,
    /// Descriptors that the node keeps, with the same numbers.
    pub(super) inherited: Vec<RawFd>,
    /// Whether the program is loaded at the same addresses each time.
    pub(super) has_fixed_addresses: bool,
    /// The processors to which it is bound.
    pub(super) processors: Option<CpuSet>,
    pub(super) stdin: Stdio,
    pub(super) output: NodeOutput,
}

/// Where the node's output goes.
pub(super) enum NodeOutput {
    /// The launcher's own standard output and standard error.
    Inherited,
    /// Pipes read by the launcher.
    Pipes,
    /// A file for standard output and one for standard error.
    Files(File, File),
}

/// A node that runs.
pub(super) struct Running {
    pub(super) pid: i32,
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
}

impl NodeCommand<'_> {
    /// Starts the node with its socket, its secret and a status page. When this returns, the program has been executed: a
    /// missing program is an error here.
    pub(super) fn start(mut self) -> Result<(Running, NodeStatus), Failure> {
        let status = NodeStatus::create()?;
        let secret = self.secret.map(|secret| pipe_holding(secret)).transpose()?;
        let handed_over = [
            (launch::LISTEN_FD_VARIABLE, self.socket.map(AsRawFd::as_raw_fd)),
            (launch::SECRET_FD_VARIABLE, secret.as_ref().map(AsRawFd::as_raw_fd)),
            (launch::STATUS_FD_VARIABLE, Some(status.descriptor())),
        ];
        let mut tell = |name: &str, value: i64| self.environment.push((name.to_owned(), value.to_string().into()));
        if self.socket.is_some() {
            tell(launch::NODE_VARIABLE, self.node as i64);
        }
        for (name, descriptor) in handed_over {
            if let Some(descriptor) = descriptor {
                tell(name, descriptor.into());
                self.inherited.push(descriptor);
            }
        }
        Ok((self.spawn()?, status))
    }

    fn spawn(self) -> Result<Running, Failure> {
        let mut command = Command::new(self.program);
        command.args(self.arguments.iter().map(|argument| substitute(argument, self.node, self.nodes)));
        command.envs(self.environment);
        command.stdin(self.stdin);
        match self.output {
            NodeOutput::Inherited => {}
            NodeOutput::Pipes => {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            NodeOutput::Files(stdout, stderr) => {
                command.stdout(stdout).stderr(stderr);
            }
        }
        bind(&mut command, self.inherited);
        if let Some(processors) = self.processors {
            // SAFETY: the closure makes one system call on memory of its own.
            unsafe { command.pre_exec(move || Ok(sched_setaffinity(None, &processors)?)) };
        }
        if self.has_fixed_addresses {
            // SAFETY: the function makes system calls on plain numbers only.
            unsafe { command.pre_exec(fix_addresses) };
        }
        command.spawn().map(Running::from).map_err(|error| not_started(self.program, &error))
    }
}

impl From<Child> for Running {
    fn from(mut child: Child) -> Running {
        Running {
            pid: child.id() as i32,
            stdin: child.stdin.take().map(OwnedFd::from),
            stdout: child.stdout.take().map(OwnedFd::from),
            stderr: child.stderr.take().map(OwnedFd::from),
        }
    }
}

/// Gives a command a process group of its own, and ends it with this process. It keeps these descriptors.
pub(super) fn bind(command: &mut Command, inherited: Vec<RawFd>) {
    let launcher = std::process::id() as i32;
    command.process_group(0);
    // SAFETY: the closure makes async-signal-safe system calls only and allocates nothing.
    unsafe { command.pre_exec(move || bind_to_launcher(launcher, &inherited)) };
}

/// Sends a signal to the process group of a node that was not reaped, so that the group cannot be another's.
pub(super) fn signal_group(pid: i32, signal: i32) {
    if let (Some(group), Some(signal)) = (Pid::from_raw(pid), Signal::from_named_raw(signal)) {
        // A group whose processes have all ended needs no signal.
        let _ = kill_process_group(group, signal);
    }
}

/// The end or the change of a child.
pub(super) enum Change {
    Stopped(bool),
    Ended(Ended),
}

/// The next child that ended, stopped or continued, if any.
pub(super) fn next_change() -> Option<(i32, Change)> {
    let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
    let (pid, status) = rustix::process::wait(options).ok()??;
    Some((pid.as_raw_nonzero().get(), change_of(status)))
}

fn change_of(status: WaitStatus) -> Change {
    match (status.terminating_signal(), status.exit_status()) {
        (Some(signal), _) => Change::Ended(Ended::Killed { signal, core: libc::WCOREDUMP(status.as_raw()) }),
        (_, Some(status)) => Change::Ended(Ended::Exited(status)),
        _ => Change::Stopped(status.stopped()),
    }
}

/// Runs in the child between fork and exec.
fn bind_to_launcher(launcher: i32, inherited: &[RawFd]) -> io::Result<()> {
    // SAFETY: system calls on plain integers.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(io::Error::last_os_error());
        }
        // The launcher may have died before the call above took effect; then no signal will come.
        if libc::getppid() != launcher {
            libc::_exit(exit::CLUSTER.into());
        }
        // The launcher reads its signals from a descriptor and blocks them; the program gets them in the ordinary
        // way.
        SignalSet::of([]).set();
        for descriptor in inherited {
            if libc::fcntl(*descriptor, libc::F_SETFD, 0) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

/// Runs in the child between fork and exec: the kernel places the program, its libraries and its stack where it places
/// them in every process with these settings.
fn fix_addresses() -> io::Result<()> {
    /// The usual limit of the main thread's stack, above which libraries are placed.
    const STACK_BYTES: libc::rlim_t = 8 << 20;
    // SAFETY: system calls on plain numbers.
    unsafe {
        let now = libc::personality(0xffff_ffff);
        if now < 0 || libc::personality(now as libc::c_ulong | libc::ADDR_NO_RANDOMIZE as libc::c_ulong) < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut stack: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_STACK, &mut stack);
        stack.rlim_cur = STACK_BYTES.min(stack.rlim_max);
        if libc::setrlimit(libc::RLIMIT_STACK, &stack) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Replaces `{node}` by the node's number and `{nodes}` by the number of nodes.
pub(super) fn substitute(argument: &OsStr, node: usize, nodes: usize) -> OsString {
    match argument.to_str() {
        Some(text) => text.replace("{nodes}", &nodes.to_string()).replace("{node}", &node.to_string()).into(),
        // Words are replaced only in arguments that are text.
        None => argument.to_owned(),
    }
}

/// Whether a program can be executed, as far as that can be known in advance.
pub(super) fn executable(program: &OsStr, search_path: Option<&OsStr>) -> Result<(), Failure> {
    let of_process = std::env::var_os("PATH");
    let found = programs::find_in(program, search_path.or(of_process.as_deref()));
    found.map(drop).map_err(|error| not_started(program, &error))
}

/// The sentence and the shell's exit code for a program that could not be executed.
pub(super) fn not_started(program: &OsStr, error: &io::Error) -> Failure {
    let shown = Path::new(program).display();
    let exists_here = Path::new(program).exists();
    let is_path = program.to_string_lossy().contains('/');
    match error.kind() {
        io::ErrorKind::NotFound if is_path && exists_here => Failure::new(
            exit::NOT_EXECUTABLE,
            format!(
                "program `{shown}` names an interpreter that is not there; look at its first line with `head -1 {shown}`"
            ),
        ),
        io::ErrorKind::NotFound if exists_here => Failure::new(
            exit::NOT_FOUND,
            format!("program `{shown}` was not found in PATH; a file of that name is here, run it as `./{shown}`"),
        ),
        io::ErrorKind::NotFound => Failure::new(
            exit::NOT_FOUND,
            format!(
                "program `{shown}` was not found{}",
                if is_path { "; check the path" } else { " in PATH; write the path to it" }
            ),
        ),
        io::ErrorKind::PermissionDenied if Path::new(program).is_dir() => {
            Failure::new(exit::NOT_EXECUTABLE, format!("program `{shown}` is a directory; name the program inside it"))
        }
        io::ErrorKind::PermissionDenied => Failure::new(
            exit::NOT_EXECUTABLE,
            format!("program `{shown}` may not be executed; make it executable with `chmod +x {shown}`"),
        ),
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => Failure::new(
            exit::NOT_EXECUTABLE,
            format!("program `{shown}` is no executable; a script needs a first line such as `#!/bin/sh`"),
        ),
        _ => Failure::new(exit::NOT_EXECUTABLE, format!("program `{shown}` could not be started: {error}")),
    }
}

/// The reading end of a pipe that holds these bytes and nothing more.
pub(super) fn pipe_holding(bytes: &[u8]) -> Result<OwnedFd, Failure> {
    let (reader, mut writer) = io::pipe().map_err(|_| Failure::system("make a pipe for the secret"))?;
    // 32 bytes fit into any pipe.
    writer.write_all(bytes).map_err(|_| Failure::system("write the secret into its pipe"))?;
    Ok(reader.into())
}

/// 32 unpredictable bytes.
pub(super) fn fresh_secret() -> Result<[u8; 32], Failure> {
    let mut secret = [0u8; 32];
    // The kernel returns so few bytes at once.
    match getrandom(&mut secret, GetRandomFlags::empty()) {
        Ok(_) => Ok(secret),
        Err(error) => Err(Failure::new(exit::SYSTEM, format!("cannot draw a secret with getrandom: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_and_nodes_are_substituted() {
        let put = |text: &str| substitute(OsStr::new(text), 2, 4);
        assert_eq!(put("part-{node}-of-{nodes}"), "part-2-of-4");
        assert_eq!(put("{other} {node"), "{other} {node");
    }

    #[test]
    fn a_program_that_cannot_run_has_the_shells_exit_code() {
        let spawn = |program: &str| {
            NodeCommand {
                node: 0,
                nodes: 1,
                program: OsStr::new(program),
                arguments: &[],
                environment: Vec::new(),
                socket: None,
                secret: None,
                inherited: Vec::new(),
                has_fixed_addresses: false,
                processors: None,
                stdin: Stdio::null(),
                output: NodeOutput::Inherited,
            }
            .spawn()
            .err()
            .expect("must fail")
        };
        let missing = spawn("/nonexistent/program");
        assert_eq!(missing.code, exit::NOT_FOUND);
        assert!(missing.sentence.contains("`/nonexistent/program` was not found"), "{missing}");
        let directory = spawn("/tmp");
        assert_eq!(directory.code, exit::NOT_EXECUTABLE);
        assert!(directory.sentence.contains("is a directory"), "{directory}");
        assert_eq!(spawn("/etc/passwd").code, exit::NOT_EXECUTABLE);
        assert_eq!(spawn("no-such-program-anywhere").code, exit::NOT_FOUND);
    }

    #[test]
    fn the_secret_pipe_holds_the_secret_and_ends() {
        let secret = fresh_secret().expect("secret");
        assert_ne!(secret, [0; 32]);
        let mut file = File::from(pipe_holding(&secret).expect("pipe"));
        let mut read = Vec::new();
        io::Read::read_to_end(&mut file, &mut read).expect("read");
        assert_eq!(read, secret);
    }
}
