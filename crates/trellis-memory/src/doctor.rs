//! What this machine can do for a region, with a reason for everything that it cannot do: for `trellis doctor`, and for
//! the choice of a catcher.
//!
//! Promises: it finds out by trying, not from the kernel's version. It must never change anything that outlives the
//! call.

use std::fs;
use std::io;

use crate::catch::Catcher;
use crate::sys::linux::uffd::{self, Entry, Uffd};
use crate::sys::linux::{calls, pagemap};

/// One thing that a machine can or cannot do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Its name.
    pub name: &'static str,
    /// Whether it is available.
    pub available: bool,
    /// What was found, or why it is not available and how to get it.
    pub detail: String,
}

/// What a machine can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The kernel's release.
    pub kernel: String,
    /// Whether `/dev/userfaultfd` can be opened.
    pub device: Capability,
    /// Whether the system call provides a userfaultfd for all faults.
    pub system_call: Capability,
    /// Whether the system call provides a userfaultfd for faults of user code.
    pub user_mode_only: Capability,
    /// Whether minor faults of shared memory are reported.
    pub minor_shmem: Capability,
    /// Whether shared memory can be write-protected.
    pub write_protect_shmem: Capability,
    /// Whether a fault can be a SIGBUS in its thread.
    pub sigbus: Capability,
    /// Whether the whole mechanism works, tried on one page.
    pub mechanism: Capability,
    /// Whether the kernel can mark written pages without a fault.
    pub write_protect_async: Capability,
    /// Whether written pages can be collected with one request.
    pub pagemap_scan: Capability,
    /// Whether both work together, tried on one page, as [`crate::Detection::Marks`] needs.
    pub marks: Capability,
    /// Whether calls of the C library are made whole, so that a fault may be served in its thread although the program
    /// makes system calls with shared memory.
    pub calls: Capability,
    /// Whether shared memory can have huge pages.
    pub shmem_huge_pages: Capability,
    /// Relevant sysctls, with their values.
    pub sysctls: Vec<(&'static str, String)>,
}

impl Capabilities {
    /// Every capability, in the order in which a report shows them.
    pub fn all(&self) -> [&Capability; 12] {
        [
            &self.device,
            &self.system_call,
            &self.user_mode_only,
            &self.minor_shmem,
            &self.write_protect_shmem,
            &self.sigbus,
            &self.mechanism,
            &self.write_protect_async,
            &self.pagemap_scan,
            &self.marks,
            &self.calls,
            &self.shmem_huge_pages,
        ]
    }

    /// Whether system calls on pages that are not here work with a catcher.
    pub fn system_calls_work(&self, catcher: Catcher) -> bool {
        match catcher {
            Catcher::Handler => self.kernel_faults_wait(),
            Catcher::Signal | Catcher::Mprotect => self.calls.available,
        }
    }

    /// Whether a fault inside a system call can wait. This needs a userfaultfd that is not restricted to user code.
    pub fn kernel_faults_wait(&self) -> bool {
        self.device.available || self.system_call.available
    }

    #[cfg(test)]
    pub(crate) fn everything_for_tests() -> Capabilities {
        let there = |name| Capability { name, available: true, detail: String::new() };
        Capabilities {
            kernel: "test".to_owned(),
            device: there("device"),
            system_call: there("system call"),
            user_mode_only: there("user mode"),
            minor_shmem: there("minor"),
            write_protect_shmem: there("write protect"),
            sigbus: there("sigbus"),
            mechanism: there("mechanism"),
            write_protect_async: there("async"),
            pagemap_scan: there("scan"),
            marks: there("marks"),
            calls: there("calls"),
            shmem_huge_pages: there("huge"),
            sysctls: Vec::new(),
        }
    }
}

/// Examines this machine with this process's permissions.
pub fn probe() -> Capabilities {
    let entries = Entry::ALL.map(|entry| (entry, uffd::features(entry)));
    let features = entries.iter().find_map(|(_, features)| features.as_ref().ok().copied());
    let feature = |name, bit: u64, since: &str| match features {
        None => absent(name, "no userfaultfd can be opened, so its features are unknown".to_owned()),
        Some(features) if features & bit != 0 => present(name, "offered by the kernel".to_owned()),
        Some(_) => absent(name, format!("this kernel does not offer it; Linux {since} or newer does")),
    };
    let [device, system_call, user_mode_only] = entries.map(|(entry, features)| entry_capability(entry, features));
    Capabilities {
        kernel: read_line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned()),
        device,
        system_call,
        user_mode_only,
        minor_shmem: feature("userfaultfd: minor faults of shared memory", uffd::FEATURE_MINOR_SHMEM, "5.14"),
        write_protect_shmem: feature(
            "userfaultfd: write protection of shared memory",
            uffd::FEATURE_WRITE_PROTECT_SHMEM,
            "5.19",
        ),
        sigbus: feature("userfaultfd: fault as SIGBUS", uffd::FEATURE_SIGBUS, "4.14"),
        mechanism: mechanism(),
        write_protect_async: feature(
            "userfaultfd: write protection resolved by the kernel",
            uffd::FEATURE_WRITE_PROTECT_ASYNC,
            "6.7",
        ),
        pagemap_scan: pagemap_scan(),
        marks: marks(),
        calls: calls(),
        shmem_huge_pages: shmem_huge_pages(),
        sysctls: sysctls(),
    }
}

fn present(name: &'static str, detail: String) -> Capability {
    Capability { name, available: true, detail }
}

fn absent(name: &'static str, detail: String) -> Capability {
    Capability { name, available: false, detail }
}

fn entry_capability(entry: Entry, features: io::Result<u64>) -> Capability {
    let (name, remedy) = match entry {
        Entry::Device => ("/dev/userfaultfd", "root can allow it, for example with `chmod a+rw /dev/userfaultfd`"),
        Entry::SystemCall => (
            "userfaultfd(2), all faults",
            "needs root, CAP_SYS_PTRACE, or `sysctl vm.unprivileged_userfaultfd=1`; a container's seccomp profile may \
             forbid it too",
        ),
        Entry::UserModeOnly => (
            "userfaultfd(2), faults of user code only",
            "normally open to everybody since Linux 5.11; a container's seccomp profile may forbid it",
        ),
    };
    match features {
        Ok(_) => present(name, "can be opened".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            absent(name, "there is no such file: Linux 6.1 or newer has it".to_owned())
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            absent(name, "this kernel was built without userfaultfd (CONFIG_USERFAULTFD)".to_owned())
        }
        Err(error) => absent(name, format!("{error}; {remedy}")),
    }
}

fn mechanism() -> Capability {
    let name = "userfaultfd: a page mapped write-protected and upgraded";
    match Uffd::open(false).and_then(|uffd| uffd::try_out(&uffd)) {
        Ok(()) => present(name, "tried on one page, works".to_owned()),
        Err(why) => absent(name, why),
    }
}

fn pagemap_scan() -> Capability {
    let name = "PAGEMAP_SCAN";
    match pagemap::is_known() {
        Ok(()) => present(name, "offered by the kernel".to_owned()),
        Err(why) => absent(name, why),
    }
}

fn marks() -> Capability {
    let name = "stores marked by the kernel";
    match uffd::try_out_marks() {
        Ok(()) => present(
            name,
            "tried on one page, works (Linux 6.7 or newer): where a protocol allows it, a first store is no fault"
                .to_owned(),
        ),
        Err(why) => absent(name, format!("{why}; so a first store to a page is always a write-protect fault")),
    }
}

/// The name of the capability `calls`.
pub const CALLS: &str = "calls of the C library made whole (libtrellis_calls.so)";

fn calls() -> Capability {
    if let Some(why) = calls::made_elsewhere() {
        return absent(CALLS, why.to_owned());
    }
    match calls::are_answered() {
        true => present(CALLS, "its functions are the ones that this process calls".to_owned()),
        false => absent(
            CALLS,
            "this process does not have it loaded first; `trellis run` does that, and programs linked with libtrellis.so \
             have it"
                .to_owned(),
        ),
    }
}

fn shmem_huge_pages() -> Capability {
    let name = "huge pages of shared memory";
    let file = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let Some(text) = read_line(file) else {
        return absent(name, format!("there is no {file}: this kernel was built without them"));
    };
    let chosen =
        text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']')).unwrap_or("unknown");
    match chosen {
        "always" | "within_size" | "force" | "advise" => present(name, format!("{file} says {chosen}")),
        _ => absent(name, format!("{file} says {chosen}; `echo advise > {file}` allows them")),
    }
}

fn sysctls() -> Vec<(&'static str, String)> {
    [
        ("vm.unprivileged_userfaultfd", "/proc/sys/vm/unprivileged_userfaultfd"),
        ("vm.overcommit_memory", "/proc/sys/vm/overcommit_memory"),
        ("vm.max_map_count", "/proc/sys/vm/max_map_count"),
        ("vm.memfd_noexec", "/proc/sys/vm/memfd_noexec"),
    ]
    .into_iter()
    .map(|(name, file)| (name, read_line(file).unwrap_or_else(|| "absent".to_owned())))
    .collect()
}

fn read_line(file: &str) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_has_a_reason_and_what_is_there_was_tried() {
        let machine = probe();
        for capability in machine.all() {
            assert!(!capability.detail.is_empty(), "{} says nothing", capability.name);
        }
        assert!(
            !machine.mechanism.available || machine.minor_shmem.available,
            "a mechanism that works has the feature that it is made of"
        );
        assert!(!machine.kernel.is_empty());
        assert!(machine.sysctls.iter().any(|(name, _)| *name == "vm.max_map_count"));
    }

    #[test]
    fn a_closed_door_says_who_can_open_it() {
        let denied = entry_capability(Entry::SystemCall, Err(io::Error::from_raw_os_error(libc::EPERM)));
        assert!(!denied.available);
        assert!(denied.detail.contains("vm.unprivileged_userfaultfd=1"), "{}", denied.detail);
        let missing = entry_capability(Entry::Device, Err(io::Error::from_raw_os_error(libc::ENOENT)));
        assert!(missing.detail.contains("Linux 6.1"), "{}", missing.detail);
    }
}
