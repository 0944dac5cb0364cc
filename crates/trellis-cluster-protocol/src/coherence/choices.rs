//! Which protocols there are, how they combine, and their names.
//!
//! A protocol is a base with at most two layers around it: `ivy`, `dynamic(forward)`, `delay(lock(dynamic(redirect)))`.
//! Promises: a printed name is parsed as the same protocol, and a word is refused with a message that lists the
//! alternatives. It must never decide anything about a page.

use super::delay::Delay;
use super::dynamic::{Dynamic, Variation};
use super::hlrc::{Hlrc, Propagation};
use super::ivy::Ivy;
use super::lock::Lock;
use super::migrate::Migrate;
use super::{Coherence, Effect, Geometry, Input};
use crate::Nanoseconds;
use crate::page::{Access, PageIndex, PageRange};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

/// The largest number of layers around a base: one of each kind.
pub const LAYERS_MAX: usize = 2;

/// Declares the bases. A protocol is added with one line here.
macro_rules! bases {
    // The dollar is for the macro inside, whose parameters are its own.
    ($dollar:tt $($(#[$doc:meta])* $name:ident($type:ty) = $word:literal => $start:expr,)+) => {
        /// A protocol that stands for itself.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Base {
            $($(#[$doc])* $name,)+
        }

        impl Base {
            /// Every choice.
            pub const ALL: &[Base] = &[$(Base::$name,)+];

            /// The word used in configuration, command line and reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Base::$name => $word,)+
                }
            }

            fn start(self, geometry: Geometry) -> Running {
                match self {
                    $(Base::$name => Running::$name($start(geometry)),)+
                }
            }
        }

        /// A protocol at work: the choice is made once, when it starts.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Running {
            $(
                #[doc = concat!("`", $word, "`.")]
                $name($type),
            )+
            /// A lock layer.
            Lock(Box<Lock<Running>>),
            /// A delay layer.
            Delay(Box<Delay<Running>>),
        }

        /// Asks whichever protocol runs.
        macro_rules! of_running {
            ($dollar running:expr, $dollar protocol:ident => $dollar answer:expr) => {
                match $dollar running {
                    $(Running::$name($dollar protocol) => $dollar answer,)+
                    Running::Lock($dollar protocol) => $dollar answer,
                    Running::Delay($dollar protocol) => $dollar answer,
                }
            };
        }
    };
}

bases! { $
    /// Fixed manager, single writer or many readers (Li and Hudak 1989; libivy).
    Ivy(Ivy) = "ivy" => Ivy::new,
    /// No manager; requests are passed on towards the owner (Sane, MacGregor and Campbell 1990, §4.1, §4.5).
    DynamicForward(Dynamic) = "dynamic(forward)" => |geometry| Dynamic::new(geometry, Variation::Forward),
    /// No manager; the requester is told which node to ask (§4.5).
    DynamicRedirect(Dynamic) = "dynamic(redirect)" => |geometry| Dynamic::new(geometry, Variation::Redirect),
    /// As `dynamic(forward)`; a page that nodes load from and then store to in turns moves with the first load.
    DynamicMigratory(Dynamic) = "dynamic(migratory)" => |geometry| Dynamic::new(geometry, Variation::Migratory),
    /// One copy of each page, which moves to the node that touches it.
    Migrate(Migrate) = "migrate" => Migrate::new,
    /// Lazy release consistency; copies are dropped (Zhou, Iftode and Li 1996).
    HlrcInvalidate(Hlrc) = "hlrc(invalidate)" => |geometry| Hlrc::new(geometry, Propagation::Invalidate),
    /// Lazy release consistency; copies get what changed (Osendorfer et al. 2004, §5).
    HlrcUpdate(Hlrc) = "hlrc(update)" => |geometry| Hlrc::new(geometry, Propagation::Update),
    /// Lazy release consistency; one or the other for each page.
    HlrcAdaptive(Hlrc) = "hlrc(adaptive)" => |geometry| Hlrc::new(geometry, Propagation::Adaptive),
}

/// A protocol around another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layer {
    /// Pages can be locked ([`super::lock`]).
    Lock(Waiting),
    /// Pages stay for a while ([`super::delay`]).
    Delay(Threshold),
}

/// What a node does after it was asked to retry ([`super::lock`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Waiting {
    /// It sleeps until the page comes.
    #[default]
    Sleep,
    /// It asks again after this many microseconds.
    Spin(u32),
}

/// How long a page stays ([`super::delay`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Threshold {
    /// As the activity of the page and the number of waiting requests suggest.
    #[default]
    Adaptive,
    /// As [`Threshold::Adaptive`], and at most eight times as long as the page takes to come.
    Short,
    /// This many microseconds.
    Fixed(u32),
}

/// A base and the layers around it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Protocol {
    base: Base,
    /// The innermost layer first; no gaps.
    layers: [Option<Layer>; LAYERS_MAX],
}

/// An error message about a word that names no protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoProtocol(String);

impl Protocol {
    /// Fixed manager.
    pub const IVY: Protocol = Protocol { base: Base::Ivy, layers: [None; LAYERS_MAX] };
    /// Each page as its nodes use it: it moves with its first load if they take turns with it, and stays for a while if it
    /// was taken in the middle of stores.
    pub const AUTO: Protocol =
        Protocol { base: Base::DynamicMigratory, layers: [Some(Layer::Delay(Threshold::Short)), None] };
    /// No manager, requests are passed on.
    pub const DYNAMIC: Protocol = Protocol { base: Base::DynamicForward, layers: [None; LAYERS_MAX] };

    /// Every protocol with sequential consistency by itself, and every combination of layers that the tests run: each layer
    /// around two bases, and both layers in both orders.
    pub fn all() -> Vec<Protocol> {
        let (lock, spin) = (Layer::Lock(Waiting::Sleep), Layer::Lock(Waiting::Spin(100)));
        let delay = Layer::Delay(Threshold::Adaptive);
        let bases = Protocol::bases().into_iter().filter(|protocol| !protocol.is_release_consistent());
        let (ivy, dynamic) = (Protocol::IVY, Protocol::DYNAMIC);
        let layered = [
            ivy.within(lock),
            dynamic.within(lock),
            dynamic.within(spin),
            ivy.within(delay),
            dynamic.within(delay),
            Some(Protocol::AUTO),
            dynamic.within(lock).and_then(|inner| inner.within(delay)),
            dynamic.within(delay).and_then(|inner| inner.within(lock)),
        ];
        bases.chain(layered.into_iter().flatten()).collect()
    }

    /// Every protocol with release consistency.
    pub fn all_release_consistent() -> Vec<Protocol> {
        Protocol::bases().into_iter().filter(|protocol| protocol.is_release_consistent()).collect()
    }

    /// The protocols without layers.
    pub fn bases() -> Vec<Protocol> {
        Base::ALL.iter().map(|&base| Protocol { base, layers: [None; LAYERS_MAX] }).collect()
    }

    /// Whether a load need only see the stores that were released to it ([`super::hlrc`]).
    pub fn is_release_consistent(self) -> bool {
        matches!(self.base, Base::HlrcInvalidate | Base::HlrcUpdate | Base::HlrcAdaptive)
    }

    /// This protocol inside `layer`; `None` if it already has a layer of that kind, or can have none.
    pub fn within(self, layer: Layer) -> Option<Protocol> {
        let same = |other: &Layer| core::mem::discriminant(other) == core::mem::discriminant(&layer);
        let free = self.layers.iter().position(Option::is_none)?;
        let mut layers = self.layers;
        layers[free] = Some(layer);
        let fits = !self.is_release_consistent() && !self.layers.iter().flatten().any(same);
        fits.then_some(Protocol { base: self.base, layers })
    }

    /// The base.
    pub fn base(self) -> Base {
        self.base
    }

    /// The layers, the innermost first.
    pub fn layers(self) -> impl Iterator<Item = Layer> {
        self.layers.into_iter().flatten()
    }

    /// Whether pages can be locked.
    pub fn can_lock(self) -> bool {
        self.layers().any(|layer| matches!(layer, Layer::Lock(_)))
    }

    /// One shard of this protocol for one node.
    pub fn start(self, geometry: Geometry) -> Running {
        self.layers().fold(self.base.start(geometry), |inner, layer| match layer {
            Layer::Lock(waiting) => Running::Lock(Box::new(Lock::new(inner, geometry, waiting))),
            Layer::Delay(threshold) => Running::Delay(Box::new(Delay::new(inner, geometry, threshold))),
        })
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for layer in self.layers.iter().rev().flatten() {
            f.write_str(match layer {
                Layer::Lock(_) => "lock(",
                Layer::Delay(_) => "delay(",
            })?;
        }
        f.write_str(self.base.name())?;
        for layer in self.layers.iter().flatten() {
            match layer {
                Layer::Lock(Waiting::Sleep) | Layer::Delay(Threshold::Adaptive) => write!(f, ")")?,
                Layer::Delay(Threshold::Short) => write!(f, ", short)")?,
                Layer::Lock(Waiting::Spin(microseconds)) => write!(f, ", spin {microseconds}us)")?,
                Layer::Delay(Threshold::Fixed(microseconds)) => write!(f, ", {microseconds}us)")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for NoProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bases: Vec<&str> = Base::ALL.iter().map(|base| base.name()).collect();
        write!(
            f,
            "`{}` is not a protocol; there is auto, {}, and round any but the last three lock(…), lock(…, spin 100us), delay(…), \
             delay(…, short), delay(…, 500us), each once; auto is delay(dynamic(migratory), short)",
            self.0,
            bases.join(", ")
        )
    }
}

impl core::error::Error for NoProtocol {}

impl FromStr for Protocol {
    type Err = NoProtocol;

    fn from_str(text: &str) -> Result<Protocol, NoProtocol> {
        parse(text.trim()).ok_or_else(|| NoProtocol(text.to_string()))
    }
}

fn parse(text: &str) -> Option<Protocol> {
    if text == "auto" {
        return Some(Protocol::AUTO);
    }
    // `dynamic` alone is the variant that sends fewer messages; `hlrc` alone is the one that finds out what is better.
    let base = |word: &str| Base::ALL.iter().copied().find(|base| base.name() == word);
    let short = match text {
        "dynamic" => Some(Base::DynamicForward),
        "hlrc" => Some(Base::HlrcAdaptive),
        _ => base(text),
    };
    if let Some(base) = short {
        return Some(Protocol { base, layers: [None; LAYERS_MAX] });
    }
    let (kind, rest) = text.split_once('(')?;
    let inside = rest.strip_suffix(')')?;
    // The argument follows the last comma that is not inside further parentheses.
    let (inner, argument) = match inside.rsplit_once(',') {
        Some((inner, argument)) if !argument.contains(')') => (inner.trim(), Some(argument.trim())),
        _ => (inside.trim(), None),
    };
    let microseconds = |text: &str| text.strip_suffix("us")?.trim().parse::<u32>().ok().filter(|&us| us > 0);
    let layer = match (kind.trim(), argument) {
        ("lock", None) => Layer::Lock(Waiting::Sleep),
        ("lock", Some(argument)) => Layer::Lock(Waiting::Spin(microseconds(argument.strip_prefix("spin")?)?)),
        ("delay", None) => Layer::Delay(Threshold::Adaptive),
        ("delay", Some("short")) => Layer::Delay(Threshold::Short),
        ("delay", Some(argument)) => Layer::Delay(Threshold::Fixed(microseconds(argument)?)),
        _ => return None,
    };
    parse(inner)?.within(layer)
}

impl Running {
    /// The protocol, if it is one with release consistency.
    pub fn as_hlrc(&self) -> Option<&Hlrc> {
        match self {
            Running::HlrcInvalidate(hlrc) | Running::HlrcUpdate(hlrc) | Running::HlrcAdaptive(hlrc) => Some(hlrc),
            _ => None,
        }
    }
}

impl Coherence for Running {
    fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        of_running!(self, protocol => protocol.step(now, input, effects))
    }

    fn access(&self, page: PageIndex) -> Access {
        of_running!(self, protocol => protocol.access(page))
    }

    fn may_hand_over(&self, page: PageIndex) -> bool {
        of_running!(self, protocol => protocol.may_hand_over(page))
    }

    fn is_pending(&self, page: PageIndex) -> bool {
        of_running!(self, protocol => protocol.is_pending(page))
    }

    fn owns(&self, page: PageIndex) -> bool {
        of_running!(self, protocol => protocol.owns(page))
    }

    fn leaves_behind(&self, page: PageIndex) -> bool {
        of_running!(self, protocol => protocol.leaves_behind(page))
    }

    fn is_untouched(&self, page: PageIndex) -> bool {
        of_running!(self, protocol => protocol.is_untouched(page))
    }

    fn release(&mut self, page: PageIndex) {
        of_running!(self, protocol => protocol.release(page));
    }

    fn adopt(&mut self, page: PageIndex) {
        of_running!(self, protocol => protocol.adopt(page));
    }

    fn lockable(&self, wanted: PageRange) -> Result<PageRange, PageRange> {
        of_running!(self, protocol => protocol.lockable(wanted))
    }

    fn is_watched(&self, page: PageIndex) -> bool {
        of_running!(self, protocol => protocol.is_watched(page))
    }

    fn has_twin(&self, page: PageIndex) -> bool {
        of_running!(self, protocol => protocol.has_twin(page))
    }

    fn publishers(&self) -> u32 {
        of_running!(self, protocol => protocol.publishers())
    }

    fn publishing(&self) -> u32 {
        of_running!(self, protocol => protocol.publishing())
    }

    fn has_migratory(&self) -> bool {
        of_running!(self, protocol => protocol.has_migratory())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_back() {
        for protocol in Protocol::all() {
            assert_eq!(protocol.to_string().parse(), Ok(protocol));
        }
        for text in ["delay(lock(dynamic(forward)))", "lock(delay(ivy, 500us), spin 20us)", "lock(dynamic(redirect))"] {
            assert_eq!(text.parse::<Protocol>().unwrap().to_string(), text);
        }
        assert_eq!("dynamic".parse(), Ok(Protocol::DYNAMIC));
        assert_eq!("auto".parse(), Ok(Protocol::AUTO));
        assert_eq!("lock(auto)".parse::<Protocol>().unwrap().to_string(), "lock(delay(dynamic(migratory), short))");
    }

    #[test]
    fn what_is_refused_is_refused_with_the_choices() {
        for text in [
            "",
            "ivi",
            "lock",
            "lock()",
            "lock(lock(ivy))",
            "delay(ivy, 0us)",
            "delay(ivy",
            "lock(ivy, 5us)",
            "dynamic(up)",
            "delay(auto)",
        ] {
            let error = text.parse::<Protocol>().unwrap_err().to_string();
            assert!(error.contains("auto, ivy, dynamic(forward)"), "{text}: {error}");
        }
    }
}
