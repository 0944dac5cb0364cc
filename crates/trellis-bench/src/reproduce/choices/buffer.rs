//! Table 2: a producer and a consumer with buffers of 1, 3, 10, … pages, and the size at which Lock stops paying.

use serde_json::{Value, json};

use super::super::{Reproduced, Settings};
use crate::bench::producer_consumer::{self, Item, ProducerConsumerTask, WORK_MICROSECONDS, With};
use trellis_command::exit::Failure;

/// The paper's table: pages, then milliseconds and packets with test-and-set, and the same with Lock.
const PAPER: [(usize, f64, f64, f64, f64); 3] =
    [(1, 219.8, 28.0, 83.0, 10.0), (3, 325.1, 40.0, 181.7, 30.0), (10, 690.3, 82.0, 551.6, 100.0)];
/// "When the buffer size increases to over 60k the basic protocol is more efficient" (§5.2).
const PAPER_STOPS_PAYING: &str = "over 60k";
const PAGE_BYTES: usize = 4096;
/// The fewest items of a run; a larger buffer gets fewer than a small one.
const ITEMS_MIN: usize = 20;

/// One size of the buffer.
struct Row {
    pages: usize,
    test: Item,
    lock: Item,
}

impl Row {
    /// Lock's time over that of test-and-set.
    fn ratio(&self) -> f64 {
        self.lock.us / self.test.us
    }
}

/// Table 2: producer and consumer.
pub(super) fn table2(settings: &mut Settings, pages_max: usize, items: usize) -> Result<Reproduced, Failure> {
    let mut rows: Vec<Row> = Vec::new();
    for pages in sizes().take_while(|pages| *pages <= pages_max) {
        rows.push(measure(settings, pages, items)?);
        // All of the paper's sizes, and then more until the answer is found.
        if rows.len() >= PAPER.len() && rows.last().is_some_and(|row| row.ratio() >= 1.0) {
            break;
        }
    }
    let stops = stops_paying(&rows);
    Ok(Reproduced {
        title: "Table 2: producer and consumer, an item of the buffer's size",
        table: table_of(&rows),
        remark: format!(
            "Median of {} runs; {WORK_MICROSECONDS} µs of work on each item on either side. A packet is a message, a page \
             in it two more, as on the paper's Ethernet. Lock stops paying: paper {PAPER_STOPS_PAYING}, here {}.",
            settings.runs,
            match stops {
                Some(pages) => format!("at {pages} pages ({} KiB)", pages * PAGE_BYTES / 1024),
                None => format!("not up to {} pages", rows.last().map_or(0, |row| row.pages)),
            }
        ),
        json: json!({
            "paper": { "stops_paying": PAPER_STOPS_PAYING },
            "rows": rows.iter().flat_map(json_of).collect::<Vec<Value>>(),
            "stops_paying_pages": stops, "work_us": WORK_MICROSECONDS, "runs": settings.runs,
        }),
        pictures: Vec::new(),
    })
}

/// 1, 3, 10, 30, …
fn sizes() -> impl Iterator<Item = usize> {
    (0u32..).map(|index| 10usize.pow(index / 2) * if index % 2 == 0 { 1 } else { 3 })
}

fn measure(settings: &mut Settings, pages: usize, items: usize) -> Result<Row, Failure> {
    let items = (items / pages).max(ITEMS_MIN);
    let task = |with| ProducerConsumerTask { pages, items, work_microseconds: u64::from(WORK_MICROSECONDS), with };
    let (mut tests, mut locks) = (Vec::new(), Vec::new());
    for run in 0..settings.runs {
        settings.progress.step(&format!("table 2: {pages} pages, run {} of {}", run + 1, settings.runs));
        tests.push(producer_consumer::item(&task(With::TestAndSet), None, settings.common)?);
        locks.push(producer_consumer::item(&task(With::Lock), None, settings.common)?);
    }
    Ok(Row { pages, test: producer_consumer::median(&tests), lock: producer_consumer::median(&locks) })
}

/// The first size from which Lock is no longer faster.
fn stops_paying(rows: &[Row]) -> Option<usize> {
    let paying = rows.iter().rposition(|row| row.ratio() < 1.0).map_or(0, |last| last + 1);
    rows.get(paying).map(|row| row.pages)
}

fn table_of(rows: &[Row]) -> Vec<Vec<String>> {
    let heads = [
        "pages",
        "paper: test-and-set, ms",
        "lock, ms",
        "ratio",
        "packets",
        "here: test-and-set, µs",
        "lock, µs",
        "ratio",
        "packets",
        "messages",
    ];
    let line = |row: &Row| {
        let mut cells = vec![row.pages.to_string()];
        match PAPER.iter().find(|line| line.0 == row.pages) {
            Some((_, test, test_packets, lock, lock_packets)) => cells.extend([
                test.to_string(),
                lock.to_string(),
                format!("{:.2}", lock / test),
                format!("{test_packets} / {lock_packets}"),
            ]),
            None => cells.extend(std::iter::repeat_n(String::new(), 4)),
        }
        cells.extend([
            format!("{:.1}", row.test.us),
            format!("{:.1}", row.lock.us),
            format!("{:.2}", row.ratio()),
            format!("{:.1} / {:.1}", row.test.packets, row.lock.packets),
            format!("{:.1} / {:.1}", row.test.messages, row.lock.messages),
        ]);
        cells
    };
    std::iter::once(heads.map(str::to_owned).to_vec()).chain(rows.iter().map(line)).collect()
}

fn json_of(row: &Row) -> [Value; 2] {
    let paper = PAPER.iter().find(|line| line.0 == row.pages);
    let line = |with: &str, protocol: &str, item: &Item, paper: Option<(f64, f64)>| {
        json!({
            "pages": row.pages, "with": with, "protocol": protocol, "us_per_item": item.us,
            "messages_per_item": item.messages, "packets_per_item": item.packets,
            "time_over_test_and_set": item.us / row.test.us, "packets_over_test_and_set": item.packets / row.test.packets,
            "paper_ms": paper.map(|numbers| numbers.0), "paper_packets": paper.map(|numbers| numbers.1),
        })
    };
    [
        line("test-and-set", "dynamic(forward)", &row.test, paper.map(|line| (line.1, line.2))),
        line("lock", "lock(dynamic(forward))", &row.lock, paper.map(|line| (line.3, line.4))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pages: usize, test: f64, lock: f64) -> Row {
        let item = |us| Item { us, messages: 16.0, packets: 28.0 };
        Row { pages, test: item(test), lock: item(lock) }
    }

    #[test]
    fn sizes_begin_as_in_the_paper() {
        assert_eq!(sizes().take(6).collect::<Vec<_>>(), [1, 3, 10, 30, 100, 300]);
    }

    #[test]
    fn lock_stops_paying_where_it_never_pays_again() {
        assert_eq!(
            stops_paying(&[row(1, 9.0, 3.0), row(3, 9.0, 10.0), row(10, 9.0, 8.0), row(30, 9.0, 9.5)]),
            Some(30)
        );
        assert_eq!(stops_paying(&[row(1, 9.0, 3.0), row(3, 9.0, 8.0)]), None);
        assert_eq!(stops_paying(&[row(1, 9.0, 10.0)]), Some(1));
    }

    #[test]
    fn the_papers_numbers_stand_beside_their_size() {
        let [test, lock] = json_of(&row(3, 100.0, 50.0));
        assert_eq!((&test["paper_ms"], &test["paper_packets"]), (&json!(325.1), &json!(40.0)));
        assert_eq!((&lock["paper_ms"], &lock["time_over_test_and_set"]), (&json!(181.7), &json!(0.5)));
        assert_eq!(json_of(&row(30, 1.0, 1.0))[0]["paper_ms"], Value::Null);
    }
}
