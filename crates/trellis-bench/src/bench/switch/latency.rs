//! The time of a request: over a bare pair of interfaces, through the switch, and in the other ways that are
//! compared.
//!
//! Promises: every end runs on the processor of the calling thread. Every way has its turn in every round. Read bytes
//! are checked. A way that is not possible here is left out with its reason.

use std::time::{Duration, Instant};

use trellis::remote::{Client, Pointer};
use trellis_base::Random;
use trellis_fabric_protocol::wire::address::Address;
use trellis_switch::lab::{Lab, Plan};
use trellis_switch::{Page, Redirect, switches};

use super::courses::Courses;
use super::lease::{Leases, Updates};
use super::served::{self, Answers, PAGE_BYTES, Pages, Served};
use super::{Found, SwitchTask, bare, inside};
use trellis_command::exit::{self, Failure};

/// Concurrent READs, for the rate.
const AT_ONCE: usize = 32;
/// The term of the leases that the switch grants.
const TERM: Duration = Duration::from_secs(20);
/// If a table is not full by then, it is left out.
const FILL_MAX: Duration = Duration::from_secs(60);
/// Bytes of a pointer in a directory.
const ENTRY_BYTES: usize = 16;
/// A server's memory in addition to its pages.
const ROOM_BYTES: usize = 1 << 20;
/// The longest packet: a page fits in one.
const MTU_BYTES: u32 = 9000;

/// Makes a lab for a part of a benchmark.
pub(crate) fn up(name: &str, switch: &str, clients: u16, servers: u16, redirects_max: u32) -> Result<Lab, Failure> {
    let (name, switch) = (name.to_owned(), switch.to_owned());
    Lab::up(&Plan {
        name,
        clients,
        servers,
        switch,
        mtu_bytes: MTU_BYTES,
        redirects_max,
        attach: switches::Attach::Auto,
    })
    .map_err(|error| inside::failure(&error))
}

/// A client in a host of a lab.
pub(crate) fn client_in(lab: &Lab, name: &str) -> Result<Client, Failure> {
    let host = served::host(lab, name)?;
    served::client(host, served::prefix(lab.cluster(), host.plan().number))
}

/// A server in a host of a lab, with pages that a client has made.
pub(crate) fn pages_in(
    lab: &Lab,
    client: &str,
    server: &str,
    count: usize,
    answers: Answers,
) -> Result<(Served, Pages), Failure> {
    let host = served::host(lab, server)?;
    let home = served::prefix(lab.cluster(), host.plan().number);
    let server = Served::start(host, home, count * PAGE_BYTES + ROOM_BYTES, answers)?;
    Ok((server, Pages::make(&mut client_in(lab, client)?, home.host, count)?))
}

/// READs of the first bytes of random pages.
pub(crate) fn reading(mut client: Client, pages: Pages, bytes: usize) -> impl FnMut() -> Result<(), Failure> {
    let (mut room, mut random) = (vec![0; bytes], Random::new(1));
    move || pages.read(&mut client, random.index(pages.count), &mut room)
}

/// A directory service: a table of the places of pages, at a server of its own, which is read with READ.
pub(crate) struct Directory {
    client: Client,
    table: Pointer,
    _server: Served,
}

impl Directory {
    /// Starts the directory of these pages.
    pub(crate) fn start(lab: &Lab, client: &str, server: &str, pages: Pages) -> Result<Directory, Failure> {
        let host = served::host(lab, server)?;
        let home = served::prefix(lab.cluster(), host.plan().number);
        let server = Served::start(
            host,
            home,
            (pages.count * ENTRY_BYTES).next_multiple_of(PAGE_BYTES) + ROOM_BYTES,
            Answers::Process,
        )?;
        let mut client = client_in(lab, client)?;
        let entries: Vec<u8> = (0..pages.count).flat_map(|page| pages.pointer(page).encode().0).collect();
        let table = client.create_with(home.host, &entries).map_err(served::remote)?;
        Ok(Directory { client, table, _server: server })
    }

    /// Returns where a page is.
    pub(crate) fn look_up(&mut self, page: usize) -> Result<Pointer, Failure> {
        let mut entry = [0; ENTRY_BYTES];
        let at = self.table.plus((page * ENTRY_BYTES) as u64).expect("it lies in the table");
        self.client.read(at, &mut entry).map_err(served::remote)?;
        Pointer::decode(Address(entry))
            .map_err(|why| Failure::new(exit::FAILED, format!("the directory names no page: {why}")))
    }
}

/// Measures everything that is timed in turns.
pub(super) fn measure(task: &SwitchTask, found: &mut Found) -> Result<(), Failure> {
    let lab = up("bench", &task.switch, 2, 4, switches::REDIRECTS)?;
    let (_bare, bare_client, bare_pages) = bare_pair(&lab, task.pages)?;
    let (_server, pages) = pages_in(&lab, "c1", "s1", task.pages, Answers::Process)?;
    let full = full_table(task)?;
    let mut courses = Courses::default();
    courses.add("veth", reading(bare_client, bare_pages, PAGE_BYTES));
    courses.add("read_64", reading(client_in(&lab, "c1")?, pages, 64));
    courses.add("read_4k", reading(client_in(&lab, "c1")?, pages, PAGE_BYTES));
    courses.add("directory", asking(&lab, pages)?);
    match updates(&lab, pages)? {
        Ok(updates) => courses.add("update", updates),
        Err(why) => found.leave_out("update", &why),
    }
    match &full {
        Ok(full) => courses.add("full_table", reading(client_in(&full.lab, "c1")?, full.pages, PAGE_BYTES)),
        Err(why) => found.leave_out("full_table", why),
    }
    let in_kernel = pages_in(&lab, "c1", "s3", task.pages, Answers::Kernel);
    match &in_kernel {
        Ok((_, pages)) => courses.add("in_kernel", reading(client_in(&lab, "c1")?, *pages, PAGE_BYTES)),
        Err(why) => found.leave_out("in_kernel", &why.sentence),
    }
    courses.run(task.rounds, task.samples)?;
    for course in ["veth", "read_64", "read_4k", "in_kernel", "update", "directory", "full_table"] {
        found.put(&format!("{course}_us_p50"), courses.us(course, 0.5));
    }
    for (above, below, ratio) in [
        ("read_4k", "veth", "read_4k_over_veth"),
        ("in_kernel", "read_4k", "in_kernel_over_read_4k"),
        ("update", "read_4k", "update_over_read_4k"),
        ("directory", "read_4k", "directory_over_read_4k"),
        ("full_table", "read_4k", "full_table_over_read_4k"),
    ] {
        found.put(ratio, courses.ratio(above, below));
    }
    found.put("requests_per_second", Some(rate(task, client_in(&lab, "c1")?, pages)?));
    Ok(())
}

/// Two hosts without a switch between them.
fn bare_pair(lab: &Lab, pages: usize) -> Result<(Served, Client, Pages), Failure> {
    let (client, server) = (served::host(lab, "c2")?, served::host(lab, "s4")?);
    let [own, home] = bare::join(lab, client, server)?;
    let started = Served::start(server, home, pages * PAGE_BYTES + ROOM_BYTES, Answers::Process)?;
    let mut client = served::client(client, own)?;
    let pages = Pages::make(&mut client, home.host, pages)?;
    Ok((started, client, pages))
}

/// READs of random pages, each after a lookup of its place.
fn asking(lab: &Lab, pages: Pages) -> Result<impl FnMut() -> Result<(), Failure> + use<>, Failure> {
    let mut directory = Directory::start(lab, "c1", "s2", pages)?;
    let mut client = client_in(lab, "c1")?;
    let (mut room, mut random) = (vec![0; PAGE_BYTES], Random::new(1));
    Ok(move || {
        let page = random.index(pages.count);
        let pointer = directory.look_up(page)?;
        client.read(pointer, &mut room).map_err(served::remote)?;
        served::is_page(page, &room)
    })
}

/// UPDATEs that the switch grants on their way, or the reason why there are none.
fn updates(lab: &Lab, pages: Pages) -> Result<Result<Updates, String>, Failure> {
    if !lab.switch().capabilities().grants {
        return Ok(Err(format!("the switch {} leaves granting to a controller", lab.plan().switch)));
    }
    lab.switch().set_leases(Some(TERM)).map_err(|error| inside::failure(&error))?;
    let host = served::host(lab, "c1")?;
    Updates::new(Leases::open(host, served::prefix(lab.cluster(), host.plan().number))?, pages)
}

/// A lab whose switch has many redirects, among them one for each page that is read; all lead to the home.
struct FullTable {
    lab: Lab,
    pages: Pages,
    _server: Served,
}

fn full_table(task: &SwitchTask) -> Result<Result<FullTable, String>, Failure> {
    let room = task.redirects + task.redirects / 16 + 1024;
    let lab = match up("bench-full", &task.switch, 1, 1, room) {
        Ok(lab) => lab,
        Err(why) => return Ok(Err(why.sentence)),
    };
    let (server, pages) = pages_in(&lab, "c1", "s1", task.pages, Answers::Process)?;
    let port = served::host(&lab, "s1")?.plan().port;
    let (home, first) = (pages.pointer(0).home().0, pages.pointer(0).page());
    let start = Instant::now();
    for number in 0..u64::from(task.redirects) {
        let redirect = Redirect { port, epoch: 1, until: None };
        if let Err(error) = lab.switch().set_redirect(Page { home, number: first + number }, redirect) {
            return Ok(Err(format!("after {number} redirects: {error}")));
        }
        if start.elapsed() > FILL_MAX {
            let seconds = FILL_MAX.as_secs();
            return Ok(Err(format!(
                "the table took only {number} redirects in {seconds} s; give fewer with --redirects"
            )));
        }
    }
    Ok(Ok(FullTable { lab, pages, _server: server }))
}

/// READs of 64 bytes in a second, with many under way.
fn rate(task: &SwitchTask, mut client: Client, pages: Pages) -> Result<f64, Failure> {
    let (mut rooms, mut random, mut best) = (vec![[0; 64]; AT_ONCE], Random::new(1), 0.0_f64);
    for _ in 0..task.rounds {
        let calls = task.samples.div_ceil(AT_ONCE as u32).max(4);
        let start = Instant::now();
        for _ in 0..calls {
            let wanted: Vec<usize> = rooms.iter().map(|_| random.index(pages.count)).collect();
            let mut ranges: Vec<(Pointer, &mut [u8])> =
                wanted.iter().zip(&mut rooms).map(|(&page, room)| (pages.pointer(page), &mut room[..])).collect();
            client.read_many(&mut ranges).map_err(served::remote)?;
            wanted.iter().zip(&rooms).try_for_each(|(&page, room)| served::is_page(page, room))?;
        }
        best = best.max(f64::from(calls) * AT_ONCE as f64 / start.elapsed().as_secs_f64());
    }
    Ok(best)
}
