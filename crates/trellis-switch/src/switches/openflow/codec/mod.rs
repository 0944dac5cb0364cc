//! OpenFlow 1.3 on the wire: encodes and decodes messages.
//!
//! Promises: pure; no clock, no socket. Decoding is total: any bytes are a message or an error, and must never cause a
//! panic or an allocation larger than the input. A message of an unknown kind keeps its bytes. Decoding returns what was
//! encoded.

mod acting;
mod bytes;
mod matching;
mod multipart;
#[cfg(test)]
mod tests;

pub use acting::{Action, Bucket, Instruction, WHOLE, port};
pub use matching::{Field, Match, Oxm};
pub use multipart::{Answer, Description, FlowQuestion, FlowStats, PortDescription, PortStats, Question};

use acting::{read_actions, read_instructions, write_actions, write_instructions};
use bytes::{Reader, Writer};

/// OpenFlow 1.3, on the wire.
pub const VERSION: u8 = 4;
/// The header of every message: version, kind, length, number.
pub const HEADER_BYTES: usize = 8;
/// The packet is not buffered in the switch, and is sent completely.
pub const NO_BUFFER: u32 = 0xffff_ffff;
/// Every table, in requests.
pub const ALL_TABLES: u8 = 0xff;
/// Every group, in requests.
pub const ALL_GROUPS: u32 = 0xffff_fffc;
/// Flag of a flow: its end is reported.
pub const TELL_REMOVED: u16 = 1;
/// Why a flow ended: its time was over.
pub const REASON_HARD_TIMEOUT: u8 = 1;
/// Kind and code of an error: the table has no room for a flow.
pub const TABLE_FULL: (u16, u16) = (5, 1);
/// Kind and code of an error: the group to be added exists.
pub const GROUP_EXISTS: (u16, u16) = (6, 0);

const HELLO: u8 = 0;
const ERROR: u8 = 1;
const ECHO_REQUEST: u8 = 2;
const ECHO_REPLY: u8 = 3;
const EXPERIMENTER: u8 = 4;
const FEATURES_REQUEST: u8 = 5;
const FEATURES_REPLY: u8 = 6;
const SET_CONFIG: u8 = 9;
const PACKET_IN: u8 = 10;
const FLOW_REMOVED: u8 = 11;
const PORT_STATUS: u8 = 12;
const PACKET_OUT: u8 = 13;
const FLOW_MOD: u8 = 14;
const GROUP_MOD: u8 = 15;
const MULTIPART_REQUEST: u8 = 18;
const MULTIPART_REPLY: u8 = 19;
const BARRIER_REQUEST: u8 = 20;
const BARRIER_REPLY: u8 = 21;
/// The element of a hello that lists versions.
const HELLO_VERSIONS: u16 = 1;

/// Why bytes are not a message, or a message cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// It is truncated.
    #[error("an OpenFlow message ends too early")]
    Short,
    /// A length is invalid.
    #[error("an OpenFlow message has a length that cannot be")]
    Length,
    /// The content does not fit into a message.
    #[error("an OpenFlow message has no room for so much; it carries 65,535 bytes at most")]
    Long,
    /// The peer uses another version.
    #[error("an OpenFlow message is of version {0}; OpenFlow 1.3 (version 4) must be enabled on the switch")]
    Version(u8),
    /// An unknown part without which decoding cannot continue.
    #[error("an OpenFlow message has an unknown {0}")]
    Unknown(&'static str),
}

/// A message with its number; an answer has the number of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its number.
    pub number: u32,
    /// Its content.
    pub body: Body,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The supported versions: a bit for each, and the highest.
    Hello {
        /// The highest.
        version: u8,
        /// All of them; `None` if only the highest is given.
        versions: Option<u32>,
    },
    /// A request failed.
    Error {
        /// The kind of error.
        kind: u16,
        /// The reason.
        code: u16,
        /// The beginning of the refused message.
        data: Vec<u8>,
    },
    /// A request for a sign of life.
    EchoRequest(Vec<u8>),
    /// The answer to it.
    EchoReply(Vec<u8>),
    /// A message defined by an experimenter.
    Experimenter {
        /// The experimenter's number.
        experimenter: u32,
        /// Its kind.
        kind: u32,
        /// Its content.
        data: Vec<u8>,
    },
    /// A request for the switch's features.
    FeaturesRequest,
    /// The switch's features.
    FeaturesReply(Features),
    /// How a switch treats fragments, and how much of a packet without a flow it sends.
    SetConfig {
        /// How fragments are treated.
        flags: u16,
        /// The number of bytes.
        miss_bytes_max: u16,
    },
    /// A packet for the controller.
    PacketIn(PacketIn),
    /// A flow was removed.
    FlowRemoved(FlowRemoved),
    /// A port was added, removed or changed.
    PortStatus {
        /// 0 added, 1 removed, 2 changed.
        reason: u8,
        /// The port.
        port: PortDescription,
    },
    /// A packet to be sent.
    PacketOut(PacketOut),
    /// A change of flows.
    FlowMod(FlowMod),
    /// A change of a group.
    GroupMod(GroupMod),
    /// A request with an answer in several messages.
    MultipartRequest(Question),
    /// A part of its answer.
    MultipartReply {
        /// The content.
        answer: Answer,
        /// Whether more follow.
        has_more: bool,
    },
    /// A request to finish everything before this message.
    BarrierRequest,
    /// Everything before the request is finished.
    BarrierReply,
    /// Another kind.
    Other {
        /// Its number.
        kind: u8,
        /// What follows the header.
        bytes: Vec<u8>,
    },
}

/// The features of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// The datapath id, which is unique.
    pub datapath: u64,
    /// How many packets it buffers for the controller.
    pub buffers: u32,
    /// The number of its tables.
    pub tables: u8,
    /// 0 for a main connection.
    pub auxiliary: u8,
    /// What it counts, among others.
    pub capabilities: u32,
}

/// A packet that a flow sent to the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketIn {
    /// The buffer with the rest of it, or [`NO_BUFFER`].
    pub buffer: u32,
    /// Its length.
    pub bytes: u16,
    /// 0 no flow, 1 a flow's action, 2 its hop limit was exceeded.
    pub reason: u8,
    /// The table that sent it.
    pub table: u8,
    /// The cookie of the flow that sent it.
    pub cookie: u64,
    /// The switch's information about it.
    pub matching: Match,
    /// Its beginning, or all of it.
    pub data: Vec<u8>,
}

/// The end of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRemoved {
    /// Its cookie.
    pub cookie: u64,
    /// Its priority.
    pub priority: u16,
    /// 0 idle, 1 its time was over, 2 deleted, 3 its group was deleted.
    pub reason: u8,
    /// Its table.
    pub table: u8,
    /// How long it existed: seconds, and additional nanoseconds.
    pub age: (u32, u32),
    /// Its time-out without packets, in seconds.
    pub idle_timeout: u16,
    /// Its time-out, in seconds.
    pub hard_timeout: u16,
    /// The number of packets that it counted.
    pub packets: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// Its match.
    pub matching: Match,
}

/// A packet that the controller sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOut {
    /// A packet in a buffer of the switch, or [`NO_BUFFER`].
    pub buffer: u32,
    /// The port at which it counts as having arrived.
    pub in_port: u32,
    /// The actions.
    pub actions: Vec<Action>,
    /// The packet.
    pub data: Vec<u8>,
}

/// The kind of a change of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FlowCommand {
    /// Add this flow, replacing one with the same match.
    Add = 0,
    /// Change the actions of matching flows.
    Modify = 1,
    /// Change the actions of exactly this flow.
    ModifyStrict = 2,
    /// Delete matching flows.
    Delete = 3,
    /// Delete exactly this flow.
    DeleteStrict = 4,
}

/// A change of flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMod {
    /// The kind of change.
    pub command: FlowCommand,
    /// A cookie.
    pub cookie: u64,
    /// Which bits of the cookie must match, for changes of existing flows.
    pub cookie_mask: u64,
    /// The table.
    pub table: u8,
    /// The time-out without packets, in seconds; 0 for none.
    pub idle_timeout: u16,
    /// The time-out, in seconds; 0 for none.
    pub hard_timeout: u16,
    /// Of several matching flows, the one with the highest priority is used.
    pub priority: u16,
    /// For deletions: only flows that output to this port, or [`port::ANY`].
    pub out_port: u32,
    /// For deletions: only flows that output to this group, or [`port::ANY`].
    pub out_group: u32,
    /// [`TELL_REMOVED`] and others.
    pub flags: u16,
    /// The match.
    pub matching: Match,
    /// The instructions.
    pub instructions: Vec<Instruction>,
}

impl FlowMod {
    /// A change in a table that matches every packet and has no instructions yet.
    #[must_use]
    pub fn new(command: FlowCommand, table: u8) -> FlowMod {
        FlowMod {
            command,
            cookie: 0,
            cookie_mask: 0,
            table,
            idle_timeout: 0,
            hard_timeout: 0,
            priority: 0,
            out_port: port::ANY,
            out_group: port::ANY,
            flags: 0,
            matching: Match::any(),
            instructions: Vec::new(),
        }
    }
}

/// The kind of a change of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum GroupCommand {
    /// Add it.
    Add = 0,
    /// Replace its buckets.
    Modify = 1,
    /// Delete it.
    Delete = 2,
}

/// A change of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMod {
    /// The kind of change.
    pub command: GroupCommand,
    /// 0 every bucket gets a copy, 1 one is selected, 2 there is one, 3 the first live one.
    pub kind: u8,
    /// Its number.
    pub group: u32,
    /// Its buckets.
    pub buckets: Vec<Bucket>,
}

/// The length of the message with which these bytes begin; `None` if that is not known yet.
///
/// # Errors
///
/// [`CodecError::Length`] for a length shorter than the header.
pub fn message_bytes(bytes: &[u8]) -> Result<Option<usize>, CodecError> {
    match bytes {
        [_, _, high, low, ..] => match usize::from(u16::from_be_bytes([*high, *low])) {
            length if length < HEADER_BYTES => Err(CodecError::Length),
            length => Ok(Some(length)),
        },
        _ => Ok(None),
    }
}

impl Message {
    /// Encodes the message.
    ///
    /// # Errors
    ///
    /// [`CodecError::Long`] for what does not fit into 65,535 bytes.
    pub fn encode(&self) -> Result<Vec<u8>, CodecError> {
        let mut writer = Writer::default();
        let version = if let Body::Hello { version, .. } = self.body { version } else { VERSION };
        writer.u8(version);
        writer.u8(self.body.kind());
        writer.u16(0);
        writer.u32(self.number);
        self.body.write(&mut writer)?;
        writer.set_u16(2, writer.len())?;
        Ok(writer.finish())
    }

    /// The message that exactly these bytes are.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Message, CodecError> {
        let mut reader = Reader::new(bytes);
        let (version, kind, length, number) = (reader.u8()?, reader.u8()?, reader.u16()?, reader.u32()?);
        match usize::from(length) {
            length if length > bytes.len() => return Err(CodecError::Short),
            length if length < bytes.len() => return Err(CodecError::Length),
            _ => {}
        }
        // A peer with another version still sends hello, and why it disagrees.
        if version != VERSION && !matches!(kind, HELLO | ERROR) {
            return Err(CodecError::Version(version));
        }
        Ok(Message { number, body: Body::read(version, kind, &mut reader)? })
    }
}

impl Body {
    fn kind(&self) -> u8 {
        match self {
            Body::Hello { .. } => HELLO,
            Body::Error { .. } => ERROR,
            Body::EchoRequest(_) => ECHO_REQUEST,
            Body::EchoReply(_) => ECHO_REPLY,
            Body::Experimenter { .. } => EXPERIMENTER,
            Body::FeaturesRequest => FEATURES_REQUEST,
            Body::FeaturesReply(_) => FEATURES_REPLY,
            Body::SetConfig { .. } => SET_CONFIG,
            Body::PacketIn(_) => PACKET_IN,
            Body::FlowRemoved(_) => FLOW_REMOVED,
            Body::PortStatus { .. } => PORT_STATUS,
            Body::PacketOut(_) => PACKET_OUT,
            Body::FlowMod(_) => FLOW_MOD,
            Body::GroupMod(_) => GROUP_MOD,
            Body::MultipartRequest(_) => MULTIPART_REQUEST,
            Body::MultipartReply { .. } => MULTIPART_REPLY,
            Body::BarrierRequest => BARRIER_REQUEST,
            Body::BarrierReply => BARRIER_REPLY,
            Body::Other { kind, .. } => *kind,
        }
    }

    fn write(&self, writer: &mut Writer) -> Result<(), CodecError> {
        match self {
            Body::Hello { versions: None, .. } | Body::FeaturesRequest | Body::BarrierRequest | Body::BarrierReply => {}
            Body::Hello { versions: Some(versions), .. } => {
                writer.u16(HELLO_VERSIONS);
                writer.u16(8);
                writer.u32(*versions);
            }
            Body::Error { kind, code, data } => {
                writer.u16(*kind);
                writer.u16(*code);
                writer.put(data);
            }
            Body::EchoRequest(data) | Body::EchoReply(data) | Body::Other { bytes: data, .. } => writer.put(data),
            Body::Experimenter { experimenter, kind, data } => {
                writer.u32(*experimenter);
                writer.u32(*kind);
                writer.put(data);
            }
            Body::FeaturesReply(features) => features.write(writer),
            Body::SetConfig { flags, miss_bytes_max } => {
                writer.u16(*flags);
                writer.u16(*miss_bytes_max);
            }
            Body::PacketIn(packet) => packet.write(writer)?,
            Body::FlowRemoved(removed) => removed.write(writer)?,
            Body::PortStatus { reason, port } => {
                writer.u8(*reason);
                writer.zeros(7);
                port.write(writer);
            }
            Body::PacketOut(packet) => packet.write(writer)?,
            Body::FlowMod(change) => change.write(writer)?,
            Body::GroupMod(change) => change.write(writer)?,
            Body::MultipartRequest(question) => question.write(writer)?,
            Body::MultipartReply { answer, has_more } => answer.write(*has_more, writer)?,
        }
        Ok(())
    }

    fn read(version: u8, kind: u8, reader: &mut Reader<'_>) -> Result<Body, CodecError> {
        Ok(match kind {
            HELLO => Body::Hello { version, versions: read_versions(reader)? },
            ERROR => Body::Error { kind: reader.u16()?, code: reader.u16()?, data: reader.rest().to_vec() },
            ECHO_REQUEST => Body::EchoRequest(reader.rest().to_vec()),
            ECHO_REPLY => Body::EchoReply(reader.rest().to_vec()),
            EXPERIMENTER => {
                let (experimenter, kind) = (reader.u32()?, reader.u32()?);
                Body::Experimenter { experimenter, kind, data: reader.rest().to_vec() }
            }
            FEATURES_REQUEST => Body::FeaturesRequest,
            FEATURES_REPLY => Body::FeaturesReply(Features::read(reader)?),
            SET_CONFIG => Body::SetConfig { flags: reader.u16()?, miss_bytes_max: reader.u16()? },
            PACKET_IN => Body::PacketIn(PacketIn::read(reader)?),
            FLOW_REMOVED => Body::FlowRemoved(FlowRemoved::read(reader)?),
            PORT_STATUS => {
                let reason = reader.u8()?;
                reader.skip(7)?;
                Body::PortStatus { reason, port: PortDescription::read(reader)? }
            }
            PACKET_OUT => Body::PacketOut(PacketOut::read(reader)?),
            FLOW_MOD => Body::FlowMod(FlowMod::read(reader)?),
            GROUP_MOD => Body::GroupMod(GroupMod::read(reader)?),
            MULTIPART_REQUEST => Body::MultipartRequest(Question::read(reader)?),
            MULTIPART_REPLY => {
                let (answer, has_more) = Answer::read(reader)?;
                Body::MultipartReply { answer, has_more }
            }
            BARRIER_REQUEST => Body::BarrierRequest,
            BARRIER_REPLY => Body::BarrierReply,
            kind => Body::Other { kind, bytes: reader.rest().to_vec() },
        })
    }
}

/// The versions of a hello, if it lists them.
fn read_versions(reader: &mut Reader<'_>) -> Result<Option<u32>, CodecError> {
    while !reader.is_empty() {
        let kind = reader.u16()?;
        let length = reader.u16()?;
        let mut element = reader.body(length, 4)?;
        if kind == HELLO_VERSIONS {
            return element.u32().map(Some);
        }
        let length = usize::from(length);
        reader.skip(length.next_multiple_of(8) - length)?;
    }
    Ok(None)
}

impl Features {
    fn write(&self, writer: &mut Writer) {
        writer.u64(self.datapath);
        writer.u32(self.buffers);
        writer.u8(self.tables);
        writer.u8(self.auxiliary);
        writer.zeros(2);
        writer.u32(self.capabilities);
        writer.zeros(4);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Features, CodecError> {
        let (datapath, buffers, tables, auxiliary) = (reader.u64()?, reader.u32()?, reader.u8()?, reader.u8()?);
        reader.skip(2)?;
        Ok(Features { datapath, buffers, tables, auxiliary, capabilities: reader.u32()? })
    }
}

impl PacketIn {
    /// The port at which the packet arrived.
    #[must_use]
    pub fn in_port(&self) -> Option<u32> {
        self.matching.exact(Field::InPort).map(|port| port as u32)
    }

    fn write(&self, writer: &mut Writer) -> Result<(), CodecError> {
        writer.u32(self.buffer);
        writer.u16(self.bytes);
        writer.u8(self.reason);
        writer.u8(self.table);
        writer.u64(self.cookie);
        self.matching.write(writer)?;
        writer.zeros(2);
        writer.put(&self.data);
        Ok(())
    }

    fn read(reader: &mut Reader<'_>) -> Result<PacketIn, CodecError> {
        let (buffer, bytes, reason, table) = (reader.u32()?, reader.u16()?, reader.u8()?, reader.u8()?);
        let cookie = reader.u64()?;
        let matching = Match::read(reader)?;
        reader.skip(2)?;
        Ok(PacketIn { buffer, bytes, reason, table, cookie, matching, data: reader.rest().to_vec() })
    }
}

impl FlowRemoved {
    fn write(&self, writer: &mut Writer) -> Result<(), CodecError> {
        writer.u64(self.cookie);
        writer.u16(self.priority);
        writer.u8(self.reason);
        writer.u8(self.table);
        writer.u32(self.age.0);
        writer.u32(self.age.1);
        writer.u16(self.idle_timeout);
        writer.u16(self.hard_timeout);
        writer.u64(self.packets);
        writer.u64(self.bytes);
        self.matching.write(writer)
    }

    fn read(reader: &mut Reader<'_>) -> Result<FlowRemoved, CodecError> {
        let (cookie, priority, reason, table) = (reader.u64()?, reader.u16()?, reader.u8()?, reader.u8()?);
        let age = (reader.u32()?, reader.u32()?);
        let (idle_timeout, hard_timeout) = (reader.u16()?, reader.u16()?);
        let (packets, bytes) = (reader.u64()?, reader.u64()?);
        let matching = Match::read(reader)?;
        Ok(FlowRemoved { cookie, priority, reason, table, age, idle_timeout, hard_timeout, packets, bytes, matching })
    }
}

impl PacketOut {
    fn write(&self, writer: &mut Writer) -> Result<(), CodecError> {
        writer.u32(self.buffer);
        writer.u32(self.in_port);
        let length_at = writer.len();
        writer.zeros(8);
        let begin = writer.len();
        write_actions(&self.actions, writer)?;
        writer.set_u16(length_at, writer.len() - begin)?;
        writer.put(&self.data);
        Ok(())
    }

    fn read(reader: &mut Reader<'_>) -> Result<PacketOut, CodecError> {
        let (buffer, in_port, length) = (reader.u32()?, reader.u32()?, reader.u16()?);
        reader.skip(6)?;
        let actions = read_actions(reader.part(usize::from(length))?)?;
        Ok(PacketOut { buffer, in_port, actions, data: reader.rest().to_vec() })
    }
}

impl FlowMod {
    fn write(&self, writer: &mut Writer) -> Result<(), CodecError> {
        writer.u64(self.cookie);
        writer.u64(self.cookie_mask);
        writer.u8(self.table);
        writer.u8(self.command as u8);
        writer.u16(self.idle_timeout);
        writer.u16(self.hard_timeout);
        writer.u16(self.priority);
        writer.u32(NO_BUFFER);
        writer.u32(self.out_port);
        writer.u32(self.out_group);
        writer.u16(self.flags);
        writer.zeros(2);
        self.matching.write(writer)?;
        write_instructions(&self.instructions, writer)
    }

    fn read(reader: &mut Reader<'_>) -> Result<FlowMod, CodecError> {
        let (cookie, cookie_mask, table) = (reader.u64()?, reader.u64()?, reader.u8()?);
        let command = match reader.u8()? {
            0 => FlowCommand::Add,
            1 => FlowCommand::Modify,
            2 => FlowCommand::ModifyStrict,
            3 => FlowCommand::Delete,
            4 => FlowCommand::DeleteStrict,
            _ => return Err(CodecError::Unknown("change of flows")),
        };
        let (idle_timeout, hard_timeout, priority) = (reader.u16()?, reader.u16()?, reader.u16()?);
        reader.skip(4)?;
        let (out_port, out_group, flags) = (reader.u32()?, reader.u32()?, reader.u16()?);
        reader.skip(2)?;
        let matching = Match::read(reader)?;
        let instructions = read_instructions(Reader::new(reader.rest()))?;
        Ok(FlowMod {
            command,
            cookie,
            cookie_mask,
            table,
            idle_timeout,
            hard_timeout,
            priority,
            out_port,
            out_group,
            flags,
            matching,
            instructions,
        })
    }
}

impl GroupMod {
    fn write(&self, writer: &mut Writer) -> Result<(), CodecError> {
        writer.u16(self.command as u16);
        writer.u8(self.kind);
        writer.zeros(1);
        writer.u32(self.group);
        self.buckets.iter().try_for_each(|bucket| bucket.write(writer))
    }

    fn read(reader: &mut Reader<'_>) -> Result<GroupMod, CodecError> {
        let command = match reader.u16()? {
            0 => GroupCommand::Add,
            1 => GroupCommand::Modify,
            2 => GroupCommand::Delete,
            _ => return Err(CodecError::Unknown("change of a group")),
        };
        let kind = reader.u8()?;
        reader.skip(1)?;
        let group = reader.u32()?;
        let mut buckets = Vec::new();
        while !reader.is_empty() {
            buckets.push(Bucket::read(reader)?);
        }
        Ok(GroupMod { command, kind, group, buckets })
    }
}
