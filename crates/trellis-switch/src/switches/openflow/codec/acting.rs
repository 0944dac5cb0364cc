//! What happens to packets: actions, instructions, and buckets of groups.

use super::CodecError;
use super::bytes::{Reader, Writer};
use super::matching::Oxm;

/// Reserved port numbers, which are not ports of hosts.
pub mod port {
    /// The port at which the packet arrived.
    pub const IN_PORT: u32 = 0xffff_fff8;
    /// The first table, for packets that a controller sends.
    pub const TABLE: u32 = 0xffff_fff9;
    /// The controller.
    pub const CONTROLLER: u32 = 0xffff_fffd;
    /// Any port, in requests.
    pub const ANY: u32 = 0xffff_ffff;
}

/// The number of bytes that sends a whole packet to a controller.
pub const WHOLE: u16 = 0xffff;

const OUTPUT: u16 = 0;
const GROUP: u16 = 22;
const SET_FIELD: u16 = 25;
/// The header of an action or an instruction: kind and length.
const HEADER_BYTES: usize = 4;

/// An action on a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Output to a port; to a controller, at most this many bytes.
    Output {
        /// The port.
        port: u32,
        /// The maximum number of bytes for a controller.
        bytes_max: u16,
    },
    /// Processing by a group.
    Group(u32),
    /// Sets a field.
    SetField(Oxm),
    /// Another one.
    Other {
        /// Its number.
        kind: u16,
        /// What follows its length.
        bytes: Vec<u8>,
    },
}

impl Action {
    /// Output to a port.
    #[must_use]
    pub const fn output(port: u32) -> Action {
        Action::Output { port, bytes_max: 0 }
    }

    fn write(&self, writer: &mut Writer) -> Result<(), CodecError> {
        let begin = writer.len();
        let kind = match self {
            Action::Output { .. } => OUTPUT,
            Action::Group(_) => GROUP,
            Action::SetField(_) => SET_FIELD,
            Action::Other { kind, .. } => *kind,
        };
        writer.u16(kind);
        writer.u16(0);
        match self {
            Action::Output { port, bytes_max } => {
                writer.u32(*port);
                writer.u16(*bytes_max);
            }
            Action::Group(group) => writer.u32(*group),
            Action::SetField(field) => field.write(writer)?,
            Action::Other { bytes, .. } => writer.put(bytes),
        }
        writer.pad(begin);
        writer.set_u16(begin + 2, writer.len() - begin)
    }

    fn read(reader: &mut Reader<'_>) -> Result<Action, CodecError> {
        let (kind, length) = (reader.u16()?, whole_words(reader.u16()?)?);
        let mut body = reader.body(length, HEADER_BYTES)?;
        Ok(match kind {
            OUTPUT => Action::Output { port: body.u32()?, bytes_max: body.u16()? },
            GROUP => Action::Group(body.u32()?),
            SET_FIELD => Action::SetField(Oxm::read(&mut body)?),
            kind => Action::Other { kind, bytes: body.rest().to_vec() },
        })
    }
}

/// Actions and instructions are padded to eight bytes.
fn whole_words(length: u16) -> Result<u16, CodecError> {
    if length.is_multiple_of(8) { Ok(length) } else { Err(CodecError::Length) }
}

pub(super) fn write_actions(actions: &[Action], writer: &mut Writer) -> Result<(), CodecError> {
    actions.iter().try_for_each(|action| action.write(writer))
}

pub(super) fn read_actions(mut reader: Reader<'_>) -> Result<Vec<Action>, CodecError> {
    let mut actions = Vec::new();
    while !reader.is_empty() {
        actions.push(Action::read(&mut reader)?);
    }
    Ok(actions)
}

const GOTO_TABLE: u16 = 1;
const WRITE_METADATA: u16 = 2;
const WRITE_ACTIONS: u16 = 3;
const APPLY_ACTIONS: u16 = 4;
const CLEAR_ACTIONS: u16 = 5;

/// An instruction of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// Continue in a later table.
    GotoTable(u8),
    /// Set metadata for later tables.
    WriteMetadata {
        /// The value.
        value: u64,
        /// The bits that are set.
        mask: u64,
    },
    /// Add actions for the end.
    WriteActions(Vec<Action>),
    /// Apply actions at once.
    ApplyActions(Vec<Action>),
    /// Clear the actions for the end.
    ClearActions,
    /// Another one.
    Other {
        /// Its number.
        kind: u16,
        /// What follows its length.
        bytes: Vec<u8>,
    },
}

impl Instruction {
    fn write(&self, writer: &mut Writer) -> Result<(), CodecError> {
        let begin = writer.len();
        let kind = match self {
            Instruction::GotoTable(_) => GOTO_TABLE,
            Instruction::WriteMetadata { .. } => WRITE_METADATA,
            Instruction::WriteActions(_) => WRITE_ACTIONS,
            Instruction::ApplyActions(_) => APPLY_ACTIONS,
            Instruction::ClearActions => CLEAR_ACTIONS,
            Instruction::Other { kind, .. } => *kind,
        };
        writer.u16(kind);
        writer.u16(0);
        match self {
            Instruction::GotoTable(table) => writer.u8(*table),
            Instruction::WriteMetadata { value, mask } => {
                writer.zeros(4);
                writer.u64(*value);
                writer.u64(*mask);
            }
            Instruction::WriteActions(actions) | Instruction::ApplyActions(actions) => {
                writer.zeros(4);
                write_actions(actions, writer)?;
            }
            Instruction::ClearActions => writer.zeros(4),
            Instruction::Other { bytes, .. } => writer.put(bytes),
        }
        writer.pad(begin);
        writer.set_u16(begin + 2, writer.len() - begin)
    }

    fn read(reader: &mut Reader<'_>) -> Result<Instruction, CodecError> {
        let (kind, length) = (reader.u16()?, whole_words(reader.u16()?)?);
        let mut body = reader.body(length, HEADER_BYTES)?;
        Ok(match kind {
            GOTO_TABLE => Instruction::GotoTable(body.u8()?),
            WRITE_METADATA => {
                body.skip(4)?;
                Instruction::WriteMetadata { value: body.u64()?, mask: body.u64()? }
            }
            WRITE_ACTIONS | APPLY_ACTIONS => {
                body.skip(4)?;
                let actions = read_actions(body)?;
                match kind {
                    WRITE_ACTIONS => Instruction::WriteActions(actions),
                    _ => Instruction::ApplyActions(actions),
                }
            }
            CLEAR_ACTIONS => Instruction::ClearActions,
            kind => Instruction::Other { kind, bytes: body.rest().to_vec() },
        })
    }
}

pub(super) fn write_instructions(instructions: &[Instruction], writer: &mut Writer) -> Result<(), CodecError> {
    instructions.iter().try_for_each(|instruction| instruction.write(writer))
}

pub(super) fn read_instructions(mut reader: Reader<'_>) -> Result<Vec<Instruction>, CodecError> {
    let mut instructions = Vec::new();
    while !reader.is_empty() {
        instructions.push(Instruction::read(&mut reader)?);
    }
    Ok(instructions)
}

/// One of the alternatives or copies of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Its share, in groups that select.
    pub weight: u16,
    /// The port on whose state it depends, or [`port::ANY`].
    pub watch_port: u32,
    /// The group on whose state it depends, or [`port::ANY`].
    pub watch_group: u32,
    /// Its actions.
    pub actions: Vec<Action>,
}

impl Bucket {
    /// A bucket of a group in which every bucket gets a copy.
    #[must_use]
    pub fn of(actions: Vec<Action>) -> Bucket {
        Bucket { weight: 0, watch_port: port::ANY, watch_group: port::ANY, actions }
    }

    pub(super) fn write(&self, writer: &mut Writer) -> Result<(), CodecError> {
        let begin = writer.len();
        writer.u16(0);
        writer.u16(self.weight);
        writer.u32(self.watch_port);
        writer.u32(self.watch_group);
        writer.zeros(4);
        write_actions(&self.actions, writer)?;
        writer.set_u16(begin, writer.len() - begin)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Bucket, CodecError> {
        let length = reader.u16()?;
        let mut body = reader.body(length, 2)?;
        let (weight, watch_port, watch_group) = (body.u16()?, body.u32()?, body.u32()?);
        body.skip(4)?;
        Ok(Bucket { weight, watch_port, watch_group, actions: read_actions(body)? })
    }
}
