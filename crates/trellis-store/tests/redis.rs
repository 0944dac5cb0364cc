//! Tests the store `redis` on a real server.

mod conformance;

use trellis_store::open;
use trellis_testing::redis_server::RedisServer;

#[test]
fn redis_is_a_store() {
    let Some(server) = RedisServer::start("redis_is_a_store", &[]) else { return };
    conformance::run("redis", &|| open(&server.url()).unwrap());
    let socket = server.socket_url();
    conformance::run_some("redis by a socket", &|| open(&socket).unwrap(), "steps");
}
