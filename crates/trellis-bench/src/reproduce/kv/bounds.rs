//! The figures that have a bound, with their own names, for `cargo xtask bench`.

use serde_json::{Map, Value};

/// A row of table 6.1 over Redis at `-O2`, and the value that is taken from it.
struct Bound {
    field: &'static str,
    test: &'static str,
    mode: &'static str,
    round_trip_us: u64,
    taken: &'static str,
}

const fn bound(
    field: &'static str,
    test: &'static str,
    mode: &'static str,
    round_trip_us: u64,
    taken: &'static str,
) -> Bound {
    Bound { field, test, mode, round_trip_us, taken }
}

const BOUNDS: [Bound; 8] = [
    bound("stack_full_us", "stack", "full", 2_750, "microseconds"),
    bound("heap_line_us", "heap", "line", 2_750, "microseconds"),
    bound("producer_consumer_line_us", "producer_consumer", "line", 2_750, "microseconds"),
    bound("producer_consumer_page_us", "producer_consumer", "page", 2_750, "microseconds"),
    bound("two_processes_us", "producer_consumer_two_processes", "line", 2_750, "microseconds"),
    bound("two_processes_calls", "producer_consumer_two_processes", "line", 2_750, "calls"),
    bound("heap_line_loopback_us", "heap", "line", 0, "microseconds"),
    bound("heap_line_loopback_calls", "heap", "line", 0, "calls"),
];

/// Takes them from the results of the experiments; those of experiments that did not run are left out.
pub(super) fn of(all: &Map<String, Value>) -> Map<String, Value> {
    let mut object = Map::new();
    if let Some(ratio) = all.get("figure2.6").map(|figure| figure["ycsb_a_throughput_ratio"].clone()) {
        object.insert("ycsb_a_throughput_ratio".to_owned(), ratio);
    }
    for mode in ["full", "heap"] {
        if let Some(growth) = all.get("figure6.1").map(|figure| figure["growth"][mode].clone()) {
            object.insert(format!("instructions_{mode}_growth"), growth);
        }
    }
    let rows = all.get("table6.1").and_then(|table| table["rows"].as_array());
    for bound in rows.iter().flat_map(|_| &BOUNDS) {
        let is_it = |row: &&Value| {
            row["test"] == bound.test
                && row["mode"] == bound.mode
                && row["store"] == "redis"
                && row["optimisation"] == "O2"
                && row["round_trip_us"] == bound.round_trip_us
        };
        if let Some(row) = rows.and_then(|rows| rows.iter().find(is_it)) {
            object.insert(bound.field.to_owned(), row[bound.taken].clone());
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_comes_from_its_row() {
        let row = |mode: &str, round_trip_us: u64, microseconds: f64| {
            json!({ "test": "heap", "mode": mode, "store": "redis", "optimisation": "O2", "calls": 1,
                    "round_trip_us": round_trip_us, "microseconds": microseconds })
        };
        let rows = [row("heap", 0, 1.0), row("line", 2_750, 2.0), row("line", 0, 3.0)];
        let all = json!({ "table6.1": { "rows": rows }, "figure6.1": { "growth": { "full": 0.1, "heap": 0.2 } } });
        let found = of(all.as_object().expect("an object"));
        let expected = json!({ "instructions_full_growth": 0.1, "instructions_heap_growth": 0.2, "heap_line_us": 2.0,
                               "heap_line_loopback_us": 3.0, "heap_line_loopback_calls": 1 });
        assert_eq!(Value::Object(found), expected);
        assert!(of(&Map::new()).is_empty());
    }
}
