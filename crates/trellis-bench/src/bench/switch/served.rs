//! Memory servers and their clients in the hosts of a lab.
//!
//! A server is a process: `trellis serve` of this program. It ends with its value.

use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use trellis::remote::{Client, ClientOptions, Host, HostPrefix, Pointer, RemoteError};
use trellis_switch::Cluster;
use trellis_switch::lab::{self, Lab};

use super::inside;
use trellis_command::exit::{self, Failure};
use trellis_command::installed;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// The longest that any call of a client may take here: a busy machine is no reason to give up.
const DEADLINE: Duration = Duration::from_secs(30);
/// The number of pages that are written with one call.
const PAGES_AT_ONCE: usize = 64;

/// The addresses of a host.
pub(crate) fn prefix(cluster: Cluster, host: u16) -> HostPrefix {
    let cluster = trellis_fabric_protocol::wire::address::Cluster::new(cluster.number()).expect("both have 24 bits");
    HostPrefix { cluster, host: Host(host) }
}

/// An error about remote memory.
pub(crate) fn remote(error: RemoteError) -> Failure {
    Failure::new(exit::SYSTEM, error.to_string())
}

/// The host with this name.
pub(crate) fn host<'a>(lab: &'a Lab, name: &str) -> Result<&'a lab::Host, Failure> {
    lab.host(name).map_err(|error| inside::failure(&error))
}

/// Which part of a server answers READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// The process.
    Process,
    /// The kernel, without the process.
    Kernel,
}

impl Answers {
    fn word(self) -> &'static str {
        match self {
            Answers::Process => "off",
            Answers::Kernel => "on",
        }
    }
}

/// A server that ends with this value.
pub(crate) struct Served {
    process: Child,
}

impl Served {
    /// Starts one in a host and returns when clients can connect. It runs on the processors of the calling thread.
    pub(crate) fn start(
        host: &lab::Host,
        prefix: HostPrefix,
        memory_bytes: usize,
        answers: Answers,
    ) -> Result<Served, Failure> {
        Served::start_with(host, prefix, memory_bytes, answers, &[])
    }

    /// Like [`Served::start`], with more options.
    pub(crate) fn start_with(
        host: &lab::Host,
        prefix: HostPrefix,
        memory_bytes: usize,
        answers: Answers,
        more: &[&str],
    ) -> Result<Served, Failure> {
        let name = &host.plan().name;
        let failed =
            |what: String| Failure::new(exit::SYSTEM, format!("cannot start a memory server in host {name}: {what}"));
        let mut command = Command::new(installed::command()?);
        command.args(["serve", "--memory", &memory_bytes.to_string(), "--prefix", &prefix.to_string()]);
        command.args(["--in-kernel", answers.word()]).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = host.run(|| command.spawn()).map_err(|error| inside::failure(&error))?;
        let mut served = Served { process: spawned.map_err(|error| failed(error.to_string()))? };
        let mut line = String::new();
        if let Some(output) = served.process.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(|error| failed(error.to_string()))?;
        }
        if line.starts_with("serving ") {
            return Ok(served);
        }
        let mut complaint = String::new();
        if let Some(errors) = served.process.stderr.take() {
            BufReader::new(errors).read_line(&mut complaint).map_err(|error| failed(error.to_string()))?;
        }
        Err(failed(complaint.trim().trim_start_matches("trellis: ").to_owned()))
    }

    /// Kills it, and returns when it has ended.
    pub(crate) fn kill(&mut self) {
        // It may already have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A client in a host.
pub(crate) fn client(host: &lab::Host, prefix: HostPrefix) -> Result<Client, Failure> {
    let options = ClientOptions { deadline: DEADLINE, ..ClientOptions::new(prefix) };
    host.run(|| Client::open(options)).map_err(|error| inside::failure(&error))?.map_err(remote)
}

/// An object of whole pages, each of which begins with its own number.
#[derive(Clone, Copy)]
pub(crate) struct Pages {
    first: Pointer,
    pub(crate) count: usize,
}

impl Pages {
    pub(crate) fn make(client: &mut Client, home: Host, count: usize) -> Result<Pages, Failure> {
        let first = client.create(home, (count * PAGE_BYTES) as u64).map_err(remote)?;
        let pages = Pages { first, count };
        let mut bytes = vec![0; PAGES_AT_ONCE * PAGE_BYTES];
        for start in (0..count).step_by(PAGES_AT_ONCE) {
            let some = PAGES_AT_ONCE.min(count - start);
            for (number, page) in (start..).zip(bytes.chunks_mut(PAGE_BYTES).take(some)) {
                page[..8].copy_from_slice(&(number as u64).to_le_bytes());
            }
            client.write(pages.pointer(start), &bytes[..some * PAGE_BYTES]).map_err(remote)?;
        }
        Ok(pages)
    }

    /// The first byte of a page.
    pub(crate) fn pointer(&self, page: usize) -> Pointer {
        self.first.plus((page * PAGE_BYTES) as u64).expect("it lies in the object")
    }

    /// The numbers of these pages in their range.
    pub(crate) fn numbers(&self) -> RangeInclusive<u64> {
        self.pointer(0).page()..=self.pointer(self.count - 1).page()
    }

    /// Reads the first bytes of a page, and checks that they are that page's.
    pub(crate) fn read(&self, client: &mut Client, page: usize, bytes: &mut [u8]) -> Result<(), Failure> {
        client.read(self.pointer(page), bytes).map_err(remote)?;
        is_page(page, bytes)
    }
}

/// Checks that bytes are those of a page.
pub(crate) fn is_page(page: usize, bytes: &[u8]) -> Result<(), Failure> {
    if bytes[..8] == (page as u64).to_le_bytes() {
        return Ok(());
    }
    Err(Failure::new(exit::FAILED, format!("page {page} came with the bytes of another one")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_told_by_its_first_bytes() {
        let mut bytes = [0; 64];
        assert!(is_page(0, &bytes).is_ok() && is_page(7, &bytes).is_err());
        bytes[0] = 7;
        assert!(is_page(7, &bytes).is_ok() && is_page(0, &bytes).is_err());
    }
}
