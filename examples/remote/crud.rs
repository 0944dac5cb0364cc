//! Objects in the memory of another machine: made, written, read, counted in, and deleted. `crud.c` and `crud.cpp` do the
//! same, and print the same.
//!
//! Try it in a lab of this machine, from the folder of this repository:
//!
//!     cargo build --example crud
//!     trellis lab up --clients 1 --servers 1
//!     trellis lab run s1 -- trellis serve --memory 64MiB &
//!     trellis lab run c1 -- target/debug/examples/crud s1
//!     trellis lab down
//!
//! The argument is the server: its number in the cluster, or its name in a lab (`s1` is number 0x1001).

use std::process::ExitCode;

use trellis::remote::{Call, Client, ClientOptions, Host, HostPrefix, PAGE_BYTES};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("crud: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let prefix =
        std::env::var("TRELLIS_PREFIX").map_err(|_| "set TRELLIS_PREFIX to this host's fdCC:CCCC:HHHH::/48")?;
    let prefix: HostPrefix = prefix.parse()?;
    let server =
        server(std::env::args().nth(1).as_deref()).ok_or("usage: crud SERVER, a number such as 4097, or s1")?;
    let mut client = Client::open(ClientOptions::new(prefix))?;

    let object = client.create(server, 1 << 20)?;
    println!("a mebibyte of zeros is at {object}");

    let text = b"memory is a place, and a place has an address";
    client.write(object, text)?;
    let mut read = vec![0; text.len()];
    client.read(object, &mut read)?;
    println!("it begins: {}", String::from_utf8_lossy(&read));

    // Several calls at the same time, of any kind, each with an end of its own.
    let half = object.plus(1 << 19).ok_or("the object is longer than that")?;
    let ends = client.batch(&mut [
        Call::Write { pointer: half, bytes: b"left" },
        Call::Write { pointer: half.plus(4).ok_or("it is inside")?, bytes: b"right" },
        Call::Inquire { pointer: half },
        Call::Read { pointer: half.plus(1 << 19).ok_or("an address")?, bytes: &mut [0] },
    ]);
    println!("{} of {} calls were done", ends.iter().filter(|end| end.is_ok()).count(), ends.len());
    let mut both = [0; 9];
    client.read(half, &mut both)?;
    println!("in the middle: {}", String::from_utf8_lossy(&both));

    // Whole words can be changed by what they are; each is done once, however often its datagrams arrive.
    let word = half.plus(64).ok_or("it is inside")?;
    client.fetch_add(word, 40)?;
    client.compare_swap(word, 40, 42)?;
    println!("the word is {}", client.fetch_add(word, 0)?);

    // Five datagrams, in no order; and a page in one step, which it is also where other servers keep copies.
    let place = object.plus(1_000).ok_or("it is inside")?;
    client.write(place, &[7; 20_000])?;
    client.write_whole(object.plus(PAGE_BYTES).ok_or("it is inside")?, &[8; PAGE_BYTES as usize])?;
    let mut bytes = vec![0; 20_000];
    client.read(place, &mut bytes)?;
    let count = |value: u8| bytes.iter().filter(|byte| **byte == value).count();
    println!("{} sevens and {} eights are there", count(7), count(8));

    let (first, length) = client.inquire(place)?;
    println!("that is in {length} bytes at {first}");
    let welcome = client.hello(server)?;
    println!("this host has {} of {} bytes", welcome.used_bytes, welcome.quota_bytes);

    client.delete(object)?;
    match client.read(object, &mut read) {
        Ok(()) => Err("a deleted object was read".into()),
        Err(error) => {
            println!("afterwards: {error}");
            Ok(())
        }
    }
}

fn server(text: Option<&str>) -> Option<Host> {
    let text = text?;
    match text.strip_prefix('s') {
        Some(number) => number.parse().ok().map(|number: u16| Host(0x1000 + number)),
        None => text.parse().ok().map(Host),
    }
}
