//! Tests memory that is shared with a program in the kernel, in a network namespace of its own: what the process writes
//! is what the program answers. That both answer the same is tested where the process's server is, with the command.

#![cfg(feature = "bpf")]

mod conformance;

use std::net::{SocketAddrV6, UdpSocket};
use std::time::Duration;

use trellis_switch::lab::Lab;
use trellis_switch::memory::{KernelMemory, Options};

const MEMORY_BYTES: u64 = 64 << 20;
/// First page of an object of generation 7 that has all of it.
const ENTRY: u64 = 1 << 32 | 4096 << 16 | 7;

fn open(lab: &Lab) -> KernelMemory {
    open_at(lab, None)
}

fn open_at(lab: &Lab, device: Option<&str>) -> KernelMemory {
    let host = lab.host("s1").expect("it is in the plan");
    let options = Options {
        cluster: lab.cluster(),
        home: host.plan().number,
        memory_bytes: MEMORY_BYTES,
        port: conformance::PORT,
        device: device.map(str::to_owned),
    };
    host.run(|| KernelMemory::open(&options)).expect("there are threads").unwrap_or_else(|error| panic!("{error}"))
}

/// Requests 64 bytes of a page, and returns the answer: a header, and the bytes.
fn read(lab: &Lab, page: u64) -> Option<Vec<u8>> {
    read_from(lab, "c1", page)
}

fn read_from(lab: &Lab, client: &str, page: u64) -> Option<Vec<u8>> {
    let (client, server) = (lab.host(client).expect("a host"), lab.host("s1").expect("a host"));
    let from = lab.cluster().address(client.plan().number, 0x80, 0, 77 << 8 | page);
    let to = lab.cluster().address(server.plan().number, conformance::READ, 6, 7 << 48 | page << 12);
    let socket: UdpSocket = client.socket(from, 0).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a time");
    socket.send_to(&[], SocketAddrV6::new(to, conformance::PORT, 0, 0)).expect("it is sent");
    let mut room = [0; 9000];
    let (bytes, whose) = socket.recv_from(&mut room).ok()?;
    assert_eq!(whose.ip(), to, "it comes from the address that was asked");
    Some(room[..bytes].to_vec())
}

#[test]
fn what_the_process_writes_the_program_answers() {
    if !conformance::is_possible("what_the_process_writes_the_program_answers") {
        return;
    }
    for switch in ["user", "bpf"] {
        let lab = conformance::lab(switch, "memory", 1, 1);
        let mut memory = open(&lab);
        assert_eq!((memory.device(), memory.bytes_in_kernel()), ("e0", 0));
        memory.zero(0..8 * 4096);
        assert_eq!(memory.bytes_in_kernel(), 16 << 20);
        let text: Vec<u8> = (0..4096_u32).map(|at| ((at * 5) >> 1) as u8).collect();
        memory.write(3 * 4096, &text);
        memory.publish(3, &mut [ENTRY].into_iter());
        let answer = read(&lab, 3).expect("it is answered without a process");
        assert_eq!(&answer[..4], &[1, 0, 0x21, 0], "version, status, flags");
        assert_eq!(&answer[32..], &text[..64]);
        let outcomes = memory.watch().outcomes().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((outcomes.reads, outcomes.answered()), (1, 1), "{outcomes:?}");
    }
}

#[test]
fn a_client_of_the_same_host_is_answered_over_the_loopback() {
    if !conformance::is_possible("a_client_of_the_same_host_is_answered_over_the_loopback") {
        return;
    }
    let lab = conformance::lab("user", "memory-lo", 1, 1);
    let mut memory = open_at(&lab, Some("lo"));
    memory.zero(0..4096);
    memory.write(0, &[3; 64]);
    memory.publish(0, &mut [ENTRY].into_iter());
    assert_eq!(read_from(&lab, "s1", 0).expect("an answer")[32..], [3; 64]);
    assert_eq!(memory.watch().outcomes().unwrap_or_else(|error| panic!("{error}")).reads, 1);
}

#[test]
fn the_program_is_gone_with_the_memory() {
    if !conformance::is_possible("the_program_is_gone_with_the_memory") {
        return;
    }
    let lab = conformance::lab("user", "memory-gone", 1, 1);
    let mut first = open(&lab);
    first.zero(0..4096);
    first.write(0, &[1; 64]);
    first.publish(0, &mut [ENTRY].into_iter());
    assert_eq!(read(&lab, 0).expect("an answer")[32..], [1; 64]);
    drop(first);
    let mut second = open(&lab);
    second.zero(0..4096);
    second.write(0, &[2; 64]);
    second.publish(0, &mut [ENTRY].into_iter());
    assert_eq!(read(&lab, 0).expect("an answer")[32..], [2; 64]);
    assert_eq!(second.watch().outcomes().unwrap_or_else(|error| panic!("{error}")).reads, 1);
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    let options = Options {
        cluster: trellis_switch::Cluster::new(5),
        home: 1,
        memory_bytes: MEMORY_BYTES,
        port: conformance::PORT,
        device: Some("none0".to_owned()),
    };
    if !conformance::is_possible("an_interface_that_is_not_there_is_named") {
        return;
    }
    let Err(error) = KernelMemory::open(&options) else { panic!("there is no such interface") };
    let sentence = error.to_string();
    assert!(sentence.starts_with("cannot put the program of the memory server at none0: "), "{sentence}");
}
