//! Grouped bars along a logarithmic axis: one group for each store or test, one colour for each series.
//!
//! A value that was not measured has no bar. Every bar has its number as a tool tip.

use trellis_command::chart::number;
use trellis_command::svg::{self, Anchor, Picture};

const WIDTH: f64 = 760.0;
const MARGIN: f64 = 16.0;
/// Room for half of the widest number under the axis.
const RIGHT: f64 = 32.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 76.0;
const BAR: f64 = 11.0;
const GAP: f64 = 12.0;

/// The content of the picture.
pub(super) struct Bars {
    pub(super) title: String,
    /// The quantity and its unit.
    pub(super) along: String,
    pub(super) series: Vec<String>,
    /// The groups, each with a value for each series.
    pub(super) groups: Vec<(String, Vec<Option<f64>>)>,
    pub(super) note: String,
}

impl Bars {
    pub(super) fn draw(&self) -> Picture {
        let left = MARGIN * 2.0 + self.groups.iter().map(|(name, _)| text_width(name)).fold(0.0, f64::max);
        let group = self.series.len() as f64 * BAR + GAP;
        let floor = TOP + group * self.groups.len() as f64;
        let mut picture = Picture::new(WIDTH, floor + BOTTOM, &format!("{}: {}", self.title, self.along));
        picture.text("title", (MARGIN, 24.0), Anchor::Start, &self.title);
        self.draw_legend(&mut picture);
        let powers = self.powers();
        let at = |value: f64| left + (WIDTH - RIGHT - left) * place(value, powers);
        for power in powers.0..=powers.1 {
            let value = 10f64.powi(power);
            picture.line("rule", (at(value), TOP), (at(value), floor));
            picture.text("small", (at(value), floor + 16.0), Anchor::Middle, &number(value));
        }
        for (index, (name, values)) in self.groups.iter().enumerate() {
            let top = TOP + group * index as f64 + GAP / 2.0;
            picture.text("small", (left - 8.0, top + (group - GAP) / 2.0 + 4.0), Anchor::End, name);
            for (series, value) in values.iter().enumerate() {
                let Some(value) = value.filter(|value| *value > 0.0) else { continue };
                let tip = format!("{name}, {}: {}", self.series[series], number(value));
                let corner = (left, top + BAR * series as f64);
                picture.rectangle(&svg::fill(series), corner, (at(value) - left, BAR - 1.0), 1.0, &tip);
            }
        }
        picture.line("axis", (left, TOP), (left, floor));
        picture.text("", ((left + WIDTH - RIGHT) / 2.0, floor + 36.0), Anchor::Middle, &self.along);
        picture.text("small", (MARGIN, floor + BOTTOM - 12.0), Anchor::Start, &self.note);
        picture
    }

    /// The powers of ten at both ends of the axis; the lower one is below every bar, so that each is visible.
    fn powers(&self) -> (i32, i32) {
        let values = || self.groups.iter().flat_map(|(_, values)| values).flatten().filter(|value| **value > 0.0);
        let low = values().copied().fold(f64::INFINITY, f64::min);
        let high = values().copied().fold(0.0, f64::max);
        if high <= 0.0 {
            return (0, 1);
        }
        let low = (low.log10() - 0.1).floor() as i32;
        (low, (high.log10().ceil() as i32).max(low + 1))
    }

    fn draw_legend(&self, picture: &mut Picture) {
        let mut x = MARGIN;
        for (index, name) in self.series.iter().enumerate() {
            picture.rectangle(&svg::fill(index), (x, 38.0), (11.0, 11.0), 1.0, "");
            picture.text("small", (x + 16.0, 48.0), Anchor::Start, name);
            x += 26.0 + text_width(name);
        }
    }
}

/// The approximate width of a small text.
fn text_width(text: &str) -> f64 {
    6.2 * text.chars().count() as f64
}

/// Where a value lies between two powers of ten, from 0 to 1.
fn place(value: f64, (low, high): (i32, i32)) -> f64 {
    ((value.log10() - f64::from(low)) / f64::from(high - low)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(values: Vec<Vec<Option<f64>>>) -> Bars {
        let series = (0..values.first().map_or(0, Vec::len)).map(|index| format!("series {index}")).collect();
        let group = |(index, values)| (format!("group {index}"), values);
        let groups = values.into_iter().enumerate().map(group).collect();
        Bars { title: "Title".to_owned(), along: "time (µs)".to_owned(), series, groups, note: "note".to_owned() }
    }

    #[test]
    fn every_value_has_a_bar_and_what_is_missing_has_none() {
        let text = bars(vec![vec![Some(12.5), None], vec![Some(0.5), Some(2_798_858.0)]]).draw().into_file();
        for tip in ["group 0, series 0: 12.5", "group 1, series 0: 0.5", "group 1, series 1: 2798858"] {
            assert!(text.contains(tip), "{tip} is missing");
        }
        assert!(!text.contains("group 0, series 1"));
        for part in ["Title", "time (µs)", "note", "series 1"] {
            assert!(text.contains(part), "{part} is missing");
        }
    }

    #[test]
    fn the_axis_spans_all_values() {
        let plotted = bars(vec![vec![Some(12.5), Some(990.0)]]);
        assert_eq!(plotted.powers(), (0, 3));
        assert_eq!(bars(vec![vec![Some(1.0)]]).powers(), (-1, 0), "a bar at a power of ten can be seen too");
        assert_eq!(bars(vec![vec![None]]).powers(), (0, 1));
        assert_eq!((place(1.0, (0, 2)), place(10.0, (0, 2)), place(1e9, (0, 2))), (0.0, 0.5, 1.0));
    }
}
