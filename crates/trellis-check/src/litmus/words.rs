//! Tells in words what happens in a simulated cluster.
//!
//! Promises: a protocol's new messages are told too, by their own names. It must never hide a
//! field.

use trellis_cluster_protocol::coherence::{Effect, Input, Message};

pub(super) fn input(node: u8, input: &Input) -> String {
    match input {
        Input::Message { from, message } => format!("node {node} hears from {from}: {}", self::message(message)),
        other => format!("node {node}: {}", plain(&format!("{other:?}"))),
    }
}

pub(super) fn effect(effect: &Effect) -> String {
    match effect {
        Effect::Send { to, message } => format!("send to {to}: {}", self::message(message)),
        other => plain(&format!("{other:?}")),
    }
}

pub(super) fn message(message: &Message) -> String {
    plain(&format!("{message:?}"))
}

/// What the compiler prints, without what only a compiler needs.
fn plain(text: &str) -> String {
    let mut text = text.to_string();
    while let Some((start, end, first, count)) = find_range(&text) {
        let run = if count == 1 { format!("page {first}") } else { format!("pages {first}-{}", first + count - 1) };
        text.replace_range(start..end, &run);
    }
    for (name, word) in [("PageIndex(", "page "), ("NodeId(", "node ")] {
        while let Some(start) = text.find(name) {
            let end = text[start..].find(')').map_or(text.len(), |length| start + length + 1);
            let number = text[start + name.len()..end - 1].to_string();
            text.replace_range(start..end, &format!("{word}{number}"));
        }
    }
    text.replace("{ ", "").replace(" }", "").replace("page: page ", "page ").replace("range: page", "page")
}

/// The first run of pages: where it stands, and its pages.
fn find_range(text: &str) -> Option<(usize, usize, u32, u32)> {
    let start = text.find("PageRange {")?;
    let end = start + text[start..].find('}')? + 1;
    let mut numbers = text[start..end].split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
    Some((start, end, numbers.next()?, numbers.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trellis_cluster_protocol::{Access, NodeId, PageIndex, PageRange};

    #[test]
    fn orders_and_facts_are_told_without_brackets() {
        let range = PageRange::new(PageIndex(2), 3).unwrap();
        let install = Effect::Install { range, access: Access::Read, zero: true };
        assert_eq!(effect(&install), "Install pages 2-4, access: Read, zero: true");
        let fault = Input::Fault { page: PageIndex(1), write: true, wish: PageRange::one(PageIndex(1)) };
        assert_eq!(input(3, &fault), "node 3: Fault page 1, write: true, wish: page 1");
        let message = Message::Invalidated { page: PageIndex(4) };
        let heard = Input::Message { from: NodeId(2), message };
        assert_eq!(input(0, &heard), "node 0 hears from node 2: Invalidated page 4");
    }
}
