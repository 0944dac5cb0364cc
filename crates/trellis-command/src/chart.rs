//! Plots with readable axes: titles, units, round numbers on the ticks, a legend when there is more than one series.

use crate::svg::{self, Anchor, Picture};

/// The range of one axis, and its scale.
#[derive(Debug, Clone)]
pub struct Axis {
    /// The quantity on the axis, with its unit.
    pub title: String,
    low: f64,
    high: f64,
    logarithmic: bool,
    whole: bool,
    bytes: bool,
}

impl Axis {
    /// From the lower to the upper end, widened to round numbers.
    pub fn linear(title: &str, low: f64, high: f64) -> Axis {
        let high = if high > low { high } else { low + 1.0 };
        let step = round_step((high - low) / 5.0);
        let axis = |low: f64, high: f64| Axis {
            title: title.to_owned(),
            low,
            high,
            logarithmic: false,
            whole: false,
            bytes: false,
        };
        axis((low / step).floor() * step, (high / step).ceil() * step)
    }

    /// One tick per whole number.
    pub fn counting(title: &str, low: usize, high: usize) -> Axis {
        Axis { low: low as f64 - 0.25, high: high as f64 + 0.25, whole: true, ..Axis::linear(title, 0.0, 1.0) }
    }

    /// Powers of ten; both ends must be positive.
    pub fn logarithmic(title: &str, low: f64, high: f64) -> Axis {
        let low = 10f64.powf(low.max(1e-9).log10().floor());
        let high = 10f64.powf(high.max(low * 10.0).log10().ceil());
        Axis { low, high, logarithmic: true, ..Axis::linear(title, 0.0, 1.0) }
    }

    /// Byte offsets from 0, with binary units on round binary numbers.
    pub fn offsets(title: &str, bytes: f64) -> Axis {
        Axis { low: 0.0, high: bytes.max(1.0), bytes: true, ..Axis::linear(title, 0.0, 1.0) }
    }

    /// Where a value lies between the ends, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let (value, low, high) = if self.logarithmic {
            (value.max(self.low).log10(), self.low.log10(), self.high.log10())
        } else {
            (value, self.low, self.high)
        };
        ((value - low) / (high - low)).clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        if self.logarithmic {
            let (first, last) = (self.low.log10().round() as i32, self.high.log10().round() as i32);
            return (first..=last).map(|power| 10f64.powi(power)).map(|value| (value, number(value))).collect();
        }
        let step = match (self.whole, self.bytes) {
            (true, _) => round_step((self.high - self.low) / 12.0).max(1.0),
            (_, true) => ((self.high / 6.0).log2().ceil().exp2()).max(1.0),
            _ => round_step((self.high - self.low) / 5.0),
        };
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        let label = |value: f64| if self.bytes { byte_text(value) } else { number(value) };
        (first..=last).map(|index| index as f64 * step).map(|value| (value, label(value))).collect()
    }
}

/// 1, 2 or 5 times a power of ten, at least the given step.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.max(1e-12).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|round| *round >= step * 0.999).unwrap_or(power)
}

/// Formats a number briefly.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e15).contains(&size) {
        return format!("{value:e}");
    }
    let digits =
        if size >= 100.0 || value.fract() == 0.0 { 0 } else { (3 - size.max(1e-4).log10().floor() as i32).clamp(1, 7) };
    let text = format!("{value:.*}", digits as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Bytes with a binary unit.
pub fn byte_text(bytes: f64) -> String {
    let mut value = bytes;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{} {unit}", number((value * 10.0).round() / 10.0))
}

/// One series of a plot.
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, in the order in which a line joins them.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub style: Style,
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A line with a dot at each point
    Line,
    /// A dashed line
    Dashed,
    /// Dots only
    Dots,
}

/// A plot with two axes.
pub struct Plot {
    /// The line above the plot.
    pub title: String,
    /// The horizontal axis.
    pub across: Axis,
    /// The vertical axis.
    pub up: Axis,
    /// The series.
    pub series: Vec<Series>,
    /// A sentence below the plot.
    pub note: String,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 76.0;

impl Plot {
    /// The picture.
    pub fn draw(&self) -> Picture {
        let mut picture =
            Picture::new(WIDTH, HEIGHT, &format!("{}: {} over {}", self.title, self.up.title, self.across.title));
        picture.text("title", (LEFT, 24.0), Anchor::Start, &self.title);
        self.draw_axes(&mut picture);
        for (index, series) in self.series.iter().enumerate() {
            self.draw_series(&mut picture, index, series);
        }
        self.draw_legend(&mut picture);
        picture.text("small", (LEFT, HEIGHT - 12.0), Anchor::Start, &self.note);
        picture
    }

    fn at(&self, point: (f64, f64)) -> (f64, f64) {
        let width = WIDTH - LEFT - RIGHT;
        let height = HEIGHT - TOP - BOTTOM;
        (LEFT + self.across.place(point.0) * width, TOP + (1.0 - self.up.place(point.1)) * height)
    }

    fn draw_axes(&self, picture: &mut Picture) {
        let (floor, ceiling) = (HEIGHT - BOTTOM, TOP);
        for (value, label) in self.up.ticks() {
            let (_, y) = self.at((self.across.low, value));
            picture.line("rule", (LEFT, y), (WIDTH - RIGHT, y));
            picture.text("small", (LEFT - 8.0, y + 4.0), Anchor::End, &label);
        }
        for (value, label) in self.across.ticks() {
            let (x, _) = self.at((value, self.up.low));
            picture.line("axis", (x, floor), (x, floor + 5.0));
            picture.text("small", (x, floor + 19.0), Anchor::Middle, &label);
        }
        picture.line("axis", (LEFT, floor), (WIDTH - RIGHT, floor));
        picture.line("axis", (LEFT, ceiling), (LEFT, floor));
        picture.text("", ((LEFT + WIDTH - RIGHT) / 2.0, floor + 40.0), Anchor::Middle, &self.across.title);
        picture.upright_text("", (20.0, (floor + ceiling) / 2.0), &self.up.title);
    }

    fn draw_series(&self, picture: &mut Picture, index: usize, series: &Series) {
        let places: Vec<(f64, f64)> = series.points.iter().map(|point| self.at(*point)).collect();
        match series.style {
            Style::Line => picture.path(&svg::stroke(index), &places),
            Style::Dashed => picture.path(&format!("{} dash", svg::stroke(index)), &places),
            Style::Dots => {}
        }
        let radius = if series.style == Style::Dots && series.points.len() > 50 { 2.2 } else { 3.5 };
        // A tool tip on each of thousands of dots would multiply the size of the file.
        let with_tips = series.points.len() <= 200;
        for (place, value) in places.iter().zip(&series.points) {
            let tip = if with_tips {
                format!("{}: {}, {}", series.name, number(value.0), number(value.1))
            } else {
                String::new()
            };
            picture.dot(&svg::fill(index), *place, radius, &tip);
        }
    }

    fn draw_legend(&self, picture: &mut Picture) {
        if self.series.len() < 2 {
            return;
        }
        let mut x = LEFT;
        for (index, series) in self.series.iter().enumerate() {
            picture.rectangle(&svg::fill(index), (x, 38.0), (11.0, 11.0), 1.0, "");
            picture.text("small", (x + 16.0, 48.0), Anchor::Start, &series.name);
            x += 32.0 + 6.6 * series.name.chars().count() as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers() {
        let labels = |axis: &Axis| axis.ticks().into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(&Axis::linear("t", 0.0, 9.3)), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(labels(&Axis::counting("n", 1, 6)), ["1", "2", "3", "4", "5", "6"]);
        assert_eq!(labels(&Axis::logarithmic("µs", 3.0, 2e3)), ["1", "10", "100", "1000", "10000"]);
        assert_eq!(labels(&Axis::offsets("b", 16384.0)), ["0 B", "4 KiB", "8 KiB", "12 KiB", "16 KiB"]);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(number(0.0), "0");
        assert_eq!(number(1.5), "1.5");
        assert_eq!(number(0.0625), "0.0625");
        assert_eq!(number(12345.6), "12346");
        assert_eq!(number(268_435_456.0), "268435456");
        assert_eq!(byte_text(1536.0), "1.5 KiB");
        assert_eq!(byte_text(268_435_456.0), "256 MiB");
    }

    #[test]
    fn values_outside_stay_on_the_paper() {
        let axis = Axis::linear("t", 0.0, 10.0);
        assert_eq!(axis.place(-5.0), 0.0);
        assert_eq!(axis.place(50.0), 1.0);
        assert_eq!(axis.place(5.0), 0.5);
    }

    #[test]
    fn a_plot_has_titles_and_a_legend() {
        let series =
            |name: &str| Series { name: name.to_owned(), points: vec![(1.0, 2.0), (2.0, 3.0)], style: Style::Line };
        let plot = Plot {
            title: "Time".to_owned(),
            across: Axis::counting("nodes", 1, 2),
            up: Axis::linear("seconds (s)", 0.0, 3.0),
            series: vec![series("ours"), series("theirs")],
            note: "note".to_owned(),
        };
        let text = plot.draw().into_file();
        for part in ["Time", "nodes", "seconds (s)", "ours", "theirs", "note"] {
            assert!(text.contains(part), "{part} is missing");
        }
    }
}
