//! Vertical stacked bars, with a whisker up to the 95 % quantile of the samples.

use trellis_command::chart::number;
use trellis_command::svg::{self, Anchor, Picture};

const LEFT: f64 = 64.0;
const TOP: f64 = 72.0;
const HEIGHT: f64 = 260.0;
const BAR: f64 = 56.0;
/// The distance between bars.
const STEP: f64 = 150.0;
const TICKS: i32 = 5;

/// One bar.
pub(super) struct Bar {
    /// The label below it; commas separate its lines.
    pub(super) name: String,
    /// From the bottom.
    pub(super) parts: Vec<f64>,
    /// The 95 % quantile of the samples.
    pub(super) p95: f64,
}

/// Draws bars whose parts have these names.
pub(super) fn draw(title: &str, up: &str, parts: &[&str], bars: &[Bar], note: &str) -> Picture {
    let width = (LEFT + STEP * bars.len() as f64 + 16.0).max(640.0);
    let floor = TOP + HEIGHT;
    let most = bars.iter().map(|bar| bar.p95.max(bar.parts.iter().sum())).fold(0.0, f64::max);
    let step = round_up(most / f64::from(TICKS));
    let at = |value: f64| floor - HEIGHT * value / (step * f64::from(TICKS));
    let mut picture = Picture::new(width, floor + 84.0, title);
    picture.text("title", (LEFT, 24.0), Anchor::Start, title);
    if parts.len() > 1 {
        legend(&mut picture, parts);
    }
    for tick in 0..=TICKS {
        let value = step * f64::from(tick);
        picture.line("rule", (LEFT, at(value)), (width - 8.0, at(value)));
        picture.text("small", (LEFT - 8.0, at(value) + 4.0), Anchor::End, &number(value));
    }
    picture.upright_text("small", (16.0, TOP + HEIGHT / 2.0), up);
    for (place, bar) in bars.iter().enumerate() {
        let x = LEFT + STEP * (place as f64 + 0.5);
        let mut below = 0.0;
        for (part, value) in bar.parts.iter().enumerate().filter(|(_, value)| **value > 0.0) {
            let tip = format!("{}, {}: {}", bar.name, parts[part], number((value * 100.0).round() / 100.0));
            let (top, bottom) = (at(below + value), at(below));
            picture.rectangle(&svg::fill(part), (x - BAR / 2.0, top), (BAR, bottom - top), 1.0, &tip);
            below += value;
        }
        picture.line("axis", (x, at(below)), (x, at(bar.p95)));
        picture.line("axis", (x - 6.0, at(bar.p95)), (x + 6.0, at(bar.p95)));
        for (line, text) in bar.name.split(", ").enumerate() {
            picture.text("small", (x, floor + 18.0 + 14.0 * line as f64), Anchor::Middle, text);
        }
    }
    picture.line("axis", (LEFT, floor), (width - 8.0, floor));
    picture.text("small", (LEFT, floor + 68.0), Anchor::Start, note);
    picture
}

fn legend(picture: &mut Picture, parts: &[&str]) {
    let mut x = LEFT;
    for (part, name) in parts.iter().enumerate() {
        picture.rectangle(&svg::fill(part), (x, 38.0), (11.0, 11.0), 1.0, "");
        picture.text("small", (x + 16.0, 48.0), Anchor::Start, name);
        x += 32.0 + 6.6 * name.chars().count() as f64;
    }
}

/// 1, 2 or 5 times a power of ten, at least this.
fn round_up(step: f64) -> f64 {
    let power = 10f64.powf(step.max(1e-3).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|round| *round >= step).unwrap_or(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_drawn_and_none_leaves_the_picture() {
        let bar = Bar { name: "remote, user".to_owned(), parts: vec![3.5, 0.0, 20.0], p95: 47.0 };
        let text = draw("Title", "time", &["enter", "directory", "data"], &[bar], "note").into_file();
        for part in ["Title", "remote, user, enter: 3.5", "remote, user, data: 20", ">user<", "note", "directory"] {
            assert!(text.contains(part), "{part} is missing");
        }
        assert!(!text.contains("directory: ") && !text.contains("=\"-"), "{text}");
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!((round_up(9.4), round_up(0.3), round_up(2.0)), (10.0, 0.5, 2.0));
    }
}
