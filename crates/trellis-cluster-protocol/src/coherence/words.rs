//! The text form of inputs, effects and messages, for scripts, traces and counterexamples.
//!
//! Promises: each takes one line, without a line end. A page is written `p3`, a page range `p3-5`, a node `n1`. The text
//! must never be needed for a decision, and must never be produced on the path that moves pages: producing it allocates.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::{Choice, Content, Effect, Input, Message, Purpose};
use crate::{Access, PageIndex, PageRange, PageSet};

impl fmt::Display for Input {
    /// The text after the name of the node, as in `n1 faults: load from p3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&input(self))
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&effect(self))
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&message(self))
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Purpose::Retry => "retry",
            Purpose::Expiry => "expiry",
            Purpose::Threshold => "threshold",
        })
    }
}

impl Message {
    /// The first word of the text, which names the kind.
    pub const fn name(&self) -> &'static str {
        match self {
            Message::Request { .. } => "request",
            Message::Forward { .. } => "forward",
            Message::Grant { .. } => "grant",
            Message::Confirm { .. } => "confirm",
            Message::Invalidate { .. } => "invalidate",
            Message::Invalidated { .. } => "invalidated",
            Message::Redirect { .. } => "redirect",
            Message::Retry { .. } => "retry",
            Message::Again { .. } => "again",
            Message::Copy { .. } => "copy",
            Message::Diff { .. } => "diff",
            Message::Diffed { .. } => "diffed",
            Message::Update { .. } => "update",
            Message::Updated { .. } => "updated",
            Message::Piggybacked { .. } => "piggybacked",
            Message::Place { .. } => "place",
            Message::Placed { .. } => "placed",
        }
    }
}

fn input(input: &Input) -> String {
    match *input {
        Input::Fault { page, write, wanted } => {
            format!("faults: {} {}{}", if write { "store to" } else { "load from" }, one(page), of_range(page, wanted))
        }
        Input::Prefetch { wanted, write, announced } => {
            let verb = if announced { "announces" } else { "guesses" };
            format!("{verb}: {} {}", if write { "stores to" } else { "loads from" }, run(wanted))
        }
        Input::Message { from, message } => format!("hears from n{}: {message}", from.0),
        Input::Resumed { page } => format!("resumed {}", one(page)),
        Input::Alarm { page, purpose } => format!("has alarm {} {purpose}", one(page)),
        Input::Lock { range, call, stay } => {
            let stay = stay.map_or(String::new(), |stay| format!(" for {}", time(stay)));
            format!("locks {}{stay} (call {call})", run(range))
        }
        Input::Unlock { range, call } => format!("unlocks {} (call {call})", run(range)),
        Input::Gone { node: gone, successor } => format!("is told that n{} is gone, ask n{}", gone.0, successor.0),
        Input::Stored { range } => format!("finds marks: {}", run(range)),
        Input::Publish { .. } => "publishes".to_string(),
        Input::Notice { range, stamp } => format!("has notice: {} changed at time {stamp}", run(range)),
        Input::Changed { page } => format!("finds {} changed", one(page)),
        Input::Place { range, node: home } => format!("wants {} at n{}", run(range), home.0),
        Input::Close { range } => format!("closes {}", run(range)),
        Input::Piggyback { to, .. } => format!("hands a lock to n{}", to.0),
    }
}

fn effect(effect: &Effect) -> String {
    match *effect {
        Effect::Revoke(range) => format!("revoke {}", run(range)),
        Effect::Downgrade(range) => format!("downgrade {}", run(range)),
        Effect::Install { range, access, zero } => {
            let zero = if zero { ", zero" } else { "" };
            format!("install {} {}{zero}", run(range), if access == Access::Write { "for stores" } else { "for loads" })
        }
        Effect::Upgrade(range) => format!("upgrade {}", run(range)),
        Effect::Send { to, message } => format!("send n{}: {message}", to.0),
        Effect::Wake(range) => format!("wake {}", run(range)),
        Effect::Hold(page) => format!("hold {}", one(page)),
        Effect::Alarm { page, purpose, after } => {
            format!("set alarm {} {} in {}", one(page), purpose, time(after))
        }
        Effect::Locked { range, call } => format!("locked {} (call {call})", run(range)),
        Effect::Violation { from, what } => format!("violation by n{}: {what}", from.0),
        Effect::SendTwins { to, message } => format!("send n{}: {}, from the twin", to.0, message),
        Effect::KeepTwin(range) => format!("keep twin of {}", run(range)),
        Effect::Apply { pages, twins } => {
            let twins = twins.map_or(String::new(), |twins| format!(", and into the twin of {}", set(twins)));
            format!("put diff into {}{twins}", set(pages))
        }
        Effect::Merge { page, .. } => format!("put what differs into {}", one(page)),
        Effect::Inspect(page) => format!("compare {} with its twin", one(page)),
        Effect::Notice { range, stamp } => format!("note: {} changed at time {stamp}", run(range)),
        Effect::Published => "published".to_string(),
        Effect::Chose { range, choice } => {
            let what = match choice {
                Choice::MovesWithLoad => "moves with its load",
                Choice::Stays => "stays for a while",
            };
            format!("choose: {} {what}", run(range))
        }
    }
}

fn message(message: &Message) -> String {
    let text = |name: &str, range: PageRange, write: bool| {
        format!("{name} {} {}", run(range), if write { "for stores" } else { "for loads" })
    };
    match *message {
        Message::Request { demand, range, write, announced, requester, hops } => {
            let announced = if announced { ", announced" } else { "" };
            let passed_on = match hops {
                0 => String::new(),
                _ => format!(", for n{}, hop {hops}", requester.0),
            };
            let text = text("request", PageRange::one(demand), write);
            format!("{text}{}{announced}{passed_on}", of_range(demand, range))
        }
        Message::Redirect { page, owner } => format!("redirect {} to n{}", one(page), owner.0),
        Message::Forward { demand, range, write, requester, after, sequence } => {
            let text = text("forward", PageRange::one(demand), write);
            format!("{text}{} to n{}, after #{after}, as #{sequence}", of_range(demand, range), requester.0)
        }
        Message::Grant { range, write, content, sequence, .. } => {
            let content = match content {
                Content::Kept => "kept",
                Content::Zero => "zero",
                Content::Bytes => "with bytes",
            };
            format!("{}, {content}, #{sequence}", text("grant", range, write))
        }
        Message::Confirm { range, .. } => format!("confirm {}", run(range)),
        Message::Invalidate { page, owner } => format!("invalidate {}, which n{} will own", one(page), owner.0),
        Message::Invalidated { page } => format!("invalidated {}", one(page)),
        Message::Retry { page } => format!("retry {}", one(page)),
        Message::Again { page } => format!("again {}", one(page)),
        Message::Copy { range, home: true, .. } => format!("copy: you are the home of {}", run(range)),
        Message::Copy { range, content, stamp, .. } => {
            let content = if content == Content::Zero { "zero" } else { "with bytes" };
            format!("copy {}, {content}, time {stamp}", run(range))
        }
        Message::Diff { pages, writer, number, hops, piggybacked, .. } => {
            let passed_on = match hops {
                0 => String::new(),
                _ => format!(", of n{}, hop {hops}", writer.0),
            };
            format!("diff {}, #{number}{passed_on}{}", set(pages), some(pages, piggybacked, "piggybacked"))
        }
        Message::Diffed { pages, number, stamp, copied, current, moved } => {
            format!(
                "diffed {}, #{number}, time {stamp}{}{}{}",
                set(pages),
                some(pages, copied, "others have copies of"),
                some(pages, current, "as new as here:"),
                some(pages, moved, "you are the home of"),
            )
        }
        Message::Update { pages, origin, number, stamp } => {
            format!("update {}, #{number}, stored by n{}, time {stamp}", set(pages), origin.0)
        }
        Message::Updated { pages, number, kept } => {
            let kept = some(pages, kept, "taken:");
            format!("updated {}, #{number}{}", set(pages), if kept.is_empty() { "; none taken" } else { &kept })
        }
        Message::Piggybacked { page, stamp } => format!("piggybacked {}, time {stamp}", one(page)),
        Message::Place { range, home } => format!("place {} at n{}", run(range), home.0),
        Message::Placed { range } => format!("placed {}", run(range)),
    }
}

fn time(nanoseconds: u64) -> String {
    match nanoseconds % 1000 {
        0 => format!("{}us", nanoseconds / 1000),
        _ => format!("{nanoseconds}ns"),
    }
}

fn run(range: PageRange) -> String {
    match range.count() {
        1 => format!("p{}", range.first().0),
        _ => format!("p{}-{}", range.first().0, range.end() - 1),
    }
}

/// `p0-1, p5`.
fn set(pages: PageSet) -> String {
    pages.runs().map(run).collect::<Vec<_>>().join(", ")
}

/// The pages of `pages` that are in `mask`, if there are any.
fn some(pages: PageSet, mask: u64, what: &str) -> String {
    pages.masked(mask).map_or(String::new(), |some| format!("; {what} {}", set(some)))
}

fn one(page: PageIndex) -> String {
    format!("p{}", page.0)
}

fn of_range(page: PageIndex, wanted: PageRange) -> String {
    if wanted == PageRange::one(page) { String::new() } else { format!(" (of {})", run(wanted)) }
}
