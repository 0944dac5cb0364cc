//! A cluster of Slurm on the hosts of a lab, so that what starts programs in allocations can be tried in it.
//!
//! Promises: the daemons serve this lab alone, and end with it. Their folder is the user's alone; `down` removes it. The
//! controller is on the first host. It must never touch a Slurm that this machine has: the configuration has its own
//! sockets, folders and key.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};
use trellis_command::exit::{self, Failure};
use trellis_command::scratch::Scratch;
use trellis_switch::lab::{Host, Lab};

use super::failure;
use super::ssh::{FOLDERS, program, unwritten};

/// How long the hosts may take until Slurm gives them work.
pub(crate) const HOSTS: Deadline = Deadline {
    who: "`trellis lab up --slurm`",
    waits_for: "the controller of Slurm, to find every host idle",
    limit: Limit::seconds(30),
    then: "the lab ends, with what the controller said",
    tested: "crates/trellis-cli/src/lab/slurm.rs hosts_that_do_not_come_are_named_with_what_was_said",
};
/// The tasks that a host takes at once, whatever processors this machine has.
const TASKS_OF_HOST: usize = 4;

/// The folder of a lab's Slurm.
pub(super) struct Slurm {
    folder: Scratch,
}

impl Slurm {
    /// Starts the daemons, and waits until work can be given to every host.
    pub(super) fn start(lab: &Lab) -> Result<Slurm, Failure> {
        let find = |name, package| program("--slurm", name, package);
        let (munged, controller) = (find("munged", "munge")?, find("slurmctld", "slurm-wlm")?);
        let (daemon, status) = (find("slurmd", "slurm-wlm")?, find("sinfo", "slurm-wlm")?);
        let slurm = Slurm { folder: Scratch::within(Path::new(FOLDERS), "lab-slurm")? };
        slurm.configure(lab.hosts())?;
        let Some(first) = lab.hosts().first() else {
            return Err(Failure::new(exit::USAGE, "--slurm needs a host; give --clients a number"));
        };
        let place = |name: &str| slurm.folder.file(name).display().to_string();
        let mut command = Command::new(munged);
        command.args([
            "--foreground",
            "--force",
            "--key-file",
            &place("munge.key"),
            "--socket",
            &place("munge.socket"),
        ]);
        command.args(["--pid-file", &place("munge.pid"), "--log-file", &place("munge.log")]);
        command.args(["--seed-file", &place("munge.seed")]);
        slurm.spawn(first, "munged", command)?;
        let mut command = Command::new(controller);
        command.args(["-c", "-D"]).env(VARIABLE, slurm.configuration());
        slurm.spawn(first, "controller", command)?;
        for host in lab.hosts() {
            let mut command = Command::new(&daemon);
            command.args(["-D", "-N", &host.plan().name]).env(VARIABLE, slurm.configuration());
            slurm.spawn(host, &host.plan().name, command)?;
        }
        let mut command = Command::new(status);
        command.args(["-h", "-N", "-o", "%t"]).env(VARIABLE, slurm.configuration());
        let until = Instant::now() + HOSTS.time();
        let mut is_idle =
            || first.run(|| is_idle(&mut command, lab.hosts().len(), until)).map_err(|error| failure(&error));
        if is_idle()? { Ok(slurm) } else { Err(slurm.silent()) }
    }

    /// The file that [`VARIABLE`] names.
    pub(super) fn configuration(&self) -> PathBuf {
        self.folder.file("slurm.conf")
    }

    /// slurm.conf(5), and the key that the daemons have in common.
    fn configure(&self, hosts: &[Host]) -> Result<(), Failure> {
        let put = |name: &str, contents: &[u8]| {
            let file = self.folder.file(name);
            fs::write(&file, contents).map_err(|error| unwritten(&file, &error))
        };
        let folder = |name: &str| {
            let folder = self.folder.file(name);
            fs::create_dir(&folder).map_err(|error| unwritten(&folder, &error))
        };
        // munged(8) takes keys of 32 bytes and more.
        let key = trellis::transport::random::<64>()
            .map_err(|error| Failure::new(exit::SYSTEM, format!("no key can be drawn: {error}")))?;
        put("munge.key", &key)?;
        restrict(&self.folder.file("munge.key"))?;
        folder("state")?;
        let mut nodes = String::new();
        for host in hosts {
            let (name, address) = (&host.plan().name, host.plan().address);
            // Writing to a string does not fail.
            let _ = writeln!(nodes, "NodeName={name} NodeAddr={address} CPUs={TASKS_OF_HOST}");
            folder(&format!("temporary-{name}"))?;
        }
        let first =
            hosts.first().map_or_else(String::new, |host| format!("{0}({1})", host.plan().name, host.plan().address));
        let place = self.folder.path().display();
        let settings = format!(
            "ClusterName=lab\nSlurmctldHost={first}\nSlurmUser=root\nAuthType=auth/munge\n\
             AuthInfo=socket={place}/munge.socket\nSlurmctldPidFile={place}/controller.pid\n\
             SlurmdPidFile={place}/daemon-%n.pid\nSlurmdSpoolDir={place}/spool-%n\nStateSaveLocation={place}/state\n\
             TmpFS={place}/temporary-%n\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nReturnToService=2\n\
             SlurmdParameters=config_overrides\nCommunicationParameters=EnableIPv6\nKillWait=1\n\
             {nodes}PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        );
        put("slurm.conf", settings.as_bytes())
    }

    fn spawn(&self, host: &Host, name: &str, mut command: Command) -> Result<(), Failure> {
        let file = self.folder.file(format!("{name}.log"));
        let log = fs::File::create(&file).and_then(|log| Ok((log.try_clone()?, log)));
        let (out, errors) = log.map_err(|error| unwritten(&file, &error))?;
        command.stdin(Stdio::null()).stdout(out).stderr(errors);
        let started = host.run(|| command.spawn().map(drop)).map_err(|error| failure(&error))?;
        started.map_err(|error| Failure::new(exit::SYSTEM, format!("cannot start {name} of Slurm: {error}")))
    }

    fn silent(&self) -> Failure {
        let said = fs::read_to_string(self.folder.file("controller.log")).unwrap_or_default();
        let last = said.lines().last().unwrap_or("nothing").to_owned();
        let seconds = HOSTS.time().as_secs();
        Failure::new(
            exit::SYSTEM,
            format!("Slurm's hosts are not idle within {seconds} s; its controller said: {last}"),
        )
    }
}

/// The variable that names the configuration.
pub(super) const VARIABLE: &str = "SLURM_CONF";

/// munged(8) refuses a key that others can read.
fn restrict(key: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).map_err(|error| unwritten(key, &error))
}

/// Whether a command says in time that so many hosts are idle.
fn is_idle(command: &mut Command, hosts: usize, until: Instant) -> bool {
    loop {
        let output = command.stdin(Stdio::null()).output();
        if output.is_ok_and(|output| output.stdout == "idle\n".repeat(hosts).as_bytes()) {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        // The controller registers hosts as they come, and nothing tells when the last one has.
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_do_not_come_are_named_with_what_was_said() {
        let slurm = Slurm { folder: Scratch::new("test-lab-slurm").expect("a folder") };
        fs::write(slurm.folder.file("controller.log"), "started\nerror: no hosts\n").expect("it is ours");
        let said = slurm.silent().sentence;
        assert_eq!(said, "Slurm's hosts are not idle within 30 s; its controller said: error: no hosts");
        let mut nobody = Command::new("echo");
        nobody.arg("down");
        assert!(!is_idle(&mut nobody, 1, Instant::now()));
        let mut all = Command::new("printf");
        all.arg("idle\\nidle\\n");
        assert!(is_idle(&mut all, 2, Instant::now()));
    }
}
