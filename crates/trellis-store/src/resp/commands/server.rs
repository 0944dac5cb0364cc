//! Commands about the client's session and the server.

use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use super::transactions::Transaction;
use super::{After, COMMANDS, Call, Failure, SYNTAX};

/// The number of databases that a client can select.
const DATABASES: i64 = 16;

const WRONG_PASSWORD: Failure = Failure::Text("WRONGPASS invalid username-password pair or user is disabled.");

pub(super) fn ping(call: &mut Call) -> Result<(), Failure> {
    if call.parts.len() == 2 {
        call.reply.bulk(call.parts.get(1));
    } else {
        call.reply.status("PONG");
    }
    Ok(())
}

pub(super) fn echo(call: &mut Call) -> Result<(), Failure> {
    call.reply.bulk(call.parts.get(1));
    Ok(())
}

pub(super) fn select(call: &mut Call) -> Result<(), Failure> {
    let database = call.parts.integer(1)?;
    if !(0..DATABASES).contains(&database) {
        return Err(Failure::Text("ERR DB index is out of range"));
    }
    call.session.database = database as u32;
    call.reply.ok();
    Ok(())
}

pub(super) fn authenticate(call: &mut Call) -> Result<(), Failure> {
    let (user, password) = match call.parts.len() {
        2 => (&b"default"[..], call.parts.get(1)),
        _ => (call.parts.get(1), call.parts.get(2)),
    };
    check_password(call, user, password)?;
    call.reply.ok();
    Ok(())
}

fn check_password(call: &mut Call, user: &[u8], password: &[u8]) -> Result<(), Failure> {
    let Some(wanted) = &call.shared.password else {
        return Err(Failure::Text(
            "ERR Client sent AUTH, but no password is set. Did you mean AUTH <username> <password>?",
        ));
    };
    // The comparison takes the same time wherever a guess is wrong.
    let differs = wanted.len() != password.len()
        || wanted.iter().zip(password).fold(0, |differs, (one, other)| differs | (one ^ other)) != 0;
    if differs || user != b"default" {
        if call.shared.denied.fetch_add(1, Ordering::Relaxed) == 0 {
            trellis_output::lines::report(format_args!(
                "a client gave a wrong user or password; INFO counts such refusals as acl_access_denied_auth"
            ));
        }
        return Err(WRONG_PASSWORD);
    }
    call.session.known = true;
    Ok(())
}

pub(super) fn hello(call: &mut Call) -> Result<(), Failure> {
    let mut three = call.session.three;
    if call.parts.len() > 1 {
        three = match call.parts.get(1) {
            b"2" => false,
            b"3" => true,
            _ => return Err(Failure::Text("NOPROTO unsupported protocol version")),
        };
    }
    let (mut place, mut name) = (2, None);
    while place < call.parts.len() {
        if call.parts.is(place, "AUTH") && place + 2 < call.parts.len() {
            let (user, password) = (call.parts.get(place + 1), call.parts.get(place + 2));
            if call.shared.password.is_some() {
                check_password(call, user, password)?;
            }
            place += 3;
        } else if call.parts.is(place, "SETNAME") && place + 1 < call.parts.len() {
            name = Some(call.parts.get(place + 1).to_vec());
            place += 2;
        } else {
            return Err(SYNTAX);
        }
    }
    if !call.session.known {
        return Err(Failure::Text(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise \
            the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP \
            protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        call.session.name = name;
    }
    call.session.three = three;
    let number = call.session.number as i64;
    let reply = &mut call.reply;
    reply.set_three(three);
    reply.map(9);
    for (name, value) in [("server", "trellis"), ("version", env!("CARGO_PKG_VERSION"))] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    for (name, value) in [("proto", if three { 3 } else { 2 }), ("id", number)] {
        reply.bulk(name.as_bytes());
        reply.integer(value);
    }
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    for (name, value) in [("incarnation", &call.shared.incarnation), ("session", &call.shared.session)] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}

pub(super) fn client(call: &mut Call) -> Result<(), Failure> {
    if call.parts.is(1, "SETNAME") && call.parts.len() == 3 {
        call.session.name = call.parts.get(2)[..call.parts.get(2).len().min(256)].to_vec();
        call.reply.ok();
    } else if call.parts.is(1, "GETNAME") {
        call.reply.optional(Some(&call.session.name[..]).filter(|name| !name.is_empty()));
    } else if call.parts.is(1, "ID") {
        call.reply.integer(call.session.number as i64);
    } else if ["SETINFO", "NO-EVICT", "NO-TOUCH"].into_iter().any(|word| call.parts.is(1, word)) {
        call.reply.ok();
    } else {
        return Err(Failure::Sentence("CLIENT has SETNAME, GETNAME, ID and SETINFO here".into()));
    }
    Ok(())
}

pub(super) fn command(call: &mut Call) -> Result<(), Failure> {
    if call.parts.is(1, "COUNT") {
        call.reply.integer(COMMANDS.len() as i64);
    } else if call.parts.is(1, "LIST") {
        call.reply.array(COMMANDS.len());
        COMMANDS.iter().for_each(|name| call.reply.bulk(name.to_ascii_lowercase().as_bytes()));
    } else {
        // Some clients ask for the commands at their start, for interactive help; they work without an answer.
        call.reply.array(0);
    }
    Ok(())
}

/// Nothing can be configured. `CONFIG GET` answers with an empty list, which clients accept.
pub(super) fn config(call: &mut Call) -> Result<(), Failure> {
    if !call.parts.is(1, "GET") {
        return Err(Failure::Sentence("nothing can be configured through this protocol".into()));
    }
    call.reply.map(0);
    Ok(())
}

pub(super) fn info(call: &mut Call) -> Result<(), Failure> {
    let shared = call.shared;
    let text = format!(
        "# Server\r\nserver:trellis\r\ntrellis_version:{}\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\n\
         process_id:{}\r\nuptime_in_seconds:{}\r\n# Clients\r\nconnected_clients:{}\r\n\
         # Stats\r\nrejected_connections:{}\r\nacl_access_denied_auth:{}\r\n# Replication\r\nrole:master\r\n\
         # Trellis\r\nwaiting_calls:{}\r\ntrellis_protocol_errors:{}\r\ntrellis_calls_refused:{}\r\nstore:{}\r\n",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        shared.started.elapsed().as_secs(),
        shared.clients.load(Ordering::Relaxed),
        shared.rejected.load(Ordering::Relaxed),
        shared.denied.load(Ordering::Relaxed),
        shared.waiting.load(Ordering::Relaxed),
        shared.broken.load(Ordering::Relaxed),
        shared.calls_refused.load(Ordering::Relaxed),
        shared.store.name(),
    );
    call.reply.bulk(text.as_bytes());
    Ok(())
}

pub(super) fn time(call: &mut Call) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    call.reply.array(2);
    call.reply.bulk(now.as_secs().to_string().as_bytes());
    call.reply.bulk(now.subsec_micros().to_string().as_bytes());
    Ok(())
}

pub(super) fn reset(call: &mut Call) -> Result<(), Failure> {
    call.session.known = call.shared.password.is_none();
    call.session.three = false;
    call.session.database = 0;
    call.session.name.clear();
    call.session.transaction = Transaction::default();
    call.reply.status("RESET");
    Ok(())
}

pub(super) fn quit(call: &mut Call) -> Result<(), Failure> {
    call.reply.ok();
    call.after = After::Close;
    Ok(())
}
