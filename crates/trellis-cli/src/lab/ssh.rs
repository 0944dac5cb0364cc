//! An ssh server in every host of a lab, so that what starts programs on other machines can be tried in it.
//!
//! Promises: the servers and the keys serve this lab alone, and end with it. The folder with the keys is the user's alone;
//! `down` removes it, and if the lab ends in another way, the next lab with ssh does. Only the empty folder that sshd(8)
//! needs on every machine stays. It must never read or change the user's own
//! keys and settings.

use std::fs;
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};
use trellis_command::exit::{self, Failure};
use trellis_command::scratch::Scratch;
use trellis_output::programs;
use trellis_switch::lab::{Host, Lab};

use super::failure;

/// How long the servers may take until they take a connection.
pub(crate) const SERVERS: Deadline = Deadline {
    who: "`trellis lab up --ssh`",
    waits_for: "the ssh server of a host, to take a connection",
    limit: Limit::seconds(20),
    then: "the lab ends, with the host and what its server said",
    tested: "crates/trellis-cli/src/lab/ssh.rs a_server_that_does_not_come_is_named_with_what_it_said",
};
/// The port of ssh.
const PORT: u16 = 22;
/// sshd(8) gives up its rights in this folder, which packages make when they start it.
const EMPTY: &str = "/run/sshd";

/// The folder of a lab's folders: hosts have it even if they have temporary files of their own.
pub(super) const FOLDERS: &str = "/run";

/// The keys and the settings of a lab's ssh.
pub(super) struct Ssh {
    folder: Scratch,
}

impl Ssh {
    /// Starts a server in each host.
    pub(super) fn start(lab: &Lab) -> Result<Ssh, Failure> {
        let server = program("--ssh", "sshd", "openssh-server")?;
        let ssh = Ssh { folder: Scratch::within(Path::new(FOLDERS), "lab-ssh")? };
        let keygen = program("--ssh", "ssh-keygen", "openssh-client")?;
        for key in ["user", "host"] {
            ssh.make_key(&keygen, key)?;
        }
        let put = |name: &str, text: String| {
            let file = ssh.folder.file(name);
            fs::write(&file, text).map_err(|error| unwritten(&file, &error))
        };
        put("config", ssh.settings(lab.hosts()))?;
        fs::create_dir_all(EMPTY).map_err(|error| unwritten(Path::new(EMPTY), &error))?;
        for host in lab.hosts() {
            let name = &host.plan().name;
            let mut command = ssh.server(&server, name);
            let started = host.run(|| command.spawn().map(drop)).map_err(|error| failure(&error))?;
            started.map_err(|error| {
                Failure::new(exit::SYSTEM, format!("cannot start {} in host {name}: {error}", server.display()))
            })?;
        }
        let until = Instant::now() + SERVERS.time();
        for host in lab.hosts() {
            let address = host.plan().address;
            let reached = host.run(|| reached(address, until)).map_err(|error| failure(&error))?;
            if !reached {
                return Err(ssh.silent(&host.plan().name));
            }
        }
        Ok(ssh)
    }

    /// The command with which a host of the lab reaches another one.
    pub(super) fn command(&self) -> String {
        format!("ssh -F {}", self.folder.file("config").display())
    }

    /// Where the keys are.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn make_key(&self, keygen: &Path, name: &str) -> Result<(), Failure> {
        let mut command = Command::new(keygen);
        command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(self.folder.file(name)).stdin(Stdio::null());
        let failed = |why: String| Failure::new(exit::SYSTEM, format!("cannot make a key with ssh-keygen: {why}"));
        let output = command.output().map_err(|error| failed(error.to_string()))?;
        if output.status.success() { Ok(()) } else { Err(failed(String::from_utf8_lossy(&output.stderr).into_owned())) }
    }

    /// ssh_config(5): the names of the hosts, and the key that they accept.
    fn settings(&self, hosts: &[Host]) -> String {
        let own: String = hosts
            .iter()
            .map(|host| format!("Host {}\n  HostName {}\n", host.plan().name, host.plan().address))
            .collect();
        format!(
            "{own}Host *\n  IdentityFile {}\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile \
             /dev/null\n  LogLevel ERROR\n",
            self.folder.file("user").display()
        )
    }

    /// The server of a host.
    fn server(&self, server: &Path, host: &str) -> Command {
        let mut command = Command::new(server);
        command.args(["-D", "-f", "/dev/null", "-o", "StrictModes=no", "-o", "UsePAM=no", "-o", "PidFile=none"]);
        // A launcher logs in many times at once.
        command.args(["-o", "MaxStartups=200", "-o", "MaxSessions=200"]);
        let file = |name: &str| self.folder.file(name).display().to_string();
        command.args(["-h", &file("host"), "-E", &file(host)]);
        command.args(["-o", &format!("AuthorizedKeysFile={}", file("user.pub"))]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn silent(&self, host: &str) -> Failure {
        let said = fs::read_to_string(self.folder.file(host)).unwrap_or_default();
        let last = said.lines().last().unwrap_or("nothing").to_owned();
        let seconds = SERVERS.time().as_secs();
        Failure::new(
            exit::SYSTEM,
            format!("the ssh server of host {host} takes no connection within {seconds} s; it said: {last}"),
        )
    }
}

pub(super) fn unwritten(file: &Path, error: &std::io::Error) -> Failure {
    Failure::new(exit::FILE, format!("cannot write {}: {error}", file.display()))
}

/// Whether a server takes a connection at this address in time.
fn reached(address: Ipv6Addr, until: Instant) -> bool {
    let address = SocketAddr::from((address, PORT));
    while Instant::now() < until {
        if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
            return true;
        }
        // It binds its port within milliseconds, and nothing tells when.
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// A program that may be outside of PATH for users that are not root.
pub(super) fn program(option: &str, name: &str, package: &str) -> Result<PathBuf, Failure> {
    let found = programs::find(name).or_else(|| programs::find(Path::new("/usr/sbin").join(name)));
    found.ok_or_else(|| {
        let sentence = format!("{option} needs {name}, which is not installed (Debian: `apt-get install {package}`)");
        Failure::new(exit::SYSTEM, sentence)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_come_is_named_with_what_it_said() {
        let ssh = Ssh { folder: Scratch::new("test-lab-ssh").expect("a folder") };
        fs::write(ssh.folder.file("c1"), "Server listening\nfatal: no hostkeys available\n").expect("it is ours");
        let said = ssh.silent("c1").sentence;
        let expected =
            "the ssh server of host c1 takes no connection within 20 s; it said: fatal: no hostkeys available";
        assert_eq!(said, expected);
        assert!(!reached(Ipv6Addr::LOCALHOST, Instant::now()));
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let missing = program("--ssh", "no-such-sshd", "openssh-server").expect_err("nobody has it");
        assert!(missing.sentence.ends_with("(Debian: `apt-get install openssh-server`)"), "{missing}");
    }
}
