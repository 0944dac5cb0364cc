//! Inputs, effects and messages in the words of a trace.
//!
//! Promises: one line each. It must never be needed to decide anything.

use trellis_cluster_protocol::coherence::{Content, Effect, Input, Message};
use trellis_cluster_protocol::{Access, PageRange, wire};

pub(super) fn input(input: &Input) -> String {
    match *input {
        Input::Fault { page, write, wish } => {
            format!("faults: {} {page}{}", kind(write), round(PageRange::one(page), wish))
        }
        Input::Prefetch { wish, write, announced } => {
            format!("{} {} {wish}", if announced { "announces" } else { "guesses" }, kind(write))
        }
        Input::Message { from, message: said } => format!("hears from n{}: {}", from.0, message(&said)),
        Input::Resumed { page } => format!("resumed {page}"),
        Input::Alarm { page, purpose } => format!("alarm {purpose:?} of {page}"),
        Input::Lock { range, call, stay } => {
            let stay = stay.map_or(String::new(), |stay| format!(", for {} us", stay / 1000));
            format!("wants to lock {range}, call {call}{stay}")
        }
        Input::Unlock { range, call } => format!("unlocks {range}, call {call}"),
        Input::Gone { node, successor } => format!("is told that {node} left; instead {successor}"),
        // Those of release consistency, which has a simulator of its own.
        ref other => format!("{other:?}"),
    }
}

pub(super) fn effect(effect: &Effect) -> String {
    match *effect {
        Effect::Revoke(range) => format!("revoke {range}"),
        Effect::Downgrade(range) => format!("downgrade {range}"),
        Effect::Install { range, access, zero } => {
            let zero = if zero { ", zero" } else { "" };
            format!("install {range} {}{zero}", kind(access == Access::Write))
        }
        Effect::Upgrade(range) => format!("upgrade {range}"),
        Effect::Send { to, message: said } => format!("send n{}: {}", to.0, message(&said)),
        Effect::Wake(range) => format!("wake {range}"),
        Effect::Hold(page) => format!("hold {page}"),
        Effect::Alarm { page, purpose, after } => format!("alarm {purpose:?} of {page} after {} us", after / 1000),
        Effect::Locked { range, call } => format!("locked {range}, call {call}"),
        Effect::Violation { from, what } => format!("violation by {from}: {what}"),
        ref other => format!("{other:?}"),
    }
}

/// Anything that nodes say.
pub(super) fn said(message: &wire::Message) -> String {
    match message {
        wire::Message::Coherence(message) => self::message(message),
        other => format!("{other:?}"),
    }
}

fn message(message: &Message) -> String {
    match *message {
        Message::Request { demand, range, write, announced, requester, hops } => {
            let announced = if announced { ", announced" } else { "" };
            let around = round(PageRange::one(demand), range);
            format!("request {demand}{around} {} by n{}, hop {hops}{announced}", kind(write), requester.0)
        }
        Message::Redirect { page, owner } => format!("redirect {page} to n{}", owner.0),
        Message::Forward { demand, range, write, requester, after, sequence } => {
            let around = round(PageRange::one(demand), range);
            format!("forward {demand}{around} {} to n{}, after #{after}, as #{sequence}", kind(write), requester.0)
        }
        Message::Grant { demand, range, write, content, sequence } => {
            let content = match content {
                Content::Kept => "kept",
                Content::Zero => "zero",
                Content::Bytes => "with bytes",
            };
            format!("grant {demand}{} {}, {content}, #{sequence}", round(PageRange::one(demand), range), kind(write))
        }
        Message::Confirm { range, .. } => format!("confirm {range}"),
        Message::Invalidate { page, owner } => format!("invalidate {page}, for n{}", owner.0),
        Message::Invalidated { page } => format!("invalidated {page}"),
        Message::Retry { page } => format!("retry {page}"),
        Message::Again { page } => format!("again {page}"),
        ref other => format!("{other:?}"),
    }
}

fn kind(write: bool) -> &'static str {
    if write { "for stores" } else { "for loads" }
}

fn round(page: PageRange, range: PageRange) -> String {
    if page == range { String::new() } else { format!(" of {range}") }
}
