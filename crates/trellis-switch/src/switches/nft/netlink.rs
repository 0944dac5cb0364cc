//! Messages to the kernel's packet filter, byte by byte, and the conversation in which they are sent.
//!
//! Promises: messages that are sent together take effect together or not at all (up to `TRANSACTION_BYTES_MAX`). It
//! must never start a program: a transaction is one system call.

use std::io;

use crate::sys;

/// Subsystems of the packet filter.
const TABLES: u16 = 10;
const LOGS: u16 = 4;
/// The protocol family of everything here: packets that arrive at a device.
const FAMILY: u8 = 5;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;
const FLAG_REQUEST: u16 = 1;
const FLAG_ACKNOWLEDGE: u16 = 4;
const FLAG_DUMP: u16 = 0x300;
pub(super) const FLAG_CREATE: u16 = 0x400;
pub(super) const FLAG_APPEND: u16 = 0x800;
/// Length, kind, flags, number, port; family, version, subsystem.
const HEADER_BYTES: usize = 20;
const ERROR_AT: usize = 16;
/// The maximum length of a message from the kernel.
const RECEIVED_BYTES_MAX: usize = 65_536;
/// What a socket accepts at once with the kernel's default settings.
const TRANSACTION_BYTES_MAX: usize = 160 * 1024;
/// The maximum length of a list of elements: an attribute's length has 16 bits.
const LIST_BYTES_MAX: usize = 60_000;
const NESTED: u16 = 0x8000;

/// Kinds of messages about tables.
pub(super) mod kind {
    pub(in crate::switches::nft) const NEW_TABLE: u16 = 0;
    pub(in crate::switches::nft) const DELETE_TABLE: u16 = 2;
    pub(in crate::switches::nft) const NEW_CHAIN: u16 = 3;
    pub(in crate::switches::nft) const NEW_RULE: u16 = 6;
    pub(in crate::switches::nft) const DELETE_RULE: u16 = 8;
    pub(in crate::switches::nft) const NEW_SET: u16 = 9;
    pub(in crate::switches::nft) const DELETE_SET: u16 = 11;
    pub(in crate::switches::nft) const NEW_ELEMENT: u16 = 12;
    pub(in crate::switches::nft) const GET_ELEMENT: u16 = 13;
    pub(in crate::switches::nft) const DELETE_ELEMENT: u16 = 14;
    /// Deletes an element that may not exist.
    pub(in crate::switches::nft) const DESTROY_ELEMENT: u16 = 30;
}

/// The list of elements in a message about a set.
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const LIST_ELEMENT: u16 = 1;

/// Attributes: kind, length and bytes of each.
#[derive(Clone, Debug, Default)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    pub(super) fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.0.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    pub(super) fn text(&mut self, kind: u16, value: &str) {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat());
    }

    pub(super) fn short(&mut self, kind: u16, value: u16) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub(super) fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub(super) fn long(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub(super) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes)) {
        let begin = self.0.len();
        self.bytes(kind | NESTED, &[]);
        fill(self);
        let length = (self.0.len() - begin) as u16;
        self.0[begin..begin + 2].copy_from_slice(&length.to_ne_bytes());
    }

    pub(super) fn append(&mut self, others: &Attributes) {
        self.0.extend_from_slice(&others.0);
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// The attributes in some bytes; a truncated one ends them.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]));
        let kind = u16::from_ne_bytes([*bytes.get(2)?, *bytes.get(3)?]) & !NESTED;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of a kind.
pub(super) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(one, _)| *one == kind).map(|(_, value)| value)
}

/// Changes that take effect together.
#[derive(Debug)]
pub(super) struct Changes {
    table: &'static str,
    messages: Vec<(u16, u16, Attributes)>,
}

impl Changes {
    pub(super) fn new(table: &'static str) -> Changes {
        Changes { table, messages: Vec::new() }
    }

    /// The number of messages.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// A message whose first attribute names the table.
    pub(super) fn message(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut Attributes)) {
        let mut attributes = Attributes::default();
        attributes.text(1, self.table);
        fill(&mut attributes);
        self.messages.push((kind, flags, attributes));
    }

    /// A message about elements of a set, or as many messages as needed.
    pub(super) fn elements(&mut self, kind: u16, set: &str, elements: impl IntoIterator<Item = Attributes>) {
        let flags = if kind == kind::NEW_ELEMENT { FLAG_CREATE } else { 0 };
        let mut list = Attributes::default();
        let mut put = |list: &mut Attributes| {
            let list = std::mem::take(list);
            self.message(kind, flags, |message| {
                message.text(LIST_SET, set);
                message.nest(LIST_ELEMENTS, |all| all.append(&list));
            });
        };
        for element in elements {
            list.nest(LIST_ELEMENT, |all| all.append(&element));
            if list.len() > LIST_BYTES_MAX {
                put(&mut list);
            }
        }
        if list.len() > 0 {
            put(&mut list);
        }
    }

    /// Removes every element from a set.
    pub(super) fn clear(&mut self, set: &str) {
        self.message(kind::DELETE_ELEMENT, 0, |message| message.text(LIST_SET, set));
    }
}

/// A conversation with the kernel. What it created ends with it.
pub(super) struct Conversation {
    socket: sys::Netlink,
    number: u32,
    buffer: Vec<u8>,
}

impl Conversation {
    pub(super) fn open() -> io::Result<Conversation> {
        Ok(Conversation { socket: sys::Netlink::open()?, number: 0, buffer: vec![0; RECEIVED_BYTES_MAX] })
    }

    /// Makes changes: all of them or none if they fit into a transaction; otherwise one transaction after the other.
    pub(super) fn carry_out(&mut self, changes: &Changes) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (index, (kind, flags, attributes)) in changes.messages.iter().enumerate() {
            if bytes.is_empty() {
                self.put(&mut bytes, BATCH_BEGIN, FLAG_REQUEST, 0, TABLES, &Attributes::default());
            }
            let next = changes.messages.get(index + 1).map(|(_, _, attributes)| HEADER_BYTES + attributes.len());
            let room = TRANSACTION_BYTES_MAX.saturating_sub(bytes.len() + HEADER_BYTES + attributes.len());
            let is_last = next.is_none_or(|next| next > room);
            // Refusals are sent unasked; success is acknowledged for the last message.
            let answer = if is_last { FLAG_ACKNOWLEDGE } else { 0 };
            self.put(&mut bytes, TABLES << 8 | kind, FLAG_REQUEST | flags | answer, FAMILY, 0, attributes);
            if is_last {
                self.put(&mut bytes, BATCH_END, FLAG_REQUEST, 0, TABLES, &Attributes::default());
                self.socket.send(&bytes)?;
                if !self.hear(|_| ())? {
                    return Err(io::Error::from_raw_os_error(libc::EPROTO));
                }
                bytes.clear();
            }
        }
        Ok(())
    }

    /// The elements of a set: the attributes of each. `only`: just the one with these attributes.
    pub(super) fn elements_of(&mut self, table: &str, set: &str, only: Option<Attributes>) -> io::Result<Vec<Vec<u8>>> {
        let mut attributes = Attributes::default();
        attributes.text(LIST_TABLE, table);
        attributes.text(LIST_SET, set);
        let flags = if only.is_none() { FLAG_REQUEST | FLAG_DUMP } else { FLAG_REQUEST };
        if let Some(only) = only {
            attributes.nest(LIST_ELEMENTS, |list| list.nest(LIST_ELEMENT, |element| element.append(&only)));
        }
        let mut bytes = Vec::new();
        self.put(&mut bytes, TABLES << 8 | kind::GET_ELEMENT, flags, FAMILY, 0, &attributes);
        self.socket.send(&bytes)?;
        let mut elements = Vec::new();
        self.hear(|message| {
            let list = attribute(message, LIST_ELEMENTS).unwrap_or_default();
            elements.extend(self::attributes(list).map(|(_, element)| element.to_vec()));
        })?;
        Ok(elements)
    }

    fn put(&mut self, to: &mut Vec<u8>, kind: u16, flags: u16, family: u8, subsystem: u16, attributes: &Attributes) {
        self.number = self.number.wrapping_add(1);
        to.extend_from_slice(&((HEADER_BYTES + attributes.len()) as u32).to_ne_bytes());
        to.extend_from_slice(&kind.to_ne_bytes());
        to.extend_from_slice(&flags.to_ne_bytes());
        to.extend_from_slice(&self.number.to_ne_bytes());
        to.extend_from_slice(&[0; 4]);
        to.extend_from_slice(&[family, 0]);
        to.extend_from_slice(&subsystem.to_be_bytes());
        to.extend_from_slice(&attributes.0);
    }

    /// Reads all answers of the kernel; the first refusal is the error. Returns whether the acknowledgement was among
    /// them.
    fn hear(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<bool> {
        let (mut refused, mut taken) = (None, false);
        while let Some(bytes) = self.socket.receive(&mut self.buffer)? {
            for message in messages(&self.buffer[..bytes]) {
                match message.kind {
                    MESSAGE_ERROR => {
                        let code = message.bytes.get(ERROR_AT..ERROR_AT + 4).and_then(|code| code.try_into().ok());
                        let code = code.map_or(libc::EBADMSG, |code| -i32::from_ne_bytes(code));
                        taken |= code == 0;
                        refused = refused.or((code != 0).then(|| io::Error::from_raw_os_error(code)));
                    }
                    MESSAGE_DONE => {}
                    _ => each(message.bytes.get(HEADER_BYTES..).unwrap_or_default()),
                }
            }
        }
        refused.map_or(Ok(taken), Err)
    }
}

/// A complete message of the kernel.
struct Message<'a> {
    kind: u16,
    bytes: &'a [u8],
}

fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
        let message = Message { kind, bytes: bytes.get(..length)? };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        (length >= ERROR_AT).then_some(message)
    })
}

/// A packet that the rules reported, from its IPv6 header on.
pub(super) struct LoggedPacket<'a> {
    /// The group number under which its rule reports.
    pub(super) group: u16,
    pub(super) interface: u32,
    pub(super) packet: &'a [u8],
}

/// Receives the packets that the rules report. The groups are free when it is dropped: a child process that has not called
/// exec yet has the descriptor, too, so that closing it is not enough.
pub(super) struct Subscription {
    conversation: Conversation,
    groups: Vec<u16>,
}

const LOG_CONFIGURE: u16 = 1;
const LOG_COMMAND: u16 = 1;
const LOG_MODE: u16 = 2;
const LOG_THRESHOLD: u16 = 5;
const LOG_BIND: u8 = 1;
const LOG_UNBIND: u8 = 2;
const LOG_COPY: u8 = 2;
const LOG_INTERFACE: u16 = 4;
const LOG_PACKET: u16 = 9;

impl Subscription {
    /// Receives what is reported under these numbers, up to this many bytes of each packet, at once.
    pub(super) fn open(groups: &[u16], bytes_max: u32) -> io::Result<Subscription> {
        let mut subscription = Subscription { conversation: Conversation::open()?, groups: Vec::new() };
        let conversation = &mut subscription.conversation;
        for &group in groups {
            let mut attributes = Attributes::default();
            attributes.bytes(LOG_COMMAND, &[LOG_BIND]);
            let [a, b, c, d] = bytes_max.to_be_bytes();
            attributes.bytes(LOG_MODE, &[a, b, c, d, LOG_COPY, 0]);
            attributes.number(LOG_THRESHOLD, 1);
            let mut bytes = Vec::new();
            let flags = FLAG_REQUEST | FLAG_ACKNOWLEDGE;
            conversation.put(&mut bytes, LOGS << 8 | LOG_CONFIGURE, flags, 0, group, &attributes);
            conversation.socket.send(&bytes)?;
            conversation.hear(|_| ())?;
            subscription.groups.push(group);
        }
        Ok(subscription)
    }

    /// The descriptor that becomes readable when something is reported.
    pub(super) fn descriptor(&self) -> io::Result<std::os::fd::OwnedFd> {
        self.conversation.socket.descriptor()
    }

    /// Handles everything that was reported since the last call, in order. Returns whether nothing was lost.
    pub(super) fn hear(&mut self, mut each: impl FnMut(LoggedPacket<'_>)) -> bool {
        let mut is_all = true;
        let Conversation { socket, buffer, .. } = &mut self.conversation;
        loop {
            match socket.receive(buffer) {
                Ok(Some(bytes)) => messages(&buffer[..bytes]).filter_map(|one| heard(one.bytes)).for_each(&mut each),
                Ok(None) => return is_all,
                // More was reported than fits; later reports are available.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => is_all = false,
                Err(_) => return false,
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        for group in std::mem::take(&mut self.groups) {
            let mut attributes = Attributes::default();
            attributes.bytes(LOG_COMMAND, &[LOG_UNBIND]);
            let mut bytes = Vec::new();
            self.conversation.put(&mut bytes, LOGS << 8 | LOG_CONFIGURE, FLAG_REQUEST, 0, group, &attributes);
            // If the kernel refuses, closing the socket frees the group.
            let _ = self.conversation.socket.send(&bytes);
        }
    }
}

fn heard(message: &[u8]) -> Option<LoggedPacket<'_>> {
    let group = u16::from_be_bytes([*message.get(18)?, *message.get(19)?]);
    let attributes = message.get(HEADER_BYTES..)?;
    let interface = u32::from_be_bytes(attribute(attributes, LOG_INTERFACE)?.try_into().ok()?);
    Some(LoggedPacket { group, interface, packet: attribute(attributes, LOG_PACKET)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_are_written() {
        let mut written = Attributes::default();
        written.text(1, "abc");
        written.nest(3, |inner| {
            inner.short(4, 0x102);
            inner.number(5, 7);
            inner.long(6, 9);
        });
        let top: Vec<_> = attributes(&written.0).collect();
        assert_eq!(top[0], (1, b"abc\0".as_slice()));
        let inner: Vec<_> = attributes(top[1].1).collect();
        assert_eq!(inner[0], (4, [1, 2].as_slice()));
        assert_eq!(inner[1], (5, [0, 0, 0, 7].as_slice()));
        assert_eq!(inner[2], (6, [0, 0, 0, 0, 0, 0, 0, 9].as_slice()));
        assert_eq!((top[1].0, top.len(), inner.len()), (3, 2, 3));
        assert_eq!(attribute(&written.0, 3), Some(top[1].1));
        assert_eq!(attribute(&written.0, 2), None);
        for cut in 0..written.0.len() {
            // If the bytes are truncated anywhere, fewer attributes are read.
            assert!(attributes(&written.0[..cut]).count() < 2, "{cut}");
        }
    }

    #[test]
    fn long_lists_are_several_messages() {
        let mut changes = Changes::new("t");
        let element = |number: u32| {
            let mut element = Attributes::default();
            element.number(1, number);
            element
        };
        changes.elements(kind::NEW_ELEMENT, "s", (0..10_000).map(element));
        assert!(changes.messages.len() > 1 && changes.messages.iter().all(|(_, _, one)| one.len() < 65_536));
        let listed = |attributes: &Attributes| {
            let list = attribute(&attributes.0, LIST_ELEMENTS).map(self::attributes);
            list.map_or(0, Iterator::count)
        };
        assert_eq!(changes.messages.iter().map(|(_, _, one)| listed(one)).sum::<usize>(), 10_000);
    }
}
