//! Serves a store through the Redis protocol: `serve URL ADDRESS`.

use trellis_store::open;
use trellis_store::resp::{Options, RespServer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "embedded:".to_owned());
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let server = RespServer::bind(&address, open(&url)?, &Options::default())?;
    println!("{url} at {}", server.address());
    server.start()?.wait();
    Ok(())
}
