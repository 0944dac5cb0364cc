//! The part of `trellis run` for clusters that others may join, and for processes that join one or meet others.
//!
//! Promises: a secret is never in an argument, the environment or the output. The file that holds it is readable by
//! its owner only and is removed with the run.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trellis::secret::Secret;

use super::requests::{self, Answer, Request};
use crate::exit::{self, Failure};

/// How a run takes part in joining.
#[derive(Default)]
pub(super) struct Joining {
    /// The node of a running cluster that the processes join.
    pub join: Option<String>,
    /// Whether the processes meet others at a rendezvous.
    pub has_rendezvous: bool,
    /// The file with the secret, if the user names one.
    pub secret_file: Option<PathBuf>,
}

impl Joining {
    /// Whether all nodes of a new cluster are those of this run, which numbers them.
    pub(super) fn is_alone(&self) -> bool {
        self.join.is_none() && !self.has_rendezvous
    }

    /// Reads the secret from that file.
    pub(super) fn secret(&self) -> Result<Option<[u8; 32]>, Failure> {
        let Some(path) = &self.secret_file else { return Ok(None) };
        let secret = Secret::from_file(path).map_err(|error| {
            Failure::new(exit::CONFIGURATION, error.to_string().replacen("secret_file", "--secret-file", 1))
        })?;
        Ok(Some(*secret.bytes()))
    }
}

/// A file with the secret of a run, for processes that join; removed with this value.
pub(super) struct SecretFile {
    path: PathBuf,
}

impl SecretFile {
    /// Writes the secret where only this user can read it.
    pub(super) fn write(secret: &[u8; 32]) -> Result<SecretFile, Failure> {
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
        let folder = folder.unwrap_or_else(std::env::temp_dir);
        let path = folder.join(format!("trellis-{}.secret", std::process::id()));
        let refused = |error| {
            Failure::new(exit::FILE, format!("cannot write the secret for those who join, {}: {error}", path.display()))
        };
        // The file must be new. Otherwise a user who prepared a file of this name could read it.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(refused)?;
        let made = SecretFile { path: path.clone() };
        file.write_all(secret).map_err(refused)?;
        Ok(made)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        // It may have been removed before.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A process that joined a cluster, as its launcher describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedNode {
    /// Its number; `None` before it was let in.
    pub number: Option<u16>,
    /// The process.
    pub pid: i32,
    /// Its launcher.
    pub launcher: i32,
    /// The address at which it joined.
    pub cluster: String,
    /// Its present activity.
    pub doing: String,
}

/// Every process of this user that joined a cluster from this machine, and the sentences about launchers that refuse to
/// say it or do not answer.
pub fn joined_nodes() -> Result<(Vec<JoinedNode>, Vec<Failure>), Failure> {
    let (mut nodes, mut silent) = (Vec::new(), Vec::new());
    for launcher in requests::launchers()? {
        match requests::ask(launcher, Request::List) {
            Ok(Some(Answer::Nodes(its))) => nodes.extend(its),
            // A launcher that has just ended has no nodes.
            Ok(_) => {}
            Err(failure) => silent.push(failure),
        }
    }
    Ok((nodes, silent))
}

/// Asks a node to leave; returns false if it has ended.
///
/// # Errors
///
/// The sentence of a launcher that refuses the request or does not answer.
pub fn ask_to_leave(node: &JoinedNode) -> Result<bool, Failure> {
    Ok(requests::ask(node.launcher, Request::Leave(node.pid))? == Some(Answer::IsAsked(true)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_file_is_private_holds_the_secret_and_goes() {
        let file = SecretFile::write(&[7; 32]).expect("written");
        let path = file.path().to_owned();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let joining = Joining { secret_file: Some(path.clone()), ..Joining::default() };
        assert_eq!(joining.secret().expect("read"), Some([7; 32]));
        drop(file);
        assert!(!path.exists());
        assert!(joining.secret().unwrap_err().sentence.starts_with("--secret-file: "));
        assert_eq!(Joining::default().secret().unwrap(), None);
    }
}
