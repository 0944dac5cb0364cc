//! The results of a benchmark: named numbers in a fixed order, printed as a table for people or as one JSON object.
//!
//! Names have the form `what_unit_statistic`. A number is never printed without its unit.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::Value;
use trellis_base::statistics::quantile;
use trellis_command::terminal::say;

use trellis_command::chart::number;
use trellis_command::exit::{self, Ending};
use trellis_command::terminal;

/// The sample in the middle; NaN if there are none.
pub(crate) fn p50(samples: impl IntoIterator<Item = f64>) -> f64 {
    quantile(&mut samples.into_iter().collect::<Vec<_>>(), 0.5)
}

/// One number or word.
struct Figure {
    name: &'static str,
    label: String,
    value: Value,
}

/// The result of one benchmark.
pub(crate) struct Figures {
    figures: Vec<Figure>,
}

impl Figures {
    /// `benchmark` is the name of the subcommand.
    pub(crate) fn new(benchmark: &str) -> Figures {
        Figures { figures: vec![Figure { name: "benchmark", label: String::new(), value: benchmark.into() }] }
    }

    /// Adds a figure; `label` describes it, with its unit. A figure that is not finite is left out.
    pub(crate) fn add(&mut self, name: &'static str, value: f64, label: impl Into<String>) {
        if value.is_finite() {
            self.figures.push(Figure { name, label: label.into(), value: rounded(value).into() });
        }
    }

    /// Adds a word or a whole number.
    pub(crate) fn add_value(&mut self, name: &'static str, value: impl Into<Value>, label: impl Into<String>) {
        self.figures.push(Figure { name, label: label.into(), value: value.into() });
    }

    /// Returns a number that was added before.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name)?.value.as_f64()
    }

    /// Prints everything and returns success.
    pub(crate) fn print(&self, json: bool) -> Ending {
        terminal::clear_line();
        if json {
            say!("{}", serde_json::to_string_pretty(self).map_err(exit::not_json)?);
        } else {
            say!("{}", self.table().trim_end());
        }
        Ok(exit::FINE)
    }

    fn table(&self) -> String {
        let rows: Vec<(String, String)> =
            self.figures[1..].iter().map(|figure| (figure.label.clone(), shown(&figure.value))).collect();
        let wide = rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
        let value = rows.iter().map(|(_, value)| value.chars().count()).max().unwrap_or(0);
        rows.iter().map(|(label, text)| format!("{label:<wide$}  {text:>value$}\n")).collect()
    }
}

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.figures.len()))?;
        for figure in &self.figures {
            map.serialize_entry(figure.name, &figure.value)?;
        }
        map.end()
    }
}

/// Rounds to five significant digits: more would pretend a precision that no benchmark has.
fn rounded(value: f64) -> f64 {
    if value == 0.0 {
        return 0.0;
    }
    let digits = 4 - value.abs().log10().floor() as i32;
    if digits <= 0 { value.round() } else { (value * 10f64.powi(digits)).round() / 10f64.powi(digits) }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(digits) => digits.as_f64().map_or(digits.to_string(), number),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_the_order_and_leaves_out_what_is_no_number() {
        let mut figures = Figures::new("fault");
        figures.add("read_us_p50", 12.345_678, "remote read fault (µs, median)");
        figures.add("nothing", f64::NAN, "no number");
        figures.add_value("catch", "signal", "catcher");
        assert_eq!(
            serde_json::to_string(&figures).expect("json"),
            r#"{"benchmark":"fault","read_us_p50":12.346,"catch":"signal"}"#
        );
        assert_eq!(figures.get("read_us_p50"), Some(12.346));
        assert!(figures.table().contains("remote read fault (µs, median)   12.35\n"), "{}", figures.table());
    }
}
