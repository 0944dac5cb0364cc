//! Objects in the memory of another machine: made, written, read, counted in, and deleted.
//!
//! Try it in a lab of this machine, which needs root, from the folder of this repository:
//!
//!     cargo build --example crud
//!     trellis lab up --clients 1 --servers 1
//!     trellis lab run s1 -- trellis serve --memory 64MiB &
//!     trellis lab run c1 -- target/debug/examples/crud s1
//!     trellis lab down
//!
//! The argument is the server: its number in the cluster, or its name in a lab (`s1` is number 0x1001).

use trellis::remote::{Client, ClientOptions, Host, HostPrefix};

fn main() -> Result<(), Box<dyn std::error::Error>> {
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

    // Two places at the same time.
    let half = object.plus(1 << 19).ok_or("the object is longer than that")?;
    client.write_many(&[(half, b"left"), (half.plus(4).ok_or("it is inside")?, b"right")])?;

    // Whole words can be changed by what they are; each is done once, however often its datagrams arrive.
    let word = half.plus(64).ok_or("it is inside")?;
    client.fetch_add(word, 40)?;
    client.compare_swap(word, 40, 42)?;
    println!("the word is {}", client.fetch_add(word, 0)?);

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
