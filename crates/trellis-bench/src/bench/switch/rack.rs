//! The rack of the paper: as many clients as servers; each client reads every page of its own once, all at the same
//! time.
//!
//! In the paper's own run several of the 42 clients froze; here every READ is answered with the right bytes, or
//! counted.

use std::time::Instant;

use trellis_switch::switches;

use super::latency::{client_in, up};
use super::served::{self, Answers, PAGE_BYTES, Pages, Served};
use super::{Found, SwitchTask};
use trellis_command::exit::Failure;

/// A server's memory in addition to its pages.
const ROOM_BYTES: usize = 1 << 20;

pub(super) fn measure(task: &SwitchTask, found: &mut Found) -> Result<(), Failure> {
    let start = Instant::now();
    let lab = up("bench-rack", &task.switch, task.rack, task.rack, switches::REDIRECTS)?;
    found.put("rack_up_seconds", Some(start.elapsed().as_secs_f64()));
    let pages = task.rack_pages as usize;
    let mut servers = Vec::new();
    let mut clients = Vec::new();
    for number in 1..=task.rack {
        let host = served::host(&lab, &format!("s{number}"))?;
        let home = served::prefix(lab.cluster(), host.plan().number);
        servers.push(Served::start(host, home, pages * PAGE_BYTES + ROOM_BYTES, Answers::Process)?);
        let mut client = client_in(&lab, &format!("c{number}"))?;
        let made = Pages::make(&mut client, home.host, pages)?;
        clients.push((client, made));
    }
    let start = Instant::now();
    let answered = std::thread::scope(|scope| {
        let reads: Vec<_> = clients
            .iter_mut()
            .map(|(client, pages)| {
                scope.spawn(move || {
                    let mut room = vec![0; PAGE_BYTES];
                    (0..pages.count).filter(|&page| pages.read(client, page, &mut room).is_ok()).count()
                })
            })
            .collect();
        reads.into_iter().map(|read| read.join().unwrap_or(0)).sum::<usize>()
    });
    let seconds = start.elapsed().as_secs_f64();
    let asked = usize::from(task.rack) * pages;
    found.put("rack_reads", Some(asked as f64));
    found.put("rack_unanswered", Some((asked - answered) as f64));
    found.put("rack_reads_per_second", Some(answered as f64 / seconds));
    Ok(())
}
