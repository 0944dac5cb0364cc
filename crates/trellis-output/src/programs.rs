//! Programs that are installed.
//!
//! Promises: a program is found as `execvp(3)` finds it, so a file that this user may not execute is passed over. It must
//! never start one to find out.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

/// The file of a program, in the folders of PATH unless its name has a slash.
pub fn find(name: impl AsRef<OsStr>) -> Option<PathBuf> {
    find_in(name.as_ref(), std::env::var_os("PATH").as_deref()).ok()
}

/// The same, in the folders of another PATH.
///
/// # Errors
///
/// `NotFound`, or `PermissionDenied` if there are only files that may not be executed.
pub fn find_in(name: &OsStr, path: Option<&OsStr>) -> io::Result<PathBuf> {
    let is_path = name.as_bytes().contains(&b'/');
    let folders = path.filter(|_| !is_path).into_iter().flat_map(std::env::split_paths);
    let places = folders.map(|folder| folder.join(name)).chain(is_path.then(|| PathBuf::from(name)));
    let mut error = ErrorKind::NotFound;
    for place in places {
        if is_executable(&place) {
            return Ok(place);
        }
        if place.exists() {
            error = ErrorKind::PermissionDenied;
        }
    }
    Err(error.into())
}

/// Whether this is a file that this user may execute.
pub fn is_executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use trellis_testing::Folder;

    use super::*;

    #[test]
    fn files_that_may_not_be_executed_are_passed_over() {
        let folder = Folder::new();
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        let make = |folder: &Path, name: &str, mode: u32| {
            fs::write(folder.join(name), "").expect("a file");
            fs::set_permissions(folder.join(name), Permissions::from_mode(mode)).expect("it is ours");
        };
        [&first, &second].iter().for_each(|folder| fs::create_dir(folder).expect("a folder"));
        make(&first, "tool", 0o644);
        make(&second, "tool", 0o755);
        make(&second, "text", 0o644);
        fs::create_dir(second.join("folder")).expect("a folder");
        let path = std::env::join_paths([&first, &second]).expect("no colon in them");
        let find = |name: &OsStr| find_in(name, Some(&path)).map_err(|error| error.kind());
        assert_eq!(find("tool".as_ref()), Ok(second.join("tool")));
        assert_eq!(find("text".as_ref()), Err(ErrorKind::PermissionDenied));
        assert_eq!(find("folder".as_ref()), Err(ErrorKind::PermissionDenied));
        assert_eq!(find("none".as_ref()), Err(ErrorKind::NotFound));
        // A name with a slash is no matter of PATH.
        assert_eq!(find(first.join("tool").as_ref()), Err(ErrorKind::PermissionDenied));
        assert_eq!(find(second.join("tool").as_ref()), Ok(second.join("tool")));
        assert_eq!(find_in("tool".as_ref(), None).map_err(|error| error.kind()), Err(ErrorKind::NotFound));
    }
}
