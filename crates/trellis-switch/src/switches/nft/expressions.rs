//! Rules of the packet filter: sequences of expressions, each of which reads or writes registers. The first expression
//! that does not hold ends the rule, and the next rule is evaluated.

use super::netlink::{Attributes, Changes, FLAG_APPEND, FLAG_CREATE, kind};

/// The sixteen registers of four bytes begin at this number.
const REGISTERS: u32 = 8;
const VERDICT_REGISTER: u32 = 0;
/// An element of a list of expressions; an expression's name and its data.
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;

/// The kernel's data about a packet besides its bytes.
const META_PROTOCOL: u32 = 1;
const META_MARK: u32 = 3;
const META_INTERFACE: u32 = 4;
/// Places in a packet.
const HARDWARE_HEADER: u32 = 0;
const NETWORK_HEADER: u32 = 1;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const LESS: u32 = 2;
const RANDOM: u32 = 1;
const INVERT: u32 = 1;
const TO_NETWORK_ORDER: u32 = 1;
const DROP: u32 = 0;
const GOTO: u32 = -4_i32 as u32;
const JUMP: u32 = -3_i32 as u32;
const RETURN: u32 = -5_i32 as u32;

/// A rule that is being built.
#[derive(Clone, Debug, Default)]
pub(super) struct Rule(Attributes);

impl Rule {
    pub(super) fn new() -> Rule {
        Rule::default()
    }

    fn with(mut self, name: &str, data: impl FnOnce(&mut Attributes)) -> Rule {
        self.0.nest(LIST_ELEMENT, |expression| {
            expression.text(EXPRESSION_NAME, name);
            expression.nest(EXPRESSION_DATA, data);
        });
        self
    }

    fn meta(self, what: u32, to: u32) -> Rule {
        self.with("meta", |data| {
            data.number(1, REGISTERS + to);
            data.number(2, what);
        })
    }

    /// The number of the interface at which the packet arrived.
    pub(super) fn interface(self, to: u32) -> Rule {
        self.meta(META_INTERFACE, to)
    }

    /// The protocol of the frame, two bytes.
    pub(super) fn protocol(self, to: u32) -> Rule {
        self.meta(META_PROTOCOL, to)
    }

    /// The packet's mark.
    pub(super) fn mark(self, to: u32) -> Rule {
        self.meta(META_MARK, to)
    }

    pub(super) fn set_mark(self, from: u32) -> Rule {
        self.with("meta", |data| {
            data.number(2, META_MARK);
            data.number(3, REGISTERS + from);
        })
    }

    /// Bytes of the packet, from its IPv6 header on.
    pub(super) fn load(self, at: usize, bytes: usize, to: u32) -> Rule {
        self.with("payload", |data| {
            data.number(1, REGISTERS + to);
            data.number(2, NETWORK_HEADER);
            data.number(3, at as u32);
            data.number(4, bytes as u32);
        })
    }

    /// Sets the first bytes of the frame: the destination hardware address.
    pub(super) fn set_destination(self, from: u32) -> Rule {
        self.with("payload", |data| {
            data.number(5, REGISTERS + from);
            data.number(2, HARDWARE_HEADER);
            data.number(3, 0);
            data.number(4, 6);
            data.number(6, 0);
        })
    }

    /// A constant.
    pub(super) fn value(self, to: u32, value: &[u8]) -> Rule {
        self.with("immediate", |data| {
            data.number(1, REGISTERS + to);
            data.nest(2, |inner| inner.bytes(DATA_VALUE, value));
        })
    }

    fn compare(self, from: u32, how: u32, value: &[u8]) -> Rule {
        self.with("cmp", |data| {
            data.number(1, REGISTERS + from);
            data.number(2, how);
            data.nest(3, |inner| inner.bytes(DATA_VALUE, value));
        })
    }

    pub(super) fn equals(self, from: u32, value: &[u8]) -> Rule {
        self.compare(from, EQUAL, value)
    }

    pub(super) fn differs(self, from: u32, value: &[u8]) -> Rule {
        self.compare(from, NOT_EQUAL, value)
    }

    /// Keeps the bits that are in the mask.
    pub(super) fn mask(self, register: u32, mask: &[u8]) -> Rule {
        self.with("bitwise", |data| {
            data.number(1, REGISTERS + register);
            data.number(2, REGISTERS + register);
            data.number(3, mask.len() as u32);
            data.nest(4, |inner| inner.bytes(DATA_VALUE, mask));
            data.nest(5, |inner| inner.bytes(DATA_VALUE, &vec![0; mask.len()]));
        })
    }

    /// Continues if the set contains the key.
    pub(super) fn among(self, set: &str, from: u32) -> Rule {
        self.with("lookup", |data| {
            data.text(1, set);
            data.number(2, REGISTERS + from);
        })
    }

    /// Continues if the set does not contain the key.
    pub(super) fn not_among(self, set: &str, from: u32) -> Rule {
        self.with("lookup", |data| {
            data.text(1, set);
            data.number(2, REGISTERS + from);
            data.number(5, INVERT);
        })
    }

    /// Continues with the map's value for the key.
    pub(super) fn find(self, map: &str, from: u32, to: u32) -> Rule {
        self.with("lookup", |data| {
            data.text(1, map);
            data.number(2, REGISTERS + from);
            data.number(3, REGISTERS + to);
        })
    }

    /// Adds a missing entry to a map; of two packets at the same time, one adds it. Continues unless there is no room.
    pub(super) fn add(self, map: &str, key: u32, value: u32, milliseconds: u64) -> Rule {
        self.with("dynset", |data| {
            data.text(1, map);
            data.number(3, 0);
            data.number(4, REGISTERS + key);
            data.number(5, REGISTERS + value);
            data.long(6, milliseconds);
        })
    }

    /// Counts in a set, adding missing elements.
    pub(super) fn count(self, set: &str, key: u32) -> Rule {
        self.with("dynset", |data| {
            data.text(1, set);
            data.number(3, 0);
            data.number(4, REGISTERS + key);
            data.nest(7, counter);
        })
    }

    /// Continues for this many parts per million of the packets, at random.
    pub(super) fn now_and_then(self, millionths: u32, register: u32) -> Rule {
        let rule = self.with("numgen", |data| {
            data.number(1, REGISTERS + register);
            data.number(2, 1_000_000);
            data.number(3, RANDOM);
        });
        let rule = rule.with("byteorder", |data| {
            data.number(1, REGISTERS + register);
            data.number(2, REGISTERS + register);
            data.number(3, TO_NETWORK_ORDER);
            data.number(4, 4);
            data.number(5, 4);
        });
        rule.compare(register, LESS, &millionths.to_be_bytes())
    }

    /// Reports the first bytes of the packet under a group number.
    pub(super) fn tell(self, group: u16, bytes: u32) -> Rule {
        self.with("log", |data| {
            data.short(1, group);
            data.number(3, bytes);
        })
    }

    /// Sends a copy through an interface.
    pub(super) fn copy(self, interface: u32) -> Rule {
        self.with("dup", |data| data.number(2, REGISTERS + interface))
    }

    /// Sends the packet through an interface.
    pub(super) fn forward(self, interface: u32) -> Rule {
        self.with("fwd", |data| data.number(1, REGISTERS + interface))
    }

    pub(super) fn drop(self) -> Rule {
        self.verdict(DROP, None)
    }

    /// Continues in another chain, and does not return.
    pub(super) fn goto(self, chain: &str) -> Rule {
        self.verdict(GOTO, Some(chain))
    }

    /// Continues in another chain, and returns at its end.
    pub(super) fn jump(self, chain: &str) -> Rule {
        self.verdict(JUMP, Some(chain))
    }

    pub(super) fn come_back(self) -> Rule {
        self.verdict(RETURN, None)
    }

    fn verdict(self, code: u32, chain: Option<&str>) -> Rule {
        self.with("immediate", |data| {
            data.number(1, VERDICT_REGISTER);
            data.nest(2, |inner| {
                inner.nest(DATA_VERDICT, |verdict| {
                    verdict.number(1, code);
                    if let Some(chain) = chain {
                        verdict.text(2, chain);
                    }
                });
            });
        })
    }

    /// Appends it to a chain.
    pub(super) fn put(&self, changes: &mut Changes, chain: &str) {
        changes.message(kind::NEW_RULE, FLAG_CREATE | FLAG_APPEND, |message| {
            message.text(RULE_CHAIN, chain);
            message.nest(RULE_EXPRESSIONS, |list| list.append(&self.0));
        });
    }
}

/// Removes every rule from a chain.
pub(super) fn clear_chain(changes: &mut Changes, chain: &str) {
    changes.message(kind::DELETE_RULE, 0, |message| message.text(RULE_CHAIN, chain));
}

/// A counter, as an expression of an element.
pub(super) fn counter(data: &mut Attributes) {
    data.text(EXPRESSION_NAME, "counter");
    data.nest(EXPRESSION_DATA, |_| ());
}
