//! `trellis run --hosts` where one host allows less than the other: by its user, its seccomp profile, its control group
//! or its processors. Machines of a lab cannot differ in kernel, page size or C library; that is in
//! `docs/reference/limits.md`.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::hosts::Hosts;
use support::{Run, wait_until};
use trellis_testing::{Folder, Need, compiled, skip};

/// The memory of a control group of a host.
const LIMIT_BYTES: u64 = 512 << 20;

/// A lab whose hosts c1 and c2 differ: the agent of c2 is started by the given words.
fn unlike(test: &str, folder: &Folder, words: &str) -> Option<Hosts> {
    let mut lab = Hosts::up(test, 2)?;
    let script = folder.write(
        "ssh",
        format!(
            "#!/bin/bash\nwords=(\"$@\"); last=$(($# - 1))\n\
             case ${{words[last - 1]}} in *c2) words[last]=\"exec {words} ${{words[last]#exec }}\";; esac\n\
             exec {} \"${{words[@]}}\"\n",
            lab.ssh
        ),
    );
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
    lab.ssh = script.display().to_string();
    Some(lab)
}

/// What `trellis doctor` says of both hosts.
fn surveyed(lab: &Hosts) -> Value {
    let mut command = lab.task("run", &["c1", "--", env!("CARGO_BIN_EXE_trellis"), "doctor", "--ssh", &lab.ssh]);
    command.args(["--hosts", "c1,c2", "--json"]);
    let found = Run::start(command).finish();
    assert_eq!(found.code, Some(0), "{found:?}");
    serde_json::from_str(&found.stdout).expect("JSON")
}

/// Runs a node on each host, and returns what was said.
fn share(lab: &Hosts) -> String {
    let run = lab.start_role("sum", &["--hosts", "c1,c2"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stdout.contains("[0 c1] sum 1") && run.stdout.contains("[1 c2] sum 1"), "{run:?}");
    lab.wait_until_quiet();
    run.stderr
}

#[test]
fn a_host_whose_seccomp_profile_refuses_userfaultfd_shares_memory() {
    let folder = Folder::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/without_userfaultfd.c");
    let refusing = compiled("cc", &source, &["-Wall", "-Wextra"]);
    // A device of the kernel gives root what the profile refuses.
    let words = format!("setpriv --reuid 65534 --regid 65534 --clear-groups '{}'", refusing.display());
    let Some(lab) = unlike("a_host_whose_seccomp_profile", &folder, &words) else { return };
    let survey = surveyed(&lab);
    assert_eq!(survey["hosts"][1]["catch"], "mprotect", "{survey}");
    assert_ne!(survey["hosts"][0]["catch"], "mprotect", "the other host allows more: {survey}");
    share(&lab);
}

#[test]
fn a_host_where_the_user_has_no_rights_shares_memory() {
    let folder = Folder::new();
    let words = "setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs";
    let Some(lab) = unlike("a_host_where_the_user_has_no_rights", &folder, words) else { return };
    let users = Run::start({
        let mut command = lab.run(&["--hosts", "c1,c2"]);
        command.args(["id", "-u"]);
        command
    });
    let users = users.finish();
    assert!(users.stdout.contains("[0 c1] 0\n") && users.stdout.contains("[1 c2] 65534\n"), "{users:?}");
    share(&lab);
}

#[test]
fn a_host_where_the_base_address_is_taken_is_named_before_anything_starts() {
    let folder = Folder::new();
    // Without randomisation the kernel puts an executable at this address, on x86-64.
    let Some(lab) = unlike("a_host_where_the_base_address_is_taken", &folder, "setarch -R") else { return };
    let refused = lab.start_role("sum", &["--hosts", "c1,c2", "--set", "base_address=0x555555554000"]).finish();
    assert_eq!(refused.code, Some(71), "{refused:?}");
    assert!(refused.stderr.contains("host c2: its nodes cannot have the region: "), "{refused:?}");
    assert!(!refused.stderr.contains("host c1") && !refused.stdout.contains("sum"), "{refused:?}");
    lab.wait_until_quiet();
}

/// A control group that ends with this value.
struct Group {
    folder: PathBuf,
}

impl Group {
    /// Its memory is limited; `None`, with the reason, where there can be none.
    fn limited(test: &str) -> Option<Group> {
        let [first, second] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
        let (above, file) = match first.join("memory.limit_in_bytes").exists() {
            true => (first, "memory.limit_in_bytes"),
            false => (second, "memory.max"),
        };
        let folder = above.join(format!("trellis-test-{}", std::process::id()));
        let made = fs::create_dir(&folder).and_then(|()| fs::write(folder.join(file), LIMIT_BYTES.to_string()));
        if let Err(error) = made {
            // It may have been made without a limit.
            let _ = fs::remove_dir(&folder);
            skip(test, Need::Kernel, format_args!("no control group can be made: {error}"));
            return None;
        }
        Some(Group { folder })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes are about to end, and a group that is not empty stays.
        wait_until("its control group is empty", || fs::remove_dir(&self.folder).is_ok());
    }
}

#[test]
fn the_control_group_of_a_host_limits_its_memory() {
    let test = "the_control_group_of_a_host_limits_its_memory";
    let folder = Folder::new();
    let Some(group) = Group::limited(test) else { return };
    let enter =
        folder.write("enter", format!("#!/bin/sh\necho $$ > {}/cgroup.procs && exec \"$@\"\n", group.folder.display()));
    fs::set_permissions(&enter, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let Some(lab) = unlike(test, &folder, &format!("'{}'", enter.display())) else { return };
    let survey = surveyed(&lab);
    assert_eq!(survey["hosts"][1]["memory_bytes"], LIMIT_BYTES, "{survey}");
    share(&lab);
    let refused = lab.start_role("sum", &["--hosts", "c1,c2", "--set", "region_bytes=1GiB"]).finish();
    assert_eq!(refused.code, Some(71), "{refused:?}");
    assert!(refused.stderr.contains("host c2: its nodes cannot have the region: "), "{refused:?}");
    assert!(refused.stderr.contains("control group of this process is limited to 512 MiB ("), "{refused:?}");
    lab.wait_until_quiet();
}

#[test]
#[ignore = "a role that tests start"]
fn acts_as_a_node_when_started_as_one() {
    support::node::act(&std::env::var("CLI_TEST_ROLE").expect("a role"));
}
