//! Requests with answers in several messages: the switch's description, the counts of its flows and ports, its ports.

use super::acting::{Instruction, port, read_instructions, write_instructions};
use super::bytes::{Reader, Writer, text};
use super::matching::Match;
use super::{ALL_TABLES, CodecError};

const DESCRIPTION: u16 = 0;
const FLOW: u16 = 1;
const PORT_STATS: u16 = 4;
const PORT_DESCRIPTION: u16 = 13;
const TEXT_BYTES: usize = 256;
const SERIAL_BYTES: usize = 32;
const NAME_BYTES: usize = 16;
/// More answers follow.
pub(super) const MORE: u16 = 1;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// A request for the switch's description.
    Description,
    /// A request for the counts of these flows.
    Flows(FlowQuestion),
    /// A request for the counts of a port, or of every one ([`port::ANY`]).
    PortStats(u32),
    /// A request for the ports.
    Ports,
    /// Another one.
    Other {
        /// Its number.
        kind: u16,
        /// What follows.
        bytes: Vec<u8>,
    },
}

/// Which flows are requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowQuestion {
    /// In this table, or [`ALL_TABLES`].
    pub table: u8,
    /// With output to this port, or [`port::ANY`].
    pub out_port: u32,
    /// With output to this group, or [`port::ANY`].
    pub out_group: u32,
    /// With this cookie, in the bits of the mask.
    pub cookie: u64,
    /// The significant bits of the cookie.
    pub cookie_mask: u64,
    /// With this match or a more specific one.
    pub matching: Match,
}

impl FlowQuestion {
    /// Flows with a cookie, in every table.
    #[must_use]
    pub fn marked(cookie: u64, cookie_mask: u64) -> FlowQuestion {
        FlowQuestion {
            table: ALL_TABLES,
            out_port: port::ANY,
            out_group: port::ANY,
            cookie,
            cookie_mask,
            matching: Match::any(),
        }
    }
}

/// An answer, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The switch's description.
    Description(Description),
    /// Flows with their counts.
    Flows(Vec<FlowStats>),
    /// Ports with their counts.
    PortStats(Vec<PortStats>),
    /// Ports.
    Ports(Vec<PortDescription>),
    /// Another one.
    Other {
        /// Its number.
        kind: u16,
        /// What follows.
        bytes: Vec<u8>,
    },
}

/// The description of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The manufacturer.
    pub manufacturer: String,
    /// The hardware.
    pub hardware: String,
    /// The software.
    pub software: String,
    /// Its serial number.
    pub serial: String,
    /// A name for people.
    pub datapath: String,
}

/// A flow and its counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStats {
    /// Its table.
    pub table: u8,
    /// How long it has existed: seconds, and additional nanoseconds.
    pub age: (u32, u32),
    /// Its priority.
    pub priority: u16,
    /// Its time-out without packets, in seconds.
    pub idle_timeout: u16,
    /// Its time-out, in seconds.
    pub hard_timeout: u16,
    /// Its flags.
    pub flags: u16,
    /// Its cookie.
    pub cookie: u64,
    /// The number of packets.
    pub packets: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// Its match.
    pub matching: Match,
    /// Its instructions.
    pub instructions: Vec<Instruction>,
}

/// The counts of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Its number.
    pub port: u32,
    /// Packets that arrived.
    pub packets_in: u64,
    /// Packets that were sent.
    pub packets_out: u64,
    /// Bytes that arrived.
    pub bytes_in: u64,
    /// Bytes that were sent.
    pub bytes_out: u64,
    /// Packets lost on reception and on sending.
    pub dropped: [u64; 2],
    /// The errors: in, out, frames, overruns, checksums, collisions.
    pub errors: [u64; 6],
    /// How long it has existed: seconds, and additional nanoseconds.
    pub age: (u32, u32),
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortDescription {
    /// Its number.
    pub port: u32,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// A name for people.
    pub name: String,
    /// Its configuration.
    pub config: u32,
    /// Its state; the lowest bit says that there is no link.
    pub state: u32,
    /// Speeds, and what can be negotiated.
    pub features: [u32; 6],
}

impl Question {
    pub(super) fn write(&self, writer: &mut Writer) -> Result<(), CodecError> {
        let kind = match self {
            Question::Description => DESCRIPTION,
            Question::Flows(_) => FLOW,
            Question::PortStats(_) => PORT_STATS,
            Question::Ports => PORT_DESCRIPTION,
            Question::Other { kind, .. } => *kind,
        };
        writer.u16(kind);
        writer.u16(0);
        writer.zeros(4);
        match self {
            Question::Description | Question::Ports => Ok(()),
            Question::Flows(flows) => flows.write(writer),
            Question::PortStats(port) => {
                writer.u32(*port);
                writer.zeros(4);
                Ok(())
            }
            Question::Other { bytes, .. } => {
                writer.put(bytes);
                Ok(())
            }
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Question, CodecError> {
        let kind = reader.u16()?;
        reader.skip(6)?;
        Ok(match kind {
            DESCRIPTION => Question::Description,
            FLOW => Question::Flows(FlowQuestion::read(reader)?),
            PORT_STATS => {
                let port = reader.u32()?;
                reader.skip(4)?;
                Question::PortStats(port)
            }
            PORT_DESCRIPTION => Question::Ports,
            kind => Question::Other { kind, bytes: reader.rest().to_vec() },
        })
    }
}

impl FlowQuestion {
    fn write(&self, writer: &mut Writer) -> Result<(), CodecError> {
        writer.u8(self.table);
        writer.zeros(3);
        writer.u32(self.out_port);
        writer.u32(self.out_group);
        writer.zeros(4);
        writer.u64(self.cookie);
        writer.u64(self.cookie_mask);
        self.matching.write(writer)
    }

    fn read(reader: &mut Reader<'_>) -> Result<FlowQuestion, CodecError> {
        let table = reader.u8()?;
        reader.skip(3)?;
        let (out_port, out_group) = (reader.u32()?, reader.u32()?);
        reader.skip(4)?;
        let (cookie, cookie_mask) = (reader.u64()?, reader.u64()?);
        Ok(FlowQuestion { table, out_port, out_group, cookie, cookie_mask, matching: Match::read(reader)? })
    }
}

impl Answer {
    pub(super) fn write(&self, has_more: bool, writer: &mut Writer) -> Result<(), CodecError> {
        let kind = match self {
            Answer::Description(_) => DESCRIPTION,
            Answer::Flows(_) => FLOW,
            Answer::PortStats(_) => PORT_STATS,
            Answer::Ports(_) => PORT_DESCRIPTION,
            Answer::Other { kind, .. } => *kind,
        };
        writer.u16(kind);
        writer.u16(if has_more { MORE } else { 0 });
        writer.zeros(4);
        match self {
            Answer::Description(description) => description.write(writer),
            Answer::Flows(flows) => flows.iter().try_for_each(|flow| flow.write(writer))?,
            Answer::PortStats(ports) => ports.iter().for_each(|port| port.write(writer)),
            Answer::Ports(ports) => ports.iter().for_each(|port| port.write(writer)),
            Answer::Other { bytes, .. } => writer.put(bytes),
        }
        Ok(())
    }

    /// The answer, and whether more of it follows.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<(Answer, bool), CodecError> {
        let (kind, flags) = (reader.u16()?, reader.u16()?);
        reader.skip(4)?;
        let answer = match kind {
            DESCRIPTION => Answer::Description(Description::read(reader)?),
            FLOW => Answer::Flows(all(reader, FlowStats::read)?),
            PORT_STATS => Answer::PortStats(all(reader, PortStats::read)?),
            PORT_DESCRIPTION => Answer::Ports(all(reader, PortDescription::read)?),
            kind => Answer::Other { kind, bytes: reader.rest().to_vec() },
        };
        Ok((answer, flags & MORE != 0))
    }
}

fn all<'a, T>(
    reader: &mut Reader<'a>,
    read: impl Fn(&mut Reader<'a>) -> Result<T, CodecError>,
) -> Result<Vec<T>, CodecError> {
    let mut found = Vec::new();
    while !reader.is_empty() {
        found.push(read(reader)?);
    }
    Ok(found)
}

impl Description {
    fn write(&self, writer: &mut Writer) {
        for part in [&self.manufacturer, &self.hardware, &self.software] {
            writer.text(part, TEXT_BYTES);
        }
        writer.text(&self.serial, SERIAL_BYTES);
        writer.text(&self.datapath, TEXT_BYTES);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Description, CodecError> {
        Ok(Description {
            manufacturer: text(reader.take(TEXT_BYTES)?),
            hardware: text(reader.take(TEXT_BYTES)?),
            software: text(reader.take(TEXT_BYTES)?),
            serial: text(reader.take(SERIAL_BYTES)?),
            datapath: text(reader.take(TEXT_BYTES)?),
        })
    }
}

impl FlowStats {
    fn write(&self, writer: &mut Writer) -> Result<(), CodecError> {
        let begin = writer.len();
        writer.u16(0);
        writer.u8(self.table);
        writer.zeros(1);
        writer.u32(self.age.0);
        writer.u32(self.age.1);
        for number in [self.priority, self.idle_timeout, self.hard_timeout, self.flags] {
            writer.u16(number);
        }
        writer.zeros(4);
        for number in [self.cookie, self.packets, self.bytes] {
            writer.u64(number);
        }
        self.matching.write(writer)?;
        write_instructions(&self.instructions, writer)?;
        writer.set_u16(begin, writer.len() - begin)
    }

    fn read(reader: &mut Reader<'_>) -> Result<FlowStats, CodecError> {
        let length = reader.u16()?;
        let mut body = reader.body(length, 2)?;
        let table = body.u8()?;
        body.skip(1)?;
        let age = (body.u32()?, body.u32()?);
        let (priority, idle_timeout, hard_timeout, flags) = (body.u16()?, body.u16()?, body.u16()?, body.u16()?);
        body.skip(4)?;
        let (cookie, packets, bytes) = (body.u64()?, body.u64()?, body.u64()?);
        let matching = Match::read(&mut body)?;
        let instructions = read_instructions(body)?;
        Ok(FlowStats {
            table,
            age,
            priority,
            idle_timeout,
            hard_timeout,
            flags,
            cookie,
            packets,
            bytes,
            matching,
            instructions,
        })
    }
}

impl PortStats {
    fn write(&self, writer: &mut Writer) {
        writer.u32(self.port);
        writer.zeros(4);
        let counts = [self.packets_in, self.packets_out, self.bytes_in, self.bytes_out];
        counts.iter().chain(&self.dropped).chain(&self.errors).for_each(|count| writer.u64(*count));
        writer.u32(self.age.0);
        writer.u32(self.age.1);
    }

    fn read(reader: &mut Reader<'_>) -> Result<PortStats, CodecError> {
        let port = reader.u32()?;
        reader.skip(4)?;
        let mut counts = [0; 12];
        for count in &mut counts {
            *count = reader.u64()?;
        }
        let [packets_in, packets_out, bytes_in, bytes_out, lost_in, lost_out, errors @ ..] = counts;
        let (dropped, age) = ([lost_in, lost_out], (reader.u32()?, reader.u32()?));
        Ok(PortStats { port, packets_in, packets_out, bytes_in, bytes_out, dropped, errors, age })
    }
}

impl PortDescription {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.u32(self.port);
        writer.zeros(4);
        writer.put(&self.mac);
        writer.zeros(2);
        writer.text(&self.name, NAME_BYTES);
        writer.u32(self.config);
        writer.u32(self.state);
        self.features.iter().for_each(|feature| writer.u32(*feature));
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<PortDescription, CodecError> {
        let port = reader.u32()?;
        reader.skip(4)?;
        let mac = reader.array()?;
        reader.skip(2)?;
        let name = text(reader.take(NAME_BYTES)?);
        let (config, state) = (reader.u32()?, reader.u32()?);
        let mut features = [0; 6];
        for feature in &mut features {
            *feature = reader.u32()?;
        }
        Ok(PortDescription { port, mac, name, config, state, features })
    }
}
