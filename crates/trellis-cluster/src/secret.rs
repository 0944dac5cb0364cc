//! The 32 bytes that close a cluster: a peer that does not know them gets no answer.
//!
//! Promises: a secret comes from the launcher's pipe, from a file that only its owner can read, or from the user's own
//! key file, which is made whole or not at all. It is overwritten when it is dropped. It must never be printed, or be
//! in the environment or an argument.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use trellis_base::{Deadline, Limit};
use trellis_output::files::Unfinished;

use crate::config::{Config, Peers};

/// The length of a secret in bytes.
pub const SECRET_BYTES: usize = 32;
const FORM: &str = "a secret is 32 bytes or 64 hexadecimal digits";

/// How long a launcher may take to fill the pipe. It fills the pipe before it starts the node, so no node waits this
/// long.
pub(crate) const PIPE: Deadline = Deadline {
    who: "a node that was started by `trellis run`",
    waits_for: "the secret",
    limit: Limit::seconds(10),
    then: "`SecretError`, which says that the pipe stayed empty",
    tested: "crates/trellis-cluster/src/secret.rs a_pipe_that_stays_empty_is_refused",
};

/// A cluster's secret.
pub struct Secret {
    bytes: [u8; SECRET_BYTES],
}

/// Why there is no secret, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SecretError(String);

impl Secret {
    /// The secret of a node: the launcher's if it handed one over, else the one in `secret_file`, else, if every node
    /// is on this host, the user's own. A cluster on several hosts must get a secret.
    pub fn choose(config: &Config, handed_over: Option<Secret>) -> Result<Secret, SecretError> {
        if let Some(secret) = handed_over {
            return Ok(secret);
        }
        if let Some(path) = &config.secret_file {
            return Secret::from_file(path);
        }
        if config.capacity() == 1 && !matches!(config.peers, Peers::Join(_)) {
            return Secret::random();
        }
        if config.is_on_loopback() {
            return Secret::of_this_user();
        }
        Err(SecretError(
            "secret_file: not given, and the nodes are on several hosts; make one with \
             `(umask 077; head -c 32 /dev/urandom > trellis.secret)`, copy it to every host and name it in the \
             configuration"
                .to_owned(),
        ))
    }

    /// A new random secret.
    pub fn random() -> Result<Secret, SecretError> {
        let bytes = trellis_transport::random()
            .map_err(|cause| SecretError(format!("no secret can be drawn from getrandom ({cause}); see random(4)")))?;
        Ok(Secret { bytes })
    }

    /// Reads the secret that a launcher put into a pipe, and closes the pipe.
    pub fn from_pipe(pipe: OwnedFd) -> Result<Secret, SecretError> {
        Secret::from_pipe_within(pipe, PIPE.milliseconds() as libc::c_int)
    }

    fn from_pipe_within(pipe: OwnedFd, timeout_ms: libc::c_int) -> Result<Secret, SecretError> {
        let refused = |why: &str| {
            SecretError(format!(
                "TRELLIS_SECRET_FD: {why}; start the program with `trellis run`, or unset the variable"
            ))
        };
        let mut pipe = File::from(pipe);
        if !pipe.metadata().is_ok_and(|about| about.file_type().is_fifo()) {
            return Err(refused("the descriptor is not a pipe"));
        }
        let mut waiting = libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        if unsafe { libc::poll(&mut waiting, 1, timeout_ms) } <= 0 {
            return Err(refused("the pipe stayed empty"));
        }
        let mut secret = Secret { bytes: [0; SECRET_BYTES] };
        pipe.read_exact(&mut secret.bytes)
            .map_err(|_| refused("the pipe held less than 32 bytes, so another process read it"))?;
        Ok(secret)
    }

    /// Reads a secret from a file: 32 bytes, or 64 hexadecimal digits and perhaps a newline.
    pub fn from_file(path: &Path) -> Result<Secret, SecretError> {
        let refused = |why: String| SecretError(format!("secret_file: {}: {why}", path.display()));
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(|error| refused(format!("cannot be read ({error}); check the path and its owner")))?;
        let about = file.metadata().map_err(|error| refused(format!("cannot be read ({error})")))?;
        if !about.is_file() {
            return Err(refused(
                "is not a regular file; name a file with 32 bytes or 64 hexadecimal digits".to_owned(),
            ));
        }
        // SAFETY: geteuid has no conditions.
        let own = unsafe { libc::geteuid() };
        if !is_private(about.mode(), about.uid(), own) {
            let mode = about.mode() & 0o777;
            return Err(refused(format!(
                "has mode {mode:04o}, so others can read or change it; run `chmod 600 {}`",
                path.display()
            )));
        }
        if about.uid() != own && about.uid() != 0 {
            let owner = about.uid();
            return Err(refused(format!("belongs to user {owner}, not to you (user {own}); use a file of your own")));
        }
        Secret::parse(file).map_err(|error| refused(error.0))
    }

    /// The secret of the user who runs this process.
    pub(crate) fn of_this_user() -> Result<Secret, SecretError> {
        Secret::of_user(std::env::var_os("HOME").map(PathBuf::from).as_deref())
    }

    /// The user's own secret, `~/.trellis/secret`, which is made at the first request.
    ///
    /// Several nodes may ask at once: each writes its own file and links it into place, the first link wins, and all
    /// read the winner.
    fn of_user(home: Option<&Path>) -> Result<Secret, SecretError> {
        let home = home.filter(|home| home.is_absolute()).ok_or_else(|| {
            SecretError(
                "HOME is not set, so there is no place for the key of this user; set HOME, name a secret_file, or start \
                 the nodes with `trellis run`"
                    .to_owned(),
            )
        })?;
        let folder = home.join(".trellis");
        let path = folder.join("secret");
        if !path.exists() {
            make_key_file(&folder, &path).map_err(|error| {
                SecretError(format!(
                    "{}: the key of this user cannot be made ({error}); make the folder writable, name a secret_file, or \
                     start the nodes with `trellis run`",
                    path.display()
                ))
            })?;
        }
        Secret::from_file(&path)
    }

    /// The bytes, for the handshake of a link and for a launcher's pipe.
    pub fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.bytes
    }

    /// The text that [`Secret::from_hexadecimal`] reads, for an exchange that only the job can read.
    pub(crate) fn to_hexadecimal(&self) -> String {
        self.bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads 64 hexadecimal digits.
    pub(crate) fn from_hexadecimal(digits: &str) -> Result<Secret, SecretError> {
        Secret::of_digits(digits.as_bytes())
    }

    fn of_digits(digits: &[u8]) -> Result<Secret, SecretError> {
        if digits.len() != 2 * SECRET_BYTES {
            return Err(SecretError(format!("holds {} bytes; {FORM}", digits.len())));
        }
        let mut secret = Secret { bytes: [0; SECRET_BYTES] };
        for (byte, pair) in secret.bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                return Err(SecretError(format!("holds something else than hexadecimal digits; {FORM}")));
            };
            *byte = high << 4 | low;
        }
        Ok(secret)
    }

    fn parse(file: File) -> Result<Secret, SecretError> {
        let mut text = Wiped([0; 2 * SECRET_BYTES + 4]);
        let mut length = 0;
        let mut source = file.take(text.0.len() as u64);
        loop {
            match source.read(&mut text.0[length..]) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(SecretError(format!("cannot be read ({error})"))),
            }
        }
        if length == SECRET_BYTES {
            let mut secret = Secret { bytes: [0; SECRET_BYTES] };
            secret.bytes.copy_from_slice(&text.0[..SECRET_BYTES]);
            return Ok(secret);
        }
        if length == text.0.len() {
            return Err(SecretError(format!("holds more than 66 bytes; {FORM}")));
        }
        Secret::of_digits(text.0[..length].trim_ascii())
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        wipe(&mut self.bytes);
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret(never printed)")
    }
}

/// A buffer that held a secret's text.
struct Wiped([u8; 2 * SECRET_BYTES + 4]);

impl Drop for Wiped {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Overwrites bytes. The compiler may not leave this out although nothing reads them again.
fn wipe(bytes: &mut [u8]) {
    for byte in bytes {
        // SAFETY: a reference is valid for a write.
        unsafe { std::ptr::write_volatile(byte, 0) };
    }
}

fn digit(letter: u8) -> Option<u8> {
    char::from(letter).to_digit(16).map(|value| value as u8)
}

fn make_key_file(folder: &Path, path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let secret = Secret::random().map_err(|error| io::Error::other(error.0))?;
    let unfinished = Unfinished::begin(path, 0o600)?;
    unfinished.file().write_all(secret.bytes())?;
    match unfinished.finish_new_on_disk() {
        // Another process was faster, and this one uses its secret.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Whether nobody but its owner can read or change a file. Root may also give it to a group, as Kubernetes does with
/// the secrets of a pod whose user is not root.
fn is_private(mode: u32, owner: u32, own: u32) -> bool {
    let is_given_by_root = owner == 0 && own != 0;
    mode & if is_given_by_root { 0o037 } else { 0o077 } == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::PermissionsExt;
    use trellis_testing::Folder;

    fn file(folder: &Folder, contents: &[u8], mode: u32) -> PathBuf {
        let path = folder.file("key");
        // The file of an earlier step, if there was one.
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, contents).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn pipe(contents: &[u8]) -> OwnedFd {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors, which nothing else owns yet.
        let (reader, writer) = unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        File::from(writer).write_all(contents).unwrap();
        reader
    }

    #[test]
    fn root_may_give_a_file_to_a_group() {
        assert!(is_private(0o600, 1000, 1000) && is_private(0o400, 0, 1000));
        assert!(is_private(0o440, 0, 1000) && is_private(0o640, 0, 1000));
        for (mode, owner, own) in [(0o640, 1000, 1000), (0o440, 0, 0), (0o460, 0, 1000), (0o444, 0, 1000)] {
            assert!(!is_private(mode, owner, own), "{mode:o} of {owner} for {own}");
        }
    }

    #[test]
    fn a_file_holds_bytes_or_digits() {
        let folder = Folder::new();
        let raw: Vec<u8> = (100..132).collect();
        assert_eq!(Secret::from_file(&file(&folder, &raw, 0o600)).unwrap().bytes()[..], raw);
        let digits: String = raw.iter().map(|byte| format!("{byte:02X}")).collect();
        for text in [digits.clone(), format!("{digits}\n"), format!("{digits}\r\n")] {
            assert_eq!(Secret::from_file(&file(&folder, text.as_bytes(), 0o400)).unwrap().bytes()[..], raw);
        }
    }

    #[test]
    fn a_wrong_file_is_refused_with_the_fact_and_the_next_step() {
        let folder = Folder::new();
        let sentence =
            |contents: &[u8], mode| Secret::from_file(&file(&folder, contents, mode)).unwrap_err().to_string();
        let open = sentence(&[7; 32], 0o640);
        assert!(open.contains("has mode 0640") && open.contains("run `chmod 600 "), "{open}");
        assert!(sentence(b"short", 0o600).contains("holds 5 bytes; a secret is 32 bytes or 64 hexadecimal digits"));
        assert!(sentence(&[b'g'; 64], 0o600).contains("something else than hexadecimal digits"));
        assert!(sentence(&[b'a'; 500], 0o600).contains("holds more than 66 bytes"));
        assert!(sentence(b"", 0o600).contains("holds 0 bytes"));
        assert!(Secret::from_file(folder.path()).unwrap_err().to_string().contains("is not a regular file"));
        let missing = Secret::from_file(&folder.file("none")).unwrap_err().to_string();
        assert!(missing.starts_with("secret_file: ") && missing.contains("cannot be read"), "{missing}");
    }

    #[test]
    fn a_pipe_that_stays_empty_is_refused() {
        let (pipe, _launcher) = std::io::pipe().unwrap();
        let why = Secret::from_pipe_within(pipe.into(), 1).unwrap_err().to_string();
        assert!(why.contains("the pipe stayed empty"), "{why}");
    }

    #[test]
    fn a_pipe_is_read_once_and_must_be_a_pipe() {
        assert_eq!(Secret::from_pipe(pipe(&[9; 32])).unwrap().bytes(), &[9; 32]);
        assert!(Secret::from_pipe(pipe(&[9; 31])).unwrap_err().to_string().contains("less than 32 bytes"));
        let folder = Folder::new();
        let no_pipe = OwnedFd::from(File::open(file(&folder, &[9; 32], 0o600)).unwrap());
        assert!(Secret::from_pipe(no_pipe).unwrap_err().to_string().contains("is not a pipe"));
    }

    #[test]
    fn many_nodes_that_make_the_users_key_at_once_get_the_same_one() {
        let home = Folder::new();
        let keys: Vec<[u8; SECRET_BYTES]> = std::thread::scope(|scope| {
            let makers: Vec<_> =
                (0..16).map(|_| scope.spawn(|| *Secret::of_user(Some(home.path())).unwrap().bytes())).collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]) && keys[0] != [0; SECRET_BYTES]);
        let names: Vec<_> =
            std::fs::read_dir(home.file(".trellis")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["secret"], "no unfinished file is left");
        assert_eq!(std::fs::metadata(home.file(".trellis/secret")).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(home.file(".trellis")).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn no_home_is_a_sentence() {
        assert!(Secret::of_user(None).unwrap_err().to_string().starts_with("HOME is not set"));
    }

    #[test]
    fn a_cluster_on_several_hosts_must_be_told_its_secret() {
        let config = {
            let nodes = vec!["10.0.0.1:1".to_owned(), "10.0.0.2:1".to_owned()];
            Config { peers: Peers::Listed(nodes), ..Config::default() }
        };
        let sentence = Secret::choose(&config, None).unwrap_err().to_string();
        assert!(sentence.starts_with("secret_file: not given, and the nodes are on several hosts"), "{sentence}");
        let handed_over = Secret { bytes: [3; SECRET_BYTES] };
        assert_eq!(Secret::choose(&config, Some(handed_over)).unwrap().bytes(), &[3; SECRET_BYTES]);
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret { bytes: [65; SECRET_BYTES] }), "Secret(never printed)");
    }
}
