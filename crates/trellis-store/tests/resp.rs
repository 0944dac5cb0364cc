//! Tests the front end, with our own client and with clients of Redis.

mod conformance;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trellis_base::Random;
use trellis_store::resp::{COMMANDS, Options, RespServer, Running};
use trellis_store::{Applied, Key, Kind, StoreError, open};
use trellis_testing::{Folder, Need, redis_server::RedisServer, skip};

fn served(store: &str, options: &Options) -> Running {
    RespServer::bind("127.0.0.1:0", open(store).unwrap(), options).unwrap().start().unwrap()
}

fn client(server: &Running) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Sends bytes, and compares the answer.
fn exchange(stream: &mut TcpStream, bytes: &[u8], expected: &str) {
    stream.write_all(bytes).unwrap();
    let mut answer = vec![0; expected.len()];
    let mut read = 0;
    while read < answer.len() {
        match stream.read(&mut answer[read..]) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&answer[..read])),
        }
    }
    assert_eq!(String::from_utf8_lossy(&answer[..read]), expected, "{}", String::from_utf8_lossy(bytes));
}

#[test]
fn a_store_behind_the_front_end_is_a_store() {
    let server = served("embedded:", &Options::default());
    let url = format!("redis://{}", server.address());
    conformance::run("embedded behind resp", &|| open(&url).unwrap());
    let threads = served("embedded:", &Options { threads: Some(3), ..Options::default() });
    let url = format!("redis://{}", threads.address());
    conformance::run_some("embedded behind resp with three threads", &|| open(&url).unwrap(), "every");
}

#[test]
fn a_client_beyond_the_limit_hears_why_it_is_refused_and_is_counted() {
    let server = served("embedded:", &Options { clients_max: 1, ..Options::default() });
    let mut first = client(&server);
    exchange(&mut first, b"PING\r\n", "+PONG\r\n");
    let mut answer = String::new();
    client(&server).read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "-ERR max number of clients reached (1); close some and try again\r\n");
    first.write_all(b"INFO\r\nQUIT\r\n").unwrap();
    let mut info = String::new();
    first.read_to_string(&mut info).unwrap();
    assert!(info.contains("\r\nrejected_connections:1\r\n"), "{info}");
}

#[test]
fn a_store_elsewhere_is_served_too() {
    let test = "a_store_elsewhere_is_served_too";
    let Some(redis) = RedisServer::start(test, &[]) else { return };
    let server = served(&redis.url(), &Options::default());
    let url = format!("redis://{}", server.address());
    for part in ["steps see", "guard", "every token", "numbered"] {
        conformance::run_some("redis behind resp", &|| open(&url).unwrap(), part);
    }
    exchange(&mut client(&server), b"SET a 1\r\nINCR a\r\nMULTI\r\n", "+OK\r\n:2\r\n-ERR transactions need");
}

#[test]
fn commands_mean_what_they_mean_in_redis() {
    let server = served("embedded:", &Options::default());
    let redis = RedisServer::start("commands_mean_what_they_mean_in_redis", &[]);
    let script = include_str!("resp/script.txt");
    for line in script.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (request, expected) = line.split_once(" -> ").expect("a request and its answer");
        let expected = expected.replace("\\r\\n", "\r\n") + "\r\n";
        exchange(&mut client(&server), format!("{request}\r\n").as_bytes(), &expected);
        // The script's expectations hold for Redis too.
        if let Some(redis) = &redis {
            let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            exchange(&mut stream, format!("{request}\r\n").as_bytes(), &expected);
        }
    }
}

#[test]
fn what_is_not_there_is_refused_with_a_sentence() {
    let server = served("embedded:", &Options::default());
    let mut stream = client(&server);
    for (request, expected) in [
        ("LPUSH a b", "-ERR unknown command 'LPUSH'; embedded has strings, hashes and sorted sets\r\n"),
        ("SET a b EX 10", "-ERR keys do not expire here; SET without EX, PX, EXAT, PXAT and KEEPTTL\r\n"),
        ("GET", "-ERR wrong number of arguments for 'get' command\r\n"),
        ("CONFIG SET save x", "-ERR nothing can be configured through this protocol\r\n"),
        ("SCAN 77", "-ERR this cursor is too old; begin again with 0\r\n"),
        ("TRELLIS.APPLY 0 a 1 0 nonsense", "-TRELLIS protocol these bytes are no call"),
    ] {
        exchange(&mut client(&server), format!("{request}\r\n").as_bytes(), expected);
    }
    exchange(&mut stream, b"PING\r\n", "+PONG\r\n");
}

#[test]
fn requests_that_come_together_are_answered_in_order() {
    let server = served("embedded:", &Options::default());
    let mut stream = client(&server);
    let (mut requests, mut answers) = (Vec::new(), String::new());
    for number in 0..5000 {
        requests.extend_from_slice(
            format!("*3\r\n$3\r\nSET\r\n$4\r\nk{:03}\r\n$4\r\n{number:04}\r\n", number % 1000).as_bytes(),
        );
        requests.extend_from_slice(format!("*2\r\n$3\r\nGET\r\n$4\r\nk{:03}\r\n", number % 1000).as_bytes());
        answers += &format!("+OK\r\n$4\r\n{number:04}\r\n");
    }
    let mut reader = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || stream.write_all(&requests).unwrap());
    exchange(&mut reader, b"", &answers);
    sender.join().unwrap();
    // One byte at a time, and a client that sends everything before it reads.
    let mut stream = client(&server);
    for byte in b"*2\r\n$4\r\nECHO\r\n$3\r\na\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    exchange(&mut stream, b"PING\r\n", "$3\r\na\r\n\r\n+PONG\r\n");
    let mut stream = client(&server);
    stream.write_all(b"STRLEN k001\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    exchange(&mut stream, b"", ":4\r\n");
}

#[test]
fn large_values_come_and_go() {
    let server = served("embedded:", &Options::default());
    let mut stream = client(&server);
    let large = vec![b'x'; 5_000_000];
    let request = [b"*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n$5000000\r\n", &large[..], b"\r\n"].concat();
    exchange(&mut stream, &request, "+OK\r\n");
    let expected = format!("$5000000\r\n{}\r\n", "x".repeat(5_000_000));
    // A client that does not read its answers is no longer served, and continues when it reads them.
    for _ in 0..12 {
        stream.write_all(b"GET large\r\n").unwrap();
    }
    exchange(&mut client(&server), b"PING\r\n", "+PONG\r\n");
    for _ in 0..12 {
        exchange(&mut stream, b"", &expected);
    }
    let too_large = "-ERR store embedded: a value of";
    let request = [&b"*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n$17000000\r\n"[..], &vec![b'y'; 17_000_000], b"\r\n"].concat();
    exchange(&mut stream, &request, too_large);
    exchange(
        &mut client(&server),
        b"*2\r\n$3\r\nGET\r\n$999999999\r\n",
        "-ERR Protocol error: invalid bulk length\r\n",
    );
}

#[test]
fn a_password_is_wanted_before_anything_else() {
    let options = Options { password: Some("se cret".to_owned()), ..Options::default() };
    let server = served("embedded:", &options);
    let mut stream = client(&server);
    exchange(&mut stream, b"GET a\r\nLPUSH a b\r\nPING\r\n", &"-NOAUTH Authentication required.\r\n".repeat(3));
    exchange(&mut stream, b"AUTH wrong\r\n", "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    exchange(&mut stream, b"*2\r\n$4\r\nAUTH\r\n$7\r\nse cret\r\nGET a\r\n", "+OK\r\n$-1\r\n");
    // What an unauthenticated peer announces uses no memory.
    exchange(&mut client(&server), b"*2\r\n$3\r\nGET\r\n$100000\r\n", "-ERR Protocol error: invalid bulk length\r\n");
    exchange(&mut client(&server), b"*11\r\n", "-ERR Protocol error: invalid multibulk length\r\n");
    let address = server.address();
    open(&format!("redis://:se%20cret@{address}")).unwrap();
    for url in [format!("redis://{address}"), format!("redis://:wrong@{address}")] {
        let Err(error) = open(&url) else { panic!("{url} opens") };
        assert!(matches!(error, StoreError::Denied { .. }), "{error}");
        assert!(!error.to_string().contains("wrong@"), "{error}");
    }
    stream.write_all(b"INFO\r\nQUIT\r\n").unwrap();
    let mut info = String::new();
    stream.read_to_string(&mut info).unwrap();
    assert!(info.contains("\r\nacl_access_denied_auth:2\r\n"), "{info}");
    assert!(info.contains("\r\ntrellis_protocol_errors:2\r\n"), "{info}");
}

#[test]
fn other_machines_are_not_let_in_unless_that_is_meant() {
    let store = open("embedded:").unwrap();
    let bind = |insecure| {
        let options = Options { insecure_beyond_this_machine: insecure, ..Options::default() };
        RespServer::bind("0.0.0.0:0", Arc::clone(&store), &options)
    };
    let Err(error) = bind(false) else { panic!("everybody is let in") };
    assert!(error.to_string().contains("other machines reach 0.0.0.0"), "{error}");
    assert!(bind(true).is_ok());
    let Err(error) = RespServer::bind("nowhere", store, &Options::default()) else { panic!("no address") };
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[test]
fn a_socket_of_this_machine_is_an_address() {
    let folder = Folder::new();
    let path = folder.file("socket");
    let address = format!("unix:{}", path.display());
    let server = RespServer::bind(&address, open("embedded:").unwrap(), &Options::default()).unwrap().start().unwrap();
    assert_eq!(server.address(), address);
    let store = open(&format!("redis+unix:{}", path.display())).unwrap();
    store.apply(&[conformance::put(&Key::page(1, 1), b"1")], None).unwrap();
    drop(server);
    assert!(!path.exists(), "the socket goes with its server");
}

#[test]
fn a_socket_that_a_killed_server_left_is_taken_and_one_in_use_is_not() {
    let folder = Folder::new();
    let path = folder.file("socket");
    let address = format!("unix:{}", path.display());
    let bind = || RespServer::bind(&address, open("embedded:").unwrap(), &Options::default());
    // Closed, but not removed: what remains when a signal ends a server.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = bind().unwrap().start().unwrap();
    open(&format!("redis+unix:{}", path.display())).unwrap();
    let Err(error) = bind() else { panic!("two servers at one socket") };
    assert!(error.to_string().contains("a server runs there; end that one, or give another --resp"), "{error}");
    drop(server);
    // A file that is not a socket must not be removed.
    std::fs::write(&path, "text").unwrap();
    assert!(bind().is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
}

/// The keys of clients and those of programs do not collide.
#[test]
fn clients_have_regions_of_their_own() {
    let store = open("embedded:").unwrap();
    let server = RespServer::bind("127.0.0.1:0", Arc::clone(&store), &Options::default()).unwrap().start().unwrap();
    let mut stream = client(&server);
    exchange(&mut stream, b"SET a 1\r\nSELECT 3\r\nGET a\r\nSET a 3\r\n", "+OK\r\n+OK\r\n$-1\r\n+OK\r\n");
    exchange(&mut stream, b"SELECT 16\r\nDBSIZE\r\n", "-ERR DB index is out of range\r\n:1\r\n");
    exchange(&mut stream, b"FLUSHDB\r\nDBSIZE\r\nSELECT 0\r\nGET a\r\n", "+OK\r\n:0\r\n+OK\r\n$1\r\n1\r\n");
    let region = Options::default().region;
    assert_eq!(store.names(region, None, 9).unwrap(), [b"\x01a"]);
    assert!(store.numbers(1, Kind::Memory, 0, 9).unwrap().is_empty());
}

/// Asks until that many calls wait; returns the answer.
fn info_with_waiting(server: &Running, count: u32) -> String {
    let begin = Instant::now();
    let mut stream = client(server);
    let mut answer = vec![0; 4096];
    loop {
        stream.write_all(b"INFO\r\n").unwrap();
        let read = stream.read(&mut answer).unwrap();
        let info = String::from_utf8_lossy(&answer[..read]);
        if info.contains(&format!("waiting_calls:{count}\r\n")) {
            return info.into_owned();
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "never do {count} calls wait");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_call_beyond_those_that_may_wait_hears_so_and_is_counted() {
    let key = Key::new(1, Kind::Synchronisation, 1);
    let take = [conformance::add_within(&key, -1, (0, 9))];
    let server = served("embedded:", &Options { calls_waiting_max: 1, ..Options::default() });
    let url = format!("redis://{}", server.address());
    let until = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| open(&url).unwrap().apply_when(&take, None, until));
        assert!(info_with_waiting(&server, 1).contains("trellis_calls_refused:0\r\n"));
        let store = open(&url).unwrap();
        let refused = store.apply_when(&take, None, until).unwrap_err();
        assert!(refused.to_string().contains("too many calls wait already"), "{refused}");
        assert!(info_with_waiting(&server, 1).contains("trellis_calls_refused:1\r\n"));
        store.apply(&[conformance::add(&key, 0, 8, 1)], None).unwrap();
        assert!(matches!(first.join().unwrap(), Ok(Applied::Done(_))), "the first call goes on");
    });
}

/// A client that was killed while it waited acquires nothing.
#[test]
fn a_client_that_is_gone_waits_for_nothing() {
    let key = Key::new(1, Kind::Synchronisation, 1);
    let take = conformance::add_within(&key, -1, (0, 9));
    let later = || Instant::now() + Duration::from_secs(60);
    if let Ok(url) = std::env::var("TRELLIS_TEST_STORE") {
        open(&url).unwrap().apply_when(&[take], None, later()).unwrap();
        return;
    }
    let server = served("embedded:", &Options::default());
    let url = format!("redis://{}", server.address());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_client_that_is_gone_waits_for_nothing"])
        .env("TRELLIS_TEST_STORE", &url)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    info_with_waiting(&server, 1);
    child.kill().unwrap();
    child.wait().unwrap();
    info_with_waiting(&server, 0);
    let store = open(&url).unwrap();
    store.apply(&[conformance::add(&key, 0, 8, 1)], None).unwrap();
    let found = store.get_many(&[key]).unwrap().remove(0).unwrap();
    assert_eq!(found, 1i64.to_le_bytes(), "what was given is there");
    let applied = store.apply_when(&[take], None, later()).unwrap();
    assert!(matches!(applied, Applied::Done(_)), "{applied:?}");
}

/// Random bytes, and requests with random bytes in them, never end the server.
#[test]
fn no_input_ends_the_server() {
    let seed = std::env::var("TRELLIS_SEED").map_or(20_261_122, |seed| seed.parse().expect("a number"));
    println!("TRELLIS_SEED={seed} cargo test -p trellis-store --test resp no_input_ends_the_server");
    let mut random = Random::new(seed);
    let server = served("embedded:", &Options::default());
    for _ in 0..300 {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let mut bytes = Vec::new();
        for _ in 0..1 + random.below(8) {
            match random.below(4) {
                0 => bytes.extend((0..random.below(60)).map(|_| random.below(256) as u8)),
                1 => bytes.extend_from_slice(format!("*{}\r\n", random.below(6) as i64 - 1).as_bytes()),
                _ => {
                    // Any command with any arguments, numbers among them.
                    let name = random.one_of(COMMANDS);
                    let mut parts = vec![name.as_bytes().to_vec()];
                    for _ in 0..random.below(7) {
                        parts.push(match random.below(5) {
                            0 => (random.draw() as i64).to_string().into_bytes(),
                            1 => random.below(4).to_string().into_bytes(),
                            2 => b"key".to_vec(),
                            3 => (0..random.below(20)).map(|_| random.below(256) as u8).collect(),
                            _ => b"-1".to_vec(),
                        });
                    }
                    bytes.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
                    for part in parts {
                        bytes.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
                        bytes.extend_from_slice(&part);
                        bytes.extend_from_slice(b"\r\n");
                    }
                }
            }
        }
        // The server may also close the connection.
        stream.write_all(&bytes).ok();
        stream.shutdown(Shutdown::Write).ok();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut sink = Vec::new();
        match stream.read_to_end(&mut sink) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("{error}: no end after {}", String::from_utf8_lossy(&bytes)),
        }
    }
    exchange(&mut client(&server), b"PING\r\n", "+PONG\r\n");
}

#[test]
fn clients_of_redis_are_served() {
    let server = served("embedded:", &Options::default());
    let port = server.address().rsplit(':').next().unwrap().to_owned();
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(["-h", "127.0.0.1", "-p", &port]).args(arguments).output();
        let Ok(output) = output else {
            skip("clients_of_redis_are_served", Need::Program, format_args!("{program} is not installed"));
            return None;
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {text}");
        Some(text)
    };
    let cli = |arguments: &[&str]| run("redis-cli", arguments).map(|text| text.trim().to_owned());
    if cli(&["PING"]).is_none() {
        return;
    }
    assert_eq!(cli(&["HSET", "h", "one", "1", "two", "2"]).unwrap(), "2");
    assert_eq!(cli(&["-3", "HGETALL", "h"]).unwrap(), "one 1\ntwo 2");
    assert_eq!(cli(&["--no-raw", "GET", "nothing"]).unwrap(), "(nil)");
    assert!(cli(&["INFO"]).unwrap().contains("server:trellis"));
    let benchmark = ["-n", "2000", "-c", "5", "-P", "4", "-q", "-t", "ping,set,get,incr,hset,mset"];
    if let Some(text) = run("redis-benchmark", &benchmark) {
        assert_eq!(text.matches("requests per second").count(), 7, "{text}");
    }
}

#[test]
fn transactions_are_done_without_anybody_between() {
    let server = served("embedded:", &Options::default());
    let (mut one, mut two) = (client(&server), client(&server));
    exchange(&mut one, b"MULTI\r\nSET a 1\r\nINCR a\r\nGET a\r\n", "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
    exchange(&mut two, b"GET a\r\n", "$-1\r\n");
    exchange(&mut one, b"EXEC\r\n", "*3\r\n+OK\r\n:2\r\n$1\r\n2\r\n");
    exchange(&mut one, b"MULTI\r\nINCR a\r\nDISCARD\r\nGET a\r\n", "+OK\r\n+QUEUED\r\n+OK\r\n$1\r\n2\r\n");
    exchange(&mut one, b"WATCH a\r\nMULTI\r\nSET a mine\r\n", "+OK\r\n+OK\r\n+QUEUED\r\n");
    exchange(&mut two, b"SET a theirs\r\n", "+OK\r\n");
    exchange(&mut one, b"EXEC\r\nGET a\r\n", "*-1\r\n$6\r\ntheirs\r\n");
    exchange(&mut one, b"WATCH a\r\nMULTI\r\nSET a mine\r\nEXEC\r\n", "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    exchange(&mut one, b"MULTI\r\nNONSENSE\r\n", "+OK\r\n-ERR unknown command");
    let mut three = client(&server);
    exchange(&mut three, b"MULTI\r\nGET\r\n", "+OK\r\n-ERR wrong number of arguments for 'get' command\r\n");
    exchange(&mut three, b"EXEC\r\n", "-EXECABORT Transaction discarded because of previous errors.\r\n");
    exchange(
        &mut three,
        b"MULTI\r\nINCR a\r\nSET b 1\r\nEXEC\r\n",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n-ERR value is not",
    );
}
