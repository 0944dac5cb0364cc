//! A scripted switch: it speaks OpenFlow, stores the flows that it receives, and forwards nothing.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use trellis_switch::switches::openflow::codec::{
    Answer, Body, Features, FlowCommand, FlowMod, FlowStats, Match, Message, NO_BUFFER, PacketIn, PacketOut, PortStats,
    Question, TABLE_FULL, message_bytes, port,
};

/// How it behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    pub(crate) version: u8,
    pub(crate) datapath: u64,
    pub(crate) tables: u8,
    /// A table that accepts no flow that ends automatically.
    pub(crate) full_table: Option<u8>,
}

pub(crate) const WELL: Script = Script { version: 4, datapath: 0xbb, tables: 254, full_table: None };

/// What it has received, over all of its connections.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) flows: Vec<FlowMod>,
    /// The order of arrival: `flow`, `barrier`, `packet`.
    pub(crate) order: Vec<&'static str>,
    pub(crate) packets: Vec<PacketOut>,
    /// It answers nothing from now on.
    pub(crate) is_mute: bool,
    /// It hangs up when it is asked whether it has handled everything.
    pub(crate) hangs_up: bool,
    /// Packets that arrived at every port and that no flow counts.
    pub(crate) uncounted: u64,
}

/// A connection of the switch.
pub(crate) struct Scripted {
    stream: TcpStream,
    thread: Option<JoinHandle<()>>,
}

impl Scripted {
    pub(crate) fn connect(controller: SocketAddr, script: Script, received: &Arc<Mutex<Received>>) -> Scripted {
        Scripted::try_connect(controller, script, received).expect("the controller listens")
    }

    /// `None` if no controller listens.
    pub(crate) fn try_connect(
        controller: SocketAddr,
        script: Script,
        received: &Arc<Mutex<Received>>,
    ) -> Option<Scripted> {
        let stream = TcpStream::connect(controller).ok()?;
        let mut talking = Talking { stream: stream.try_clone().unwrap(), script, received: Arc::clone(received) };
        let thread = std::thread::spawn(move || talking.run());
        Some(Scripted { stream, thread: Some(thread) })
    }

    /// Sends a packet to the controller, as a flow with this cookie does.
    pub(crate) fn hand_over(&mut self, cookie: u64, in_port: u32, data: Vec<u8>) {
        send(&mut self.stream, 0, packet_in(cookie, in_port, data));
    }

    /// Waits until the controller ends the connection.
    pub(crate) fn until_hung_up(mut self) {
        self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        self.thread.take().map(JoinHandle::join);
    }
}

fn packet_in(cookie: u64, in_port: u32, data: Vec<u8>) -> Body {
    let matching = Match::any().with(trellis_switch::switches::openflow::codec::Field::InPort, in_port.into());
    let bytes = data.len() as u16;
    Body::PacketIn(PacketIn { buffer: NO_BUFFER, bytes, reason: 1, table: 0, cookie, matching, data })
}

fn send(stream: &mut TcpStream, number: u32, body: Body) {
    // The controller may have gone.
    let _ = stream.write_all(&Message { number, body }.encode().unwrap());
}

struct Talking {
    stream: TcpStream,
    script: Script,
    received: Arc<Mutex<Received>>,
}

impl Talking {
    fn run(&mut self) {
        send(&mut self.stream, 0, Body::Hello { version: self.script.version, versions: None });
        let mut bytes = Vec::new();
        let mut buffer = [0; 65_536];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(count) if count > 0 => bytes.extend_from_slice(&buffer[..count]),
                _ => return,
            }
            while let Some(length) = message_bytes(&bytes).unwrap().filter(|&length| length <= bytes.len()) {
                let message = Message::decode(&bytes[..length]).unwrap();
                bytes.drain(..length);
                self.hear(message);
            }
        }
    }

    fn hear(&mut self, Message { number, body }: Message) {
        if self.received.lock().unwrap().is_mute {
            return;
        }
        let answer = match body {
            Body::FeaturesRequest => Body::FeaturesReply(Features {
                datapath: self.script.datapath,
                tables: self.script.tables,
                ..Features::default()
            }),
            Body::BarrierRequest => {
                self.received.lock().unwrap().order.push("barrier");
                Body::BarrierReply
            }
            Body::FlowMod(change) => match self.change(change) {
                true => return,
                false => Body::Error { kind: TABLE_FULL.0, code: TABLE_FULL.1, data: Vec::new() },
            },
            Body::PacketOut(packet) if packet.in_port == port::CONTROLLER => {
                if self.received.lock().unwrap().hangs_up {
                    // The controller may have done so before.
                    let _ = self.stream.shutdown(Shutdown::Both);
                    return;
                }
                packet_in(u64::MAX, port::CONTROLLER, packet.data)
            }
            Body::PacketOut(packet) => {
                let mut received = self.received.lock().unwrap();
                received.order.push("packet");
                return received.packets.push(packet);
            }
            Body::MultipartRequest(question) => {
                Body::MultipartReply { answer: self.answer(&question), has_more: false }
            }
            _ => return,
        };
        send(&mut self.stream, number, answer);
    }

    /// Applies a change of flows; returns whether it is accepted.
    fn change(&mut self, change: FlowMod) -> bool {
        let mut received = self.received.lock().unwrap();
        received.order.push("flow");
        let place = |flow: &FlowMod| (flow.table, flow.priority, flow.matching.clone());
        match change.command {
            FlowCommand::Add if self.script.full_table == Some(change.table) && change.hard_timeout > 0 => {
                return false;
            }
            FlowCommand::Add => {
                received.flows.retain(|flow| place(flow) != place(&change));
                received.flows.push(change);
            }
            FlowCommand::Delete => received.flows.retain(|flow| {
                let is_table = change.table == 0xff || change.table == flow.table;
                !is_table || flow.cookie & change.cookie_mask != change.cookie
            }),
            FlowCommand::DeleteStrict => received.flows.retain(|flow| place(flow) != place(&change)),
            other => panic!("{other:?} is never said"),
        }
        true
    }

    fn answer(&self, question: &Question) -> Answer {
        match question {
            Question::PortStats(port) => {
                let packets_in = self.received.lock().unwrap().uncounted;
                Answer::PortStats(vec![PortStats { port: *port, packets_in, ..PortStats::default() }])
            }
            Question::Flows(_) => Answer::Flows(Vec::<FlowStats>::new()),
            other => panic!("{other:?} is never asked"),
        }
    }
}
