//! A cluster of Slurm for tests: `munged`, a controller, and a daemon on each host of a lab.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use trellis_testing::{Folder, Need, skip};

use super::hosts::Hosts;
use super::{Run, in_role, wait_until};

// They are outside of the search path of ordinary users.
const MUNGED: &str = "/usr/sbin/munged";
const CONTROLLER: &str = "/usr/sbin/slurmctld";
const DAEMON: &str = "/usr/sbin/slurmd";

/// It ends with this value.
pub(crate) struct Slurm {
    pub(crate) lab: Hosts,
    folder: Folder,
    daemons: Vec<Child>,
}

impl Slurm {
    /// `None`, with the reason, where there can be none.
    pub(crate) fn up(test: &str, hosts: u16) -> Option<Slurm> {
        if let Some(missing) = [MUNGED, CONTROLLER, DAEMON].iter().find(|path| !fs::exists(path).unwrap_or(false)) {
            skip(test, Need::Program, format_args!("{missing} is not installed"));
            return None;
        }
        let mut slurm = Slurm { lab: Hosts::plain(test, hosts)?, folder: Folder::new(), daemons: Vec::new() };
        slurm.configure();
        let place = |name: &str| slurm.folder.file(name).display().to_string();
        let mut munged = Command::new(MUNGED);
        munged.args(["--foreground", "--force", "--key-file", &place("munge.key"), "--socket", &place("munge.socket")]);
        munged.args(["--pid-file", &place("munge.pid"), "--log-file", &place("munge.log")]);
        munged.args(["--seed-file", &place("munge.seed")]);
        let controller = slurm.inside("c1", &[CONTROLLER, "-c", "-D"]);
        let names: Vec<String> = (1..=hosts).map(|host| format!("c{host}")).collect();
        let servers = names.iter().map(|name| slurm.inside(name, &[DAEMON, "-D", "-N", name]));
        for mut daemon in [munged, controller].into_iter().chain(servers).collect::<Vec<_>>() {
            let log =
                fs::File::create(slurm.folder.file(format!("daemon-{}", slurm.daemons.len()))).expect("it is ours");
            daemon.stdin(Stdio::null()).stdout(log.try_clone().expect("a copy")).stderr(log);
            slurm.daemons.push(daemon.spawn().expect("it can be started"));
        }
        wait_until("every host of Slurm is idle", || {
            let output = slurm.inside("c1", &["sinfo", "-h", "-N", "-o", "%t"]).output().expect("it can be started");
            output.stdout == "idle\n".repeat(hosts.into()).as_bytes()
        });
        Some(slurm)
    }

    fn configure(&self) {
        let key = self.folder.file("munge.key");
        let random = fs::read("/proc/sys/kernel/random/uuid").expect("Linux has it");
        fs::write(&key, random.repeat(4)).expect("it is ours");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("it is ours");
        let status = self.lab.status();
        let hosts = status["hosts"].as_array().expect("hosts");
        let mut names = "127.0.0.1 localhost\n".to_owned();
        for host in hosts {
            let (name, address) =
                (host["name"].as_str().expect("a name"), host["address"].as_str().expect("an address"));
            writeln!(names, "{address} {name}").expect("text");
            fs::create_dir(self.folder.file(format!("temporary-{name}"))).expect("it is ours");
        }
        fs::write(self.folder.file("hosts"), names).expect("it is ours");
        fs::create_dir(self.folder.file("state")).expect("it is ours");
        let place = self.folder.path().display();
        let settings = format!(
            "ClusterName=lab\nSlurmctldHost=c1\nSlurmUser=root\nAuthType=auth/munge\nAuthInfo=socket={place}/munge.socket\n\
             SlurmctldPidFile={place}/controller.pid\nSlurmdPidFile={place}/daemon-%n.pid\n\
             SlurmdSpoolDir={place}/spool-%n\nStateSaveLocation={place}/state\nTmpFS={place}/temporary-%n\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_CPU\nReturnToService=2\nSlurmdParameters=config_overrides\nKillWait=1\n\
             CommunicationParameters=EnableIPv6\nNodeName=c[1-{}] CPUs=4\n\
             PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n",
            hosts.len()
        );
        fs::write(self.folder.file("slurm.conf"), settings).expect("it is ours");
    }

    /// A command in a host, which knows the names of the others.
    pub(crate) fn inside(&self, host: &str, arguments: &[&str]) -> Command {
        let names = self.folder.file("hosts");
        let script = format!(
            "hostname \"$0\" && mount -t proc proc /proc && mount --bind {} /etc/hosts && exec \"$@\"",
            names.display()
        );
        let mut command = self.lab.task("run", &[host, "--", "unshare", "-mu", "sh", "-c", &script, host]);
        command.args(arguments).env("SLURM_CONF", self.folder.file("slurm.conf"));
        // What an allocation around these tests says must not count in this one.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SLURM_") {
                command.env_remove(name);
            }
        }
        command
    }

    /// This executable as the tasks of a step, in a role.
    pub(crate) fn srun(&self, role: &str, options: &[&str]) -> Run {
        let mut command = self.inside("c1", &[&["srun"], options].concat());
        in_role(&mut command, role);
        Run::start(command)
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // In the order in which they need each other; those in hosts end with the lab at the latest.
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
