//! Rules of the packet filter: expressions one after the other, each of which reads or writes registers. The first that
//! does not hold ends the rule, and the next rule is asked.

use super::netlink::{Attributes, Changes, FLAG_APPEND, FLAG_CREATE, kind};

/// The sixteen registers of four bytes begin at this number.
const REGISTERS: u32 = 8;
const VERDICT_REGISTER: u32 = 0;
/// An element of a list of expressions; an expression's name and what it has.
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;

/// What the kernel knows of a packet beside its bytes.
const META_PROTOCOL: u32 = 1;
const META_MARK: u32 = 3;
const META_INTERFACE: u32 = 4;
/// Where in a packet.
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

/// A rule in the making.
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

    /// The number of the interface that the packet came in at.
    pub(super) fn interface(self, to: u32) -> Rule {
        self.meta(META_INTERFACE, to)
    }

    /// The protocol of the frame, two bytes.
    pub(super) fn protocol(self, to: u32) -> Rule {
        self.meta(META_PROTOCOL, to)
    }

    /// What the packet is marked with.
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

    /// Sets the first bytes of the frame: the hardware address that it is for.
    pub(super) fn set_destination(self, from: u32) -> Rule {
        self.with("payload", |data| {
            data.number(5, REGISTERS + from);
            data.number(2, HARDWARE_HEADER);
            data.number(3, 0);
            data.number(4, 6);
            data.number(6, 0);
        })
    }

    /// A value that is always the same.
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

    /// Leaves those bits that the mask has.
    pub(super) fn mask(self, register: u32, mask: &[u8]) -> Rule {
        self.with("bitwise", |data| {
            data.number(1, REGISTERS + register);
            data.number(2, REGISTERS + register);
            data.number(3, mask.len() as u32);
            data.nest(4, |inner| inner.bytes(DATA_VALUE, mask));
            data.nest(5, |inner| inner.bytes(DATA_VALUE, &vec![0; mask.len()]));
        })
    }

    /// Goes on if the set has it.
    pub(super) fn among(self, set: &str, from: u32) -> Rule {
        self.with("lookup", |data| {
            data.text(1, set);
            data.number(2, REGISTERS + from);
        })
    }

    /// Goes on if the set does not have it.
    pub(super) fn not_among(self, set: &str, from: u32) -> Rule {
        self.with("lookup", |data| {
            data.text(1, set);
            data.number(2, REGISTERS + from);
            data.number(5, INVERT);
        })
    }

    /// Goes on with what the map says.
    pub(super) fn find(self, map: &str, from: u32, to: u32) -> Rule {
        self.with("lookup", |data| {
            data.text(1, map);
            data.number(2, REGISTERS + from);
            data.number(3, REGISTERS + to);
        })
    }

    /// Adds to a map what it does not have; of two at once, one does. Goes on unless there is no room.
    pub(super) fn add(self, map: &str, key: u32, value: u32, milliseconds: u64) -> Rule {
        self.with("dynset", |data| {
            data.text(1, map);
            data.number(3, 0);
            data.number(4, REGISTERS + key);
            data.number(5, REGISTERS + value);
            data.long(6, milliseconds);
        })
    }

    /// Counts in a set, which grows by what it does not have.
    pub(super) fn count(self, set: &str, key: u32) -> Rule {
        self.with("dynset", |data| {
            data.text(1, set);
            data.number(3, 0);
            data.number(4, REGISTERS + key);
            data.nest(7, counter);
        })
    }

    /// Goes on with this many of a million packets, at random.
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

    /// Tells the first bytes of the packet under a number.
    pub(super) fn tell(self, group: u16, bytes: u32) -> Rule {
        self.with("log", |data| {
            data.short(1, group);
            data.number(3, bytes);
        })
    }

    /// Sends a copy out at an interface.
    pub(super) fn copy(self, interface: u32) -> Rule {
        self.with("dup", |data| data.number(2, REGISTERS + interface))
    }

    /// Sends the packet out at an interface.
    pub(super) fn forward(self, interface: u32) -> Rule {
        self.with("fwd", |data| data.number(1, REGISTERS + interface))
    }

    pub(super) fn drop(self) -> Rule {
        self.verdict(DROP, None)
    }

    /// Goes on in another chain, and does not come back.
    pub(super) fn goto(self, chain: &str) -> Rule {
        self.verdict(GOTO, Some(chain))
    }

    /// Goes on in another chain, and comes back when that one says so.
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

    /// Puts it at the end of a chain.
    pub(super) fn put(&self, changes: &mut Changes, chain: &str) {
        changes.message(kind::NEW_RULE, FLAG_CREATE | FLAG_APPEND, |message| {
            message.text(RULE_CHAIN, chain);
            message.nest(RULE_EXPRESSIONS, |list| list.append(&self.0));
        });
    }
}

/// Takes every rule out of a chain.
pub(super) fn clear_chain(changes: &mut Changes, chain: &str) {
    changes.message(kind::DELETE_RULE, 0, |message| message.text(RULE_CHAIN, chain));
}

/// A counter, as an expression that elements have.
pub(super) fn counter(data: &mut Attributes) {
    data.text(EXPRESSION_NAME, "counter");
    data.nest(EXPRESSION_DATA, |_| ());
}
