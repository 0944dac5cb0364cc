//! Table 6.1: the three tests of appendix A in every mode, on stores of this machine and with the paper's round trip.
//!
//! Promises: every row has the number of calls of the store in one repetition, as counted by the program's own
//! runtime. A row with fewer repetitions than the paper's hundred shows their number.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::Reproduced;
use super::bars::Bars;
use super::programs::{Mode, PAPER_ROUND_TRIP_US, Place, Programs, Source, printed};
use super::servers::{Chosen, Kind, StoreServer};
use super::two_processes;
use trellis_command::chart::number;
use trellis_command::exit::{self, Failure};
use trellis_command::terminal::Progress;

/// The paper's program.
pub(super) const APPENDIX_A: Source =
    Source { name: "appendix_a.cpp", text: include_str!("../../../../../examples/stored/appendix_a.cpp") };
const REPETITIONS_MAX: u32 = 100;

/// A test, by its name on the program's command line, and the paper's microseconds: original, full, heap.
struct Test {
    name: &'static str,
    paper: Option<[f64; 3]>,
}

const TESTS: [Test; 4] = [
    Test { name: "stack", paper: Some([0.411, 2_798_858.0, 3.0]) },
    Test { name: "heap", paper: Some([0.521, 2_209_032.0, 284_047.0]) },
    Test { name: "producer_consumer", paper: Some([963.717, 1_272_932.0, 295_448.0]) },
    Test { name: TWO_PROCESSES, paper: None },
];
/// A separate program, which is not in the paper.
const TWO_PROCESSES: &str = "producer_consumer_two_processes";

impl Test {
    fn paper(&self, mode: Mode) -> Option<f64> {
        let index = [Mode::Original, Mode::Full, Mode::Heap].iter().position(|other| *other == mode)?;
        Some(self.paper?[index])
    }

    fn is_possible(&self, mode: Mode, kind: Option<Kind>) -> bool {
        self.name != TWO_PROCESSES || kind.is_some_and(|kind| two_processes::is_possible(kind, mode))
    }
}

/// The measurements that were chosen.
pub(super) struct Request<'a> {
    /// The stores that the user named; if empty, `embedded` and `redis`.
    pub(super) stores: &'a [Chosen],
    pub(super) quick: bool,
}

impl Request<'_> {
    fn optimisations(&self) -> &'static [&'static str] {
        if self.quick { &["-O0"] } else { &["-O0", "-O2"] }
    }

    /// The paper's round trip is for remote stores; with `--quick`, `embedded` runs without it.
    fn round_trips_us(&self, kind: Kind) -> &'static [u64] {
        if self.quick && kind == Kind::Embedded { &[0] } else { &[0, PAPER_ROUND_TRIP_US] }
    }

    /// The places for memory in this mode; the original's memory is in no store.
    fn places<'s>(&self, mode: Mode, servers: &'s [StoreServer]) -> Vec<(Option<Where>, &'s str)> {
        if mode == Mode::Original {
            return vec![(None, "embedded:")];
        }
        let with_trips = |server: &'s StoreServer| {
            let kind = server.kind;
            let at = move |&round_trip_us| (Some(Where { kind, round_trip_us }), server.url.as_str());
            self.round_trips_us(server.kind).iter().map(at)
        };
        servers.iter().flat_map(with_trips).collect()
    }

    /// The time for the repetitions of one row; there is at least one.
    fn budget(&self) -> Duration {
        Duration::from_millis(if self.quick { 200 } else { 6000 })
    }

    /// The number of repetitions that fit into the budget if each takes as long as `one`.
    fn repetitions(&self, one: Duration) -> u32 {
        let fitting = self.budget().as_secs_f64() / one.as_secs_f64().max(1e-6);
        (fitting as u32).clamp(1, REPETITIONS_MAX)
    }
}

/// One line of JSON that the program prints.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Said {
    pub(super) repetitions: u32,
    pub(super) microseconds: f64,
    /// `None` if the program has no runtime of ours.
    pub(super) calls: Option<u64>,
}

/// The store of a row's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Where {
    kind: Kind,
    round_trip_us: u64,
}

/// A row of the table.
#[derive(Debug, Clone)]
struct Row {
    test: &'static str,
    mode: Mode,
    optimisation: &'static str,
    /// `None` for the original.
    place: Option<Where>,
    said: Said,
}

/// Table 6.1.
pub(super) fn table(request: &Request, progress: &mut Progress) -> Result<Reproduced, Failure> {
    let (servers, left_out) = start(request.stores)?;
    let programs = Programs::new()?;
    let mut rows = Vec::new();
    for &optimisation in request.optimisations() {
        for mode in Mode::ALL {
            progress.step(&format!("table 6.1: compiling for {} {optimisation}", mode.name()));
            let one = programs.build(&APPENDIX_A, mode, optimisation)?;
            let is_wanted = servers.iter().any(|server| two_processes::is_possible(server.kind, mode));
            let two = if is_wanted { programs.build(&two_processes::SOURCE, mode, optimisation)? } else { one.clone() };
            let started = Started { programs: &programs, one: &one, two: &two, mode, request };
            for test in &TESTS {
                for (place, url) in request.places(mode, &servers) {
                    if !test.is_possible(mode, place.as_ref().map(|place| place.kind)) {
                        continue;
                    }
                    let on = place.as_ref().map_or("memory", |place| place.kind.name());
                    progress.step(&format!("table 6.1: {} in mode {} {optimisation} on {on}", test.name, mode.name()));
                    let round_trip_us = place.as_ref().map_or(0, |place| place.round_trip_us);
                    let said = started.measure(test, &Place { url, round_trip_us, heap: "" })?;
                    rows.push(Row { test: test.name, mode, optimisation, place, said });
                }
            }
        }
    }
    Ok(shown(&rows, &left_out))
}

/// The programs in one mode.
struct Started<'a> {
    programs: &'a Programs,
    /// The program for the tests of one process.
    one: &'a Path,
    /// The program for those of two.
    two: &'a Path,
    mode: Mode,
    request: &'a Request<'a>,
}

impl Started<'_> {
    /// Runs one repetition to measure its time, and then as many as there is time for.
    fn measure(&self, test: &Test, place: &Place) -> Result<Said, Failure> {
        let begin = Instant::now();
        let once = self.run(test, place, 1)?;
        match self.request.repetitions(begin.elapsed()) {
            1 => Ok(once),
            repetitions => self.run(test, place, repetitions),
        }
    }

    fn run(&self, test: &Test, place: &Place, repetitions: u32) -> Result<Said, Failure> {
        if test.name == TWO_PROCESSES {
            return two_processes::run(self.programs, (self.two, self.mode), place, repetitions);
        }
        let mut command = self.programs.command(self.one, self.mode, place);
        command.arg(test.name).arg(repetitions.to_string());
        said(&printed(&mut command, &format!("{} in mode {} on {}", test.name, self.mode.name(), place.url), "")?)
    }
}

/// Starts the stores that can be started; a named one that cannot is an error.
fn start(named: &[Chosen]) -> Result<(Vec<StoreServer>, Vec<String>), Failure> {
    let usual = [Kind::Embedded, Kind::Redis].map(Chosen::from);
    let (mut servers, mut left_out) = (Vec::new(), Vec::new());
    for chosen in if named.is_empty() { &usual } else { named } {
        match StoreServer::start(chosen) {
            Ok(server) => servers.push(server),
            Err(failure) if named.is_empty() => left_out.push(format!("{}: {}", chosen.kind.name(), failure.sentence)),
            Err(failure) => return Err(failure),
        }
    }
    Ok((servers, left_out))
}

/// Finds the result in a program's output.
pub(super) fn said(text: &str) -> Result<Said, Failure> {
    let line = text.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    serde_json::from_str(line)
        .map_err(|error| Failure::new(exit::FAILED, format!("the test program printed no result ({error}): {text:?}")))
}

fn shown(rows: &[Row], left_out: &[String]) -> Reproduced {
    let places = places(rows);
    let mut heads = vec!["test".to_owned(), "mode".to_owned(), String::new(), "paper, µs".to_owned()];
    for place in &places {
        let trip = if place.round_trip_us > 0 { format!(" +{} µs", place.round_trip_us) } else { String::new() };
        heads.extend([format!("{}{trip}, µs", place.kind.name()), "calls".to_owned()]);
    }
    let mut table = vec![heads];
    for test in &TESTS {
        for mode in Mode::ALL {
            for optimisation in ["-O0", "-O2"] {
                let of_it: Vec<&Row> = rows
                    .iter()
                    .filter(|row| (row.test, row.mode, row.optimisation) == (test.name, mode, optimisation))
                    .collect();
                if !of_it.is_empty() {
                    table.push(line(test, mode, optimisation, &of_it, &places));
                }
            }
        }
    }
    let fewest = rows.iter().map(|row| row.said.repetitions).min().unwrap_or(0);
    let mut remark = format!(
        "Median of {REPETITIONS_MAX} repetitions, as many as in the paper, or of as many as fit into some seconds (at least \
         {fewest}; --json says how many). `calls` are calls of the store in one repetition, at most. The paper's numbers \
         are means on Bigtable, without optimisation; +{PAPER_ROUND_TRIP_US} µs injects the round trip that its heap test \
         had (100 writes in 284,047 µs). Original, full and heap are the paper's; line and page keep copies of the heap.",
    );
    for why in left_out {
        remark.push_str(&format!("\nleft out: {why}"));
    }
    Reproduced {
        title: "Table 6.1: time of each test",
        table,
        remark,
        json: json!({
            "rows": rows.iter().map(json_of).collect::<Vec<Value>>(),
            "paper": TESTS.iter().filter_map(paper_json).collect::<Vec<Value>>(),
            "left_out": left_out,
        }),
        pictures: vec![("table6.1.svg".to_owned(), picture(rows, &places).draw())],
    }
}

fn paper_json(test: &Test) -> Option<Value> {
    let [original, full, heap] = test.paper?;
    let name = test.name;
    Some(json!({ "test": name, "original": original, "full": full, "heap": heap, "repetitions": REPETITIONS_MAX }))
}

/// The places, each once, in the order of the rows.
fn places(rows: &[Row]) -> Vec<Where> {
    let mut places: Vec<Where> = Vec::new();
    for place in rows.iter().filter_map(|row| row.place.as_ref()) {
        if !places.contains(place) {
            places.push(place.clone());
        }
    }
    places
}

fn line(test: &Test, mode: Mode, optimisation: &str, rows: &[&Row], places: &[Where]) -> Vec<String> {
    let paper = test.paper(mode).filter(|_| optimisation == "-O0");
    let mut cells = vec![
        test.name.to_owned(),
        mode.name().to_owned(),
        optimisation.to_owned(),
        paper.map_or(String::new(), number),
    ];
    for place in places {
        // The original is on no store; its time is in the first column.
        let found = rows.iter().find(|row| match &row.place {
            Some(other) => other == place,
            None => places.first() == Some(place),
        });
        match found {
            Some(row) => cells.extend([
                number((row.said.microseconds * 1000.0).round() / 1000.0),
                row.said.calls.filter(|_| row.place.is_some()).map_or(String::new(), |calls| calls.to_string()),
            ]),
            None => cells.extend([String::new(), String::new()]),
        }
    }
    cells
}

fn json_of(row: &Row) -> Value {
    let test = TESTS.iter().find(|test| test.name == row.test);
    json!({
        "test": row.test, "mode": row.mode.name(), "optimisation": row.optimisation.trim_start_matches('-'),
        "store": row.place.as_ref().map(|place| place.kind.name()),
        "round_trip_us": row.place.as_ref().map_or(0, |place| place.round_trip_us),
        "microseconds": row.said.microseconds, "calls": row.said.calls.unwrap_or(0),
        "repetitions": row.said.repetitions,
        "paper_microseconds": test.and_then(|test| test.paper(row.mode)),
    })
}

/// The paper's numbers beside ours with its round trip.
fn picture(rows: &[Row], places: &[Where]) -> Bars {
    let slow = places.iter().rfind(|place| place.round_trip_us > 0).or(places.last());
    let ours = |test: &Test, mode: Mode| {
        let is_it = |row: &&Row| {
            let there = row.place.is_none() || row.place.as_ref() == slow;
            row.test == test.name && row.mode == mode && row.optimisation == "-O0" && there
        };
        rows.iter().find(is_it).map(|row| row.said.microseconds)
    };
    let paper = [Mode::Original, Mode::Full, Mode::Heap];
    let series = paper.iter().map(|mode| format!("paper, {}", mode.name()));
    let group = |test: &Test| {
        let theirs = test.paper.map_or([None; 3], |paper| paper.map(Some));
        (test.name.to_owned(), theirs.into_iter().chain(Mode::ALL.map(|mode| ours(test, mode))).collect())
    };
    let on = slow.map_or(String::new(), |place| {
        format!(" Ours on {} with {} µs for each call, -O0.", place.kind.name(), place.round_trip_us)
    });
    Bars {
        title: "Table 6.1: time of each test".to_owned(),
        along: "time (µs)".to_owned(),
        series: series.chain(Mode::ALL.map(|mode| mode.name().to_owned())).collect(),
        groups: TESTS.iter().map(group).collect(),
        note: format!("The axis is logarithmic.{on}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(test: &'static str, mode: Mode, place: Option<(Kind, u64)>, microseconds: f64, calls: u64) -> Row {
        let place = place.map(|(kind, round_trip_us)| Where { kind, round_trip_us });
        let said = Said { repetitions: 100, microseconds, calls: place.as_ref().map(|_| calls) };
        Row { test, mode, optimisation: "-O0", place, said }
    }

    fn example() -> Vec<Row> {
        vec![
            row("heap", Mode::Original, None, 0.5, 0),
            row("heap", Mode::Full, Some((Kind::Redis, 0)), 18_716.0, 957),
            row("heap", Mode::Full, Some((Kind::Redis, 2750)), 2_763_017.0, 957),
            row("heap", Mode::Page, Some((Kind::Redis, 2750)), 3900.0, 1),
        ]
    }

    #[test]
    fn rows_have_what_the_reference_promises() {
        let made = shown(&example(), &[]);
        let rows = made.json["rows"].as_array().expect("rows");
        assert_eq!(
            (&rows[2]["test"], &rows[2]["mode"], &rows[2]["store"], &rows[2]["round_trip_us"]),
            (&json!("heap"), &json!("full"), &json!("redis"), &json!(2750))
        );
        assert_eq!((&rows[2]["calls"], &rows[2]["paper_microseconds"]), (&json!(957), &json!(2_209_032.0)));
        assert_eq!((&rows[0]["store"], &rows[0]["calls"]), (&Value::Null, &json!(0)));
        assert_eq!(rows[3]["paper_microseconds"], Value::Null);
    }

    #[test]
    fn the_papers_numbers_stand_beside_ours() {
        let made = shown(&example(), &["redis: it is not installed".to_owned()]);
        assert_eq!(made.table[0][4..], ["redis, µs", "calls", "redis +2750 µs, µs", "calls"]);
        assert_eq!(made.table[1].join("|"), "heap|original|-O0|0.521|0.5|||");
        assert_eq!(made.table[2].join("|"), "heap|full|-O0|2209032|18716|957|2763017|957");
        assert_eq!(made.table[3].join("|"), "heap|page|-O0||||3900|1");
        assert!(made.remark.ends_with("left out: redis: it is not installed"));
        let text = made.pictures.into_iter().next().expect("a picture").1.into_file();
        assert!(text.contains("heap, paper, full: 2209032") && text.contains("heap, page: 3900"), "{text}");
    }

    #[test]
    fn repetitions_fit_into_the_budget() {
        let request = Request { stores: &[], quick: false };
        assert_eq!(request.repetitions(Duration::from_millis(1)), 100);
        assert_eq!(request.repetitions(Duration::from_secs(2)), 3);
        assert_eq!(request.repetitions(Duration::from_secs(60)), 1);
    }

    #[test]
    fn what_the_program_prints_is_read() {
        let line = "{\"test\":\"heap\",\"repetitions\":3,\"microseconds\":12.500,\"calls\":null}\n";
        assert_eq!(said(line), Ok(Said { repetitions: 3, microseconds: 12.5, calls: None }));
        assert!(said("oops").expect_err("no result").sentence.contains("oops"));
    }
}
