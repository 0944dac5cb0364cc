//! A small writer of SVG: shapes and text with classes, and one style for light and dark.
//!
//! A picture never refers to anything outside itself, and every text in it is escaped.

use std::fmt::Write;

/// The number of colours for nodes and series; with more, colours repeat.
pub const COLOURS: usize = 8;

/// The style of every picture: `s0`…`s7` fill, `l0`…`l7` stroke.
pub const STYLE: &str = "\
svg{--ink:#1f2328;--faint:#59636e;--rule:#d1d9e0;--paper:#ffffff;\
--c0:#0b66c3;--c1:#c2410c;--c2:#15803d;--c3:#9333ea;--c4:#b45309;--c5:#0e7490;--c6:#be185d;--c7:#4d5562}\
@media(prefers-color-scheme:dark){svg{--ink:#e6edf3;--faint:#9198a1;--rule:#3d444d;--paper:#0d1117;\
--c0:#58a6ff;--c1:#ff8f5c;--c2:#4ac26b;--c3:#c297ff;--c4:#e3b341;--c5:#39c5cf;--c6:#ff7eb6;--c7:#aab4c0}}\
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg text.title{font-size:15px;font-weight:600}\
svg text.small{font-size:11px;fill:var(--faint)}\
svg .paper{fill:var(--paper)}svg .rule{stroke:var(--rule);stroke-width:1;fill:none}svg .axis{stroke:var(--faint);stroke-width:1;fill:none}\
svg .s0{fill:var(--c0)}svg .s1{fill:var(--c1)}svg .s2{fill:var(--c2)}svg .s3{fill:var(--c3)}\
svg .s4{fill:var(--c4)}svg .s5{fill:var(--c5)}svg .s6{fill:var(--c6)}svg .s7{fill:var(--c7)}\
svg .l0{stroke:var(--c0)}svg .l1{stroke:var(--c1)}svg .l2{stroke:var(--c2)}svg .l3{stroke:var(--c3)}\
svg .l4{stroke:var(--c4)}svg .l5{stroke:var(--c5)}svg .l6{stroke:var(--c6)}svg .l7{stroke:var(--c7)}\
svg .line{fill:none;stroke-width:2}svg .dash{stroke-dasharray:6 4}";

/// Where a text is anchored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// At its first letter.
    Start,
    /// At its middle.
    Middle,
    /// At its last letter.
    End,
}

/// A picture being drawn; the origin is the upper left corner, the unit a CSS pixel.
pub struct Picture {
    width: f64,
    height: f64,
    description: String,
    body: String,
}

impl Picture {
    /// `description` is the text for people who cannot see the picture.
    pub fn new(width: f64, height: f64, description: &str) -> Picture {
        Picture { width, height, description: escape(description), body: String::new() }
    }

    /// A straight line; `class` names its style.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.push(&format!(r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#));
    }

    /// A line through points.
    pub fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let mut places = String::new();
        for (x, y) in points {
            let _ = write!(places, "{x:.1},{y:.1} ");
        }
        self.push(&format!(r#"<polyline class="{class}" points="{}"/>"#, places.trim_end()));
    }

    /// `opacity` 1 is solid; `tip` is the tool tip.
    pub fn rectangle(&mut self, class: &str, at: (f64, f64), size: (f64, f64), opacity: f64, tip: &str) {
        let opacity = if opacity < 1.0 { format!(r#" opacity="{opacity:.3}""#) } else { String::new() };
        let ((x, y), (width, height)) = (at, size);
        let open =
            format!(r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"{opacity}"#);
        self.push(&closed(&open, "rect", tip));
    }

    /// A filled circle; `tip` is the tool tip.
    pub fn dot(&mut self, class: &str, at: (f64, f64), radius: f64, tip: &str) {
        let open = format!(r#"<circle class="{class}" cx="{:.1}" cy="{:.1}" r="{radius:.1}""#, at.0, at.1);
        self.push(&closed(&open, "circle", tip));
    }

    /// A text at a place.
    pub fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let anchor = anchor.word();
        let text = escape(text);
        self.push(&format!(
            r#"<text class="{class}" x="{:.1}" y="{:.1}" text-anchor="{anchor}">{text}</text>"#,
            at.0, at.1
        ));
    }

    /// A text that reads from bottom to top, with its middle at the given place.
    pub fn upright_text(&mut self, class: &str, at: (f64, f64), text: &str) {
        let (x, y) = at;
        let text = escape(text);
        self.push(&format!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="middle" transform="rotate(-90 {x:.1} {y:.1})">{text}</text>"#
        ));
    }

    fn push(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }

    /// The picture as a file of its own.
    pub fn into_file(self) -> String {
        format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}", self.render(&format!("<style>{STYLE}</style>\n")))
    }

    /// The picture as part of a page that holds [`STYLE`].
    pub fn into_inline(self) -> String {
        self.render("")
    }

    fn render(&self, style: &str) -> String {
        let Picture { width, height, description, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" role=\"img\" aria-label=\"{description}\">\n{style}\
             <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n{body}</svg>\n"
        )
    }
}

impl Anchor {
    fn word(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

fn closed(open: &str, name: &str, tip: &str) -> String {
    if tip.is_empty() { format!("{open}/>") } else { format!("{open}><title>{}</title></{name}>", escape(tip)) }
}

/// The class that fills with the colour of a node or series.
pub fn fill(series: usize) -> String {
    format!("s{}", series % COLOURS)
}

/// The class that draws lines in the colour of a node or series.
pub fn stroke(series: usize) -> String {
    format!("line l{}", series % COLOURS)
}

/// Escapes text for XML and HTML.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // XML 1.0 §2.2 has no other control characters.
            '\t' | '\n' | '\r' => out.push(character),
            control if control.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("a<b & \"c\" 'd'\u{1}"), "a&lt;b &amp; &quot;c&quot; &#39;d&#39;\u{fffd}");
        let mut picture = Picture::new(10.0, 10.0, "<script>");
        picture.text("title", (1.0, 2.0), Anchor::Middle, "x<y");
        let file = picture.into_file();
        assert!(file.contains("x&lt;y") && file.contains("aria-label=\"&lt;script&gt;\""), "{file}");
    }

    #[test]
    fn every_element_is_closed_and_nothing_is_fetched() {
        let mut picture = Picture::new(10.0, 10.0, "d");
        picture.rectangle("s0", (0.0, 0.0), (1.0, 1.0), 0.5, "tip");
        picture.dot("s1", (1.0, 1.0), 2.0, "");
        picture.path("line l0", &[(0.0, 0.0), (1.0, 1.0)]);
        let file = picture.into_file();
        assert_eq!(file.matches("<rect").count(), 2);
        assert!(file.contains("<title>tip</title></rect>") && file.ends_with("</svg>\n"));
        assert_eq!(file.matches("http").count(), 1, "only the name space");
    }
}
