//! Handles SIGINT and SIGTERM in commands that serve others (a store, a controller, a switch), and signals to commands
//! that run a program.
//!
//! Promises: the first signal ends the service in order, also if it arrives while the service begins. One that arrives
//! before there is anything to end, or after the first, ends the process as without a handler. A process that ignored
//! the signals still ignores them. It runs no code in a handler.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};

use crate::exit::{Ending, Failure};

/// The effect of the first signal.
enum Stop {
    /// Ends the service; the process ends by itself.
    Service(Box<dyn FnOnce() + Send>),
    /// Removes what the process would leave behind; the process ends as without a handler.
    Remains(Box<dyn FnOnce() + Send>),
}

/// Tells a service manager that started this process that it serves from now on (sd_notify(3): `READY=1`). Without one,
/// nothing happens.
pub fn say_ready() {
    say_state(sd_notify::NotifyState::Ready);
}

fn say_state(state: sd_notify::NotifyState<'_>) {
    // A manager that does not get the message must not keep the service from serving, or from ending.
    let _ = sd_notify::notify(false, &[state]);
}

/// Waits for the signals; it holds the effect of the first one.
pub struct Ends(Arc<Mutex<Option<Stop>>>);

impl Ends {
    /// Blocks the signals in every thread that is started from now on.
    pub fn listen() -> Result<Ends, Failure> {
        // The kernel keeps a blocked signal also if it is ignored.
        let signals = SignalSet::of([libc::SIGINT, libc::SIGTERM].into_iter().filter(|signal| !is_ignored(*signal)));
        signals.block();
        let stop: Arc<Mutex<Option<Stop>>> = Arc::default();
        let known = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("signals".to_owned());
        let waits = thread.spawn(move || {
            let mut signal = 0;
            // Ends when one of the signals comes, or with the process.
            // SAFETY: both are valid during the call; only this thread takes the signals from now on.
            let is_first = unsafe { libc::sigwait(&signals.0, &mut signal) } == 0;
            // The second signal finds this thread with the signals unblocked, and ends the process.
            signals.unblock();
            let stop = known.lock().unwrap_or_else(PoisonError::into_inner).take().filter(|_| is_first);
            if let Some(Stop::Service(stop)) = stop {
                say_state(sd_notify::NotifyState::Stopping);
                stop();
            } else {
                if let Some(Stop::Remains(remove)) = stop {
                    remove();
                }
                // SAFETY: the signal is one of the two, or none, which does nothing.
                unsafe { libc::raise(signal) };
            }
            // This thread takes the second signal, and ends with the process.
            loop {
                std::thread::park();
            }
        });
        waits.map(|_| Ends(stop)).map_err(|_| Failure::system("start a thread"))
    }

    /// Begins a service: `begin` makes what others can see, such as a socket, and returns what ends it. The first signal
    /// during the call waits for its end. Without that, the process would end and leave the socket behind.
    ///
    /// # Errors
    ///
    /// Those of `begin`. The signals then do what they did before.
    pub fn begin<T, S, E>(&self, begin: impl FnOnce() -> Result<(T, S), E>) -> Result<T, E>
    where
        S: FnOnce() + Send + 'static,
    {
        self.make(|| begin().map(|(service, ends)| (service, Stop::Service(Box::new(ends)))))
    }

    /// Begins a service that still waits for another program: the function that `prepare` returns removes what others
    /// can see, and the first signal ends the process after that call as without a handler.
    ///
    /// # Errors
    ///
    /// As [`Ends::begin`].
    pub fn prepare<T, R, E>(&self, prepare: impl FnOnce() -> Result<(T, R), E>) -> Result<T, E>
    where
        R: FnOnce() + Send + 'static,
    {
        self.make(|| prepare().map(|(made, remove)| (made, Stop::Remains(Box::new(remove)))))
    }

    fn make<T, E>(&self, make: impl FnOnce() -> Result<(T, Stop), E>) -> Result<T, E> {
        let mut stop = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (made, ends) = make()?;
        *stop = Some(ends);
        Ok(made)
    }
}

/// Signals that a command passes on to the program that it runs, instead of ending before it. It starts no thread, so a
/// command that has entered another process namespace can use it.
pub struct PassedOn {
    signals: SignalSet,
}

impl PassedOn {
    /// Blocks SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 in this thread, which must be the only one, except those that this
    /// process was started to ignore, as `nohup` does. The program of `command` starts with the mask as it was.
    pub fn block(command: &mut Command) -> PassedOn {
        // If it is ignored, the kernel does not say when the program ends.
        // SAFETY: no handler is installed; the signal is a constant.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let passed_on = [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
        let wanted = passed_on.into_iter().filter(|signal| !is_ignored(*signal));
        let signals = SignalSet::of(wanted.chain([libc::SIGCHLD]));
        let before = signals.block();
        // SAFETY: between fork and exec runs one system call, which allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(move || {
                before.set();
                Ok(())
            })
        };
        PassedOn { signals }
    }

    /// Waits for the program. Calls `pass` with each of the signals that arrives meanwhile, except those that the kernel
    /// sends to the whole process group when its terminal is gone. The leader of the session, to which the kernel sends
    /// such a signal alone, passes it on.
    ///
    /// # Errors
    ///
    /// When the system does not let this process wait.
    pub fn wait(self, program: &mut Child, pass: impl Fn(i32)) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = program.try_wait()? {
                return Ok(status);
            }
            // Ends with a signal; SIGCHLD says that the program has ended.
            // SAFETY: both are valid during the call.
            let (signal, about, leads_session) = unsafe {
                let mut about: libc::siginfo_t = std::mem::zeroed();
                (libc::sigwaitinfo(&self.signals.0, &mut about), about, libc::getsid(0) == libc::getpid())
            };
            match signal {
                libc::SIGCHLD => {}
                -1 => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
                _ if about.si_code == libc::SI_KERNEL && !leads_session => {}
                signal => pass(signal),
            }
        }
    }
}

/// A set of signals, or the mask of a thread.
///
/// A change of the calling thread's mask is one system call, which is allowed between fork and exec.
#[derive(Clone, Copy)]
pub(crate) struct SignalSet(pub(crate) libc::sigset_t);

impl SignalSet {
    /// The set of these signals, which must exist.
    pub(crate) fn of(signals: impl IntoIterator<Item = i32>) -> SignalSet {
        // SAFETY: the set is plain data that the C library fills before it is read.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in signals {
                assert_eq!(libc::sigaddset(&mut set, signal), 0, "there is no signal {signal}");
            }
            SignalSet(set)
        }
    }

    /// Blocks these signals too, and returns the mask from before.
    pub(crate) fn block(&self) -> SignalSet {
        self.change(libc::SIG_BLOCK)
    }

    fn unblock(&self) {
        self.change(libc::SIG_UNBLOCK);
    }

    /// Makes this the mask.
    pub(crate) fn set(&self) {
        self.change(libc::SIG_SETMASK);
    }

    /// It cannot fail: `how` is valid, and so are both sets (pthread_sigmask(3)).
    fn change(&self, how: i32) -> SignalSet {
        // SAFETY: both sets are valid during the call, and plain data.
        unsafe {
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(how, &self.0, &mut before);
            SignalSet(before)
        }
    }
}

/// Whether this process was started to ignore a signal, as by `nohup`.
pub(crate) fn is_ignored(signal: i32) -> bool {
    // SAFETY: the structure is plain data, which the C library fills; nothing is installed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

/// The exit status of a command that ended like this; a failure is said first.
pub fn status(ending: Ending) -> ExitCode {
    ending.map_or_else(
        |failure| {
            trellis_output::lines::complain(format_args!("{failure}"));
            ExitCode::from(failure.code)
        },
        ExitCode::from,
    )
}

/// Makes an exceeded file size limit an error of the write, like a full disk. It uses a handler, because programs
/// that this command starts would inherit an ignored signal.
pub fn take_file_limits_as_errors() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing, which is allowed in one; the signal is a constant.
    unsafe { libc::signal(libc::SIGXFSZ, nothing as extern "C" fn(libc::c_int) as libc::sighandler_t) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::sync::mpsc;

    /// The variable that names a file which a role removes.
    const MADE: &str = "ENDING_TEST_MADE";

    fn role(name: &str) -> ExitStatus {
        start(name).status().unwrap()
    }

    /// The role `name` of this executable, for a process of its own. All threads of that process begin with SIGTERM
    /// blocked, because the signal would end the process in a thread of the test runner.
    fn start(name: &str) -> Command {
        let mut role = Command::new(std::env::current_exe().unwrap());
        role.args(["--exact", &format!("ending::tests::{name}"), "--ignored"]);
        // SAFETY: between fork and exec runs a system call on plain data that lies on the stack.
        unsafe {
            role.pre_exec(|| {
                SignalSet::of([libc::SIGTERM]).block();
                Ok(())
            })
        };
        role
    }

    /// Sends SIGTERM to this process, and returns when its thread for signals has taken it.
    fn terminate_this_process() {
        // SAFETY: the set is plain data that the C library fills before it is read.
        unsafe {
            assert_eq!(libc::kill(libc::getpid(), libc::SIGTERM), 0);
            let mut pending: libc::sigset_t = std::mem::zeroed();
            while libc::sigpending(&mut pending) == 0 && libc::sigismember(&pending, libc::SIGTERM) == 1 {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_signal_while_a_service_begins_ends_it_in_order() {
        assert_eq!(role("begins_a_service_and_gets_a_signal_meanwhile").code(), Some(0));
    }

    #[test]
    fn a_signal_before_a_service_begins_ends_the_process() {
        assert_eq!(role("gets_a_signal_before_a_service_begins").signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn a_signal_during_preparations_removes_what_they_made_and_ends_the_process() {
        let folder = trellis_testing::Folder::new();
        let made = folder.file("prepared");
        std::fs::write(&made, "").unwrap();
        let mut role = start("prepares_and_gets_a_signal");
        assert_eq!(role.env(MADE, &made).status().unwrap().signal(), Some(libc::SIGTERM));
        assert!(!made.exists());
    }

    #[test]
    #[ignore = "a role that tests start"]
    fn prepares_and_gets_a_signal() {
        let ends = Ends::listen().unwrap();
        let made = std::path::PathBuf::from(std::env::var_os(MADE).unwrap());
        let prepare = || Ok::<_, Failure>(((), move || std::fs::remove_file(made).unwrap()));
        ends.prepare(prepare).unwrap();
        terminate_this_process();
        loop {
            std::thread::park();
        }
    }

    #[test]
    #[ignore = "a role that tests start"]
    fn begins_a_service_and_gets_a_signal_meanwhile() {
        let ends = Ends::listen().unwrap();
        let (stop, is_over) = mpsc::channel();
        let begin = || {
            terminate_this_process();
            Ok::<_, Failure>(("the service", move || stop.send(()).unwrap()))
        };
        assert_eq!(ends.begin(begin).unwrap(), "the service");
        is_over.recv().unwrap();
    }

    #[test]
    #[ignore = "a role that tests start"]
    fn gets_a_signal_before_a_service_begins() {
        let _ends = Ends::listen().unwrap();
        terminate_this_process();
        loop {
            std::thread::park();
        }
    }
}
