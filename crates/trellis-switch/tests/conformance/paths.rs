//! Tests the paths of packets: prefixes, sources, rules, copies, sides, loss.

use std::process::Command;

use trellis_switch::{Classes, Faults, Group, Prefix, Route, Rule};

use super::{CREATE, Case, Context, DIRECT, READ, WRITE};

pub(super) const CASES: &[Case] = &[
    ("every client reaches every server and back", everybody),
    ("pointers cost no neighbours", pointers),
    ("the longest prefix wins", longest),
    ("anywhere is where the switch says", anywhere),
    ("a prefix leads elsewhere after a failover", failover),
    ("nobody speaks for somebody else", forged),
    ("what leads nowhere is counted", nowhere),
    ("rules say who may ask what", rules),
    ("a group gets copies and may answer", group),
    ("sides of a partition do not meet", sides),
    ("packets are lost on purpose", loss),
    ("long datagrams travel whole and in fragments", long),
    ("many pages at once find room", burst),
    ("a server asks as a client does", servers_ask),
    ("counters tell everything once", counters),
];

fn everybody(context: &mut Context) {
    for client in ["c1", "c2", "c3"] {
        for (server, page) in [("s1", 0), ("s2", 1), ("s3", (1 << 36) - 1)] {
            context.goes(client, context.pointer(server, READ, page), server);
            context.goes(client, context.pointer(server, WRITE, page), server);
            context.answers(server, context.pointer(server, READ, page), client, 1, b"bytes");
        }
    }
}

fn pointers(context: &mut Context) {
    let cluster = context.cluster();
    let number = context.host("s1").plan().number;
    let from = context.host("c1").socket(context.request("c1", 1), 0).unwrap();
    for index in 0..2_000_u64 {
        let pointer = cluster.address(number, READ, 0, index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        from.send_to(&index.to_le_bytes(), (pointer, super::PORT)).unwrap();
        assert_eq!(context.receive("s1").0, index.to_le_bytes());
    }
    let neighbours = |host: &str| {
        let ask = || Command::new("ip").args(["-6", "neigh", "show", "nud", "all", "dev", "e0"]).output().unwrap();
        let output = context.host(host).run(ask).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| line.contains("lladdr") && !line.contains("NOARP")).count()
    };
    assert_eq!((neighbours("c1"), neighbours("s1")), (1, 1));
}

fn longest(context: &mut Context) {
    let (home, port) = (context.host("s1").plan().prefix, context.port("s2"));
    let class = Prefix::new(context.pointer("s1", WRITE, 0), 52).unwrap();
    let command = Prefix::new(context.pointer("s1", WRITE, 0), 56).unwrap();
    let place = context.pointer("s1", WRITE, 9);
    let route = |port| Route { port, is_memory: true };
    context.switch().set_prefix(class, route(port)).unwrap();
    context.goes("c1", context.pointer("s1", WRITE, 1), "s2");
    context.goes("c1", context.pointer("s1", READ, 1), "s1");
    context.answers("s2", context.pointer("s1", WRITE, 1), "c1", 1, b"done");
    context.switch().set_prefix(command, route(context.port("s3"))).unwrap();
    context.switch().set_prefix(Prefix::new(place, 128).unwrap(), route(context.port("s1"))).unwrap();
    context.goes("c1", context.pointer("s1", WRITE, 1), "s3");
    context.goes("c1", context.pointer("s1", WRITE + 1, 1), "s2");
    context.goes("c1", place, "s1");
    assert!(context.switch().drop_prefix(command).unwrap());
    assert!(!context.switch().drop_prefix(command).unwrap());
    context.goes("c1", context.pointer("s1", WRITE, 1), "s2");
    assert!(context.switch().drop_prefix(class).unwrap());
    context.goes("c1", context.pointer("s1", WRITE, 1), "s1");
    context.send("s2", context.pointer("s1", WRITE, 1), context.request("c1", 1), b"late");
    context.nothing_came("s2", "c1");
    assert!(context.switch().drop_prefix(home).unwrap());
    context.goes("c1", place, "s1");
    context.send("c1", context.request("c1", 1), context.pointer("s1", READ, 1), b"nobody");
    context.wait_until("it is refused", |context| context.counters("c1").no_route == 1);
    for (wrong, why) in [("fd00:1:1::/48", "of this cluster"), ("fd00::/48", "of this cluster")] {
        let error = context.switch().set_prefix(wrong.parse().unwrap(), route(1)).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert!(context.switch().set_prefix(home, route(0)).is_err());
}

fn anywhere(context: &mut Context) {
    let somebody = context.cluster().address(0, CREATE, 0, 0);
    context.goes("c1", somebody, "s1");
    let route = Route { port: context.port("s2"), is_memory: true };
    context.switch().set_prefix(Prefix::host(context.cluster(), 0), route).unwrap();
    context.goes("c1", somebody, "s2");
    // The chosen server answers from its own address.
    context.answers("s2", context.pointer("s2", CREATE, 0), "c1", 1, b"made here");
}

fn failover(context: &mut Context) {
    let prefix = context.host("s1").plan().prefix;
    context.goes("c1", context.pointer("s1", READ, 1), "s1");
    context.switch().set_prefix(prefix, Route { port: context.port("s2"), is_memory: true }).unwrap();
    context.goes("c1", context.pointer("s1", READ, 1), "s2");
    context.answers("s2", context.pointer("s1", READ, 1), "c1", 1, b"replica");
    context.send("s1", context.pointer("s1", READ, 1), context.request("c1", 1), b"the dead one");
    context.wait_until("it is refused", |context| context.counters("s1").forged == 1);
}

fn forged(context: &mut Context) {
    let unknown = context.cluster().address(0x777, 0, 0, 1);
    let sources =
        [context.request("c2", 1), context.pointer("s1", READ, 1), context.host("s1").plan().address, unknown];
    for source in sources {
        context.send("c1", source, context.pointer("s1", READ, 1), b"forged");
        context.send("c1", source, context.request("c2", 1), b"forged");
    }
    context.nothing_came("c1", "s1");
    context.nothing_came("c1", "c2");
    assert_eq!(context.counters("c1").forged, 8);
}

fn nowhere(context: &mut Context) {
    let nowhere = context.cluster().address(0x777, READ, 0, 1);
    context.send("c1", context.request("c1", 1), nowhere, b"nobody");
    context.goes("c1", context.pointer("s1", READ, 1), "s1");
    assert_eq!(context.counters("c1").no_route, 1);
    // A port without a host.
    let prefix = Prefix::new(nowhere, 48).unwrap();
    context.switch().set_prefix(prefix, Route { port: 900, is_memory: true }).unwrap();
    context.send("c1", context.request("c1", 1), nowhere, b"nobody");
    context.goes("c1", context.pointer("s1", READ, 1), "s1");
    assert_eq!(context.counters("c1").no_port, 1);
}

fn rules(context: &mut Context) {
    let number = |context: &Context, name: &str| Some(context.host(name).plan().number);
    let (c1, c2, s1, s2) = (number(context, "c1"), number(context, "c2"), number(context, "s1"), number(context, "s2"));
    let rule = |client, home, classes| Rule { client, home, classes };
    let allowed = [
        rule(c1, s1, Classes::READING),
        rule(c2, None, Classes::CHANGING),
        rule(None, s2, Classes::OBJECTS),
        rule(None, None, Classes::SERVERS),
        rule(c1, s1, Classes::LEASES),
    ];
    context.switch().set_rules(Some(&allowed)).unwrap();
    let ways = [
        ("c1", "s1", READ, true),
        ("c1", "s1", 0x30, true),
        ("c1", "s1", WRITE, false),
        ("c1", "s2", READ, false),
        ("c2", "s1", READ, false),
        ("c2", "s1", WRITE, true),
        ("c2", "s3", WRITE, true),
        ("c3", "s2", CREATE, true),
        ("c3", "s1", CREATE, false),
    ];
    for (client, server, command, may) in ways {
        let denied = context.counters(client).denied;
        if may {
            context.goes(client, context.pointer(server, command, 1), server);
        } else {
            let pointer = context.pointer(server, command, 1);
            context.send(client, context.request(client, 1), pointer, b"denied");
            context.nothing_came(client, server);
        }
        assert_eq!(context.counters(client).denied, denied + u64::from(!may), "{client} {server} {command:x}");
    }
    context.answers("s3", context.pointer("s3", READ, 1), "c3", 1, b"answers need no rule");
    context.switch().set_rules(Some(&allowed[3..4])).unwrap();
    context.send("c1", context.request("c1", 1), context.pointer("s1", READ, 1), b"no longer");
    context.nothing_came("c1", "s1");
    context.switch().set_rules(None).unwrap();
    context.goes("c1", context.pointer("s1", WRITE, 1), "s1");
}

fn group(context: &mut Context) {
    let prefix = context.host("s1").plan().prefix;
    let ports = vec![context.port("s1"), context.port("s2"), context.port("s3")];
    let done = context.switch().set_group(&Group { prefix, classes: Classes::CHANGING, ports });
    if !context.switch().capabilities().copies {
        let sentence = done.unwrap_err().to_string();
        assert!(sentence.contains("cannot copy"), "{sentence}");
        context.goes("c1", context.pointer("s1", WRITE, 3), "s1");
        return context.nothing_came("c1", "s2");
    }
    done.unwrap();
    let pointer = context.pointer("s1", WRITE, 3);
    context.goes("c1", pointer, "s1");
    let first = context.receive("s2");
    assert_eq!(context.receive("s3"), first);
    context.answers("s2", pointer, "c1", 1, b"I have it");
    context.answers("s3", pointer, "c1", 1, b"I too");
    context.goes("c1", context.pointer("s1", READ, 3), "s1");
    context.nothing_came("c1", "s2");
    context.switch().set_group(&Group { prefix, classes: Classes::CHANGING, ports: Vec::new() }).unwrap();
    context.goes("c1", pointer, "s1");
    context.nothing_came("c1", "s3");
    context.send("s2", pointer, context.request("c1", 1), b"not any more");
    context.nothing_came("s2", "c1");
    assert_eq!(context.counters("s2").forged, 1);
    let refused = |group: Group| context.switch().set_group(&group).unwrap_err().to_string();
    let classes = Classes::ALL;
    let narrow = Prefix::new(pointer, 56).unwrap();
    assert!(refused(Group { prefix: narrow, classes, ports: vec![1] }).contains("48 bits"));
    assert!(refused(Group { prefix, classes, ports: (1..10).collect() }).contains("at most 8"));
    let unknown = Prefix::host(context.cluster(), 0x777);
    assert!(refused(Group { prefix: unknown, classes, ports: vec![1] }).contains("leads nowhere"));
}

fn sides(context: &mut Context) {
    let part = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    context.lab.partition(&[part(&["c1", "s1"]), part(&["c2"])]).unwrap();
    context.goes("c1", context.pointer("s1", READ, 1), "s1");
    context.goes("c3", context.pointer("s2", READ, 1), "s2");
    context.send("c2", context.request("c2", 1), context.pointer("s1", READ, 1), b"cut off");
    context.send("c1", context.request("c1", 1), context.pointer("s2", READ, 1), b"cut off");
    context.send("s1", context.pointer("s1", READ, 1), context.request("c3", 1), b"cut off");
    let cut = |context: &Context| ["c1", "c2", "s1"].map(|name| context.counters(name).partitioned);
    context.wait_until("all three are cut off", |context| cut(context) == [1, 1, 1]);
    context.lab.partition(&[]).unwrap();
    context.goes("c2", context.pointer("s1", READ, 1), "s1");
    context.nothing_came("c1", "s2");
    context.nothing_came("s1", "c3");
    assert_eq!(cut(context), [1, 1, 1]);
    assert!(context.lab.partition(&[part(&["c9"])]).is_err());
    assert!(context.lab.partition(&[part(&["c1"]), part(&["c1"])]).is_err());
    assert!(context.switch().set_side(900, 1).is_err());
}

fn loss(context: &mut Context) {
    context.switch().set_faults(&"drop=100%".parse::<Faults>().unwrap()).unwrap();
    let before = context.counters("c1");
    for number in 0..50 {
        context.send("c1", context.request("c1", number), context.pointer("s1", READ, 1), b"lost");
    }
    context.wait_until("all have passed", |context| context.counters("c1").packets_in() == before.packets_in() + 50);
    context.switch().set_faults(&Faults::default()).unwrap();
    context.nothing_came("c1", "s1");
    assert_eq!(context.counters("c1").dropped, 50);
    let delay: Faults = "delay=1ms".parse().unwrap();
    assert_eq!(context.switch().set_faults(&delay).is_ok(), context.switch().capabilities().delays);
}

fn long(context: &mut Context) {
    for bytes in [4_096 + 32, 60_000] {
        let payload: Vec<u8> = (0..bytes).map(|index: usize| (index % 251) as u8).collect();
        let (source, pointer) = (context.request("c1", 5), context.pointer("s1", WRITE, 1));
        context.send("c1", source, pointer, &payload);
        assert_eq!(context.receive("s1"), (payload.clone(), source), "{bytes}");
        context.answers("s1", pointer, "c1", 5, &payload);
    }
}

fn burst(context: &mut Context) {
    // As many as a home sends to a backup without waiting for an answer.
    const PAGES: u64 = 64;
    let (from, to) = (context.request("s2", 1), context.pointer("s1", WRITE, 1));
    let socket = context.host("s2").socket(from, 0).unwrap();
    for _ in 0..PAGES {
        socket.send_to(&[7; 4096], (to, super::PORT)).unwrap();
    }
    let known = |context: &Context| {
        let counters = context.counters("s2");
        (counters.delivered, counters.overflowed)
    };
    context.wait_until("all were taken or lost", |context| known(context).0 + known(context).1 >= PAGES);
    let (_, lost) = known(context);
    // The packet sockets of Open vSwitch are its own, and hold fewer than thirty.
    assert!(lost == 0 || context.switch().name() == "openflow", "{lost} of {PAGES} found none");
}

fn servers_ask(context: &mut Context) {
    context.goes("s2", context.pointer("s1", READ, 1), "s1");
    context.answers("s1", context.pointer("s1", READ, 1), "s2", 1, b"bytes");
    let rule = Rule { client: Some(context.host("s2").plan().number), home: None, classes: Classes::READING };
    context.switch().set_rules(Some(&[rule])).unwrap();
    context.goes("s2", context.pointer("s1", READ, 1), "s1");
    // The bits in place of its command look like a command that no rule allows.
    context.answers("s1", context.pointer("s1", READ, 1), "s2", 2, b"answers need no rule");
    assert_eq!(context.hot_pages(9), [(context.page("s1", 1), 2)]);
    context.send("s3", context.request("s2", 1), context.pointer("s1", READ, 1), b"forged");
    context.wait_until("it is refused", |context| context.counters("s3").forged == 1);
}

fn counters(context: &mut Context) {
    let before = (context.counters("c1"), context.counters("s1"));
    context.goes("c1", context.pointer("s1", READ, 1), "s1");
    context.send("c1", context.request("c2", 1), context.pointer("s1", READ, 1), b"forged");
    context.goes("c1", context.with_arguments("s1", WRITE, DIRECT, 1), "s1");
    let (client, server) = (context.counters("c1"), context.counters("s1"));
    assert_eq!(client.packets_in() - before.0.packets_in(), 3);
    assert_eq!(client.delivered - before.0.delivered, 2);
    assert_eq!(client.forged - before.0.forged, 1);
    assert_eq!(server.packets_out - before.1.packets_out, 2);
    // Ethernet, IPv6, UDP and four bytes each.
    assert_eq!(server.bytes_out - before.1.bytes_out, 2 * (14 + 40 + 8 + 4));
    assert_eq!(client.bytes_in - before.0.bytes_in, 2 * (14 + 40 + 8 + 4) + (14 + 40 + 8 + 6));
    assert!(context.switch().counters(0).is_err() && context.switch().counters(1024).is_err());
}
