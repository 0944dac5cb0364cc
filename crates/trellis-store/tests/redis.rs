//! Tests the store `redis` on a real server.

mod conformance;
mod redis_server;

use redis_server::RedisServer;
use trellis_store::open;

#[test]
fn redis_is_a_store() {
    let Some(server) = RedisServer::start("redis_is_a_store", &[]) else { return };
    conformance::run("redis", &|| open(&server.url()).unwrap());
    let socket = format!("redis+unix:{}", server.socket().display());
    conformance::run_some("redis by a socket", &|| open(&socket).unwrap(), "steps");
}
