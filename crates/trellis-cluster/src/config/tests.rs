//! Tests of whole configurations: what is accepted, which source wins, and the sentence of every refusal.

use trellis_testing::Folder;

use super::*;

/// The files of a test.
struct Scratch {
    folder: Folder,
}

impl Scratch {
    fn new() -> Scratch {
        Scratch { folder: Folder::new() }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.file(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The sentence of a refusal, with the folder left out.
    fn refusal(&self, name: &str, text: &str) -> String {
        let error = Sources::new().file(self.file(name, text)).set("node=0").load().expect_err(text).to_string();
        error.replace(&format!("{}/", self.folder.path().display()), "")
    }
}

/// The configuration printed in the libivy paper (listing 2).
const LISTING_2: &str = r#"{
  "nodes": [
    "localhost:2000",
    "localhost:2001",
    "localhost:2002"
  ],
  "manager_id": 0,
  "region_sz": 268435456,
  "base_addr": "0x10000000000"
}
"#;

#[test]
fn the_papers_json_is_accepted_as_it_stands() {
    let scratch = Scratch::new();
    let config = Sources::new().file(scratch.file("ivy.json", LISTING_2)).set("node=2").load().unwrap();
    let expected = Config {
        peers: Peers::Listed(["localhost:2000", "localhost:2001", "localhost:2002"].map(str::to_owned).to_vec()),
        node: 2,
        manager: 0,
        region_bytes: 256 << 20,
        base_address: 1 << 40,
        start: Start::Manager,
        places: config.places.clone(),
        ..Config::default()
    };
    assert_eq!(config, expected);
    assert!(config.place_of("region_bytes").ends_with("ivy.json:8: region_sz"), "{}", config.place_of("region_bytes"));
    assert_eq!(config.place_of("node"), "--set node=2");
    assert_eq!(config.place_of("page_bytes"), "page_bytes");
    assert!(config.is_on_loopback());
    assert_eq!(config.security_in_use(), Security::InsecurePlain);
}

#[test]
fn libivys_sizes_are_taken_as_libivy_takes_them() {
    let scratch = Scratch::new();
    let region_of = |size: &str, page: &str| {
        let file = scratch.file("ivy.json", &LISTING_2.replace("268435456", size));
        Sources::new()
            .file(file)
            .set("node=0")
            .set(format!("page_bytes={page}"))
            .load()
            .map(|config| config.region_bytes)
    };
    assert_eq!(region_of("1000000", "4096"), Ok(999_424), "rounded down to whole pages");
    assert_eq!(region_of("4096", "4096"), Ok(65_536), "never smaller than a region can be");
    assert_eq!(region_of("4096000", "64KiB"), Ok(4_063_232));
    assert!(region_of("100", "4096").unwrap_err().to_string().contains("region_sz: 100 bytes are out of range"));
    // A size in a flag is Trellis's, and exact.
    let file = scratch.file("ivy.json", LISTING_2);
    let flag = Sources::new().file(file).set("node=0").set("region_bytes=1000000").load().unwrap_err();
    assert!(flag.to_string().starts_with("--set region_bytes=1000000: 1000000 is not a multiple of page_bytes (4096)"));
}

#[test]
fn the_address_of_libivy_may_lack_its_prefix() {
    let scratch = Scratch::new();
    let file = scratch.file("ivy.json", &LISTING_2.replace("0x10000000000", "20000000000"));
    assert_eq!(Sources::new().file(file).set("node=0").load().unwrap().base_address, 2 << 40);
}

#[test]
fn later_sources_win() {
    let scratch = Scratch::new();
    let file = scratch
        .file("trellis.toml", "manager = 1\nnodes = [\"a:1\", \"b:2\"]\nregion_bytes = \"1MiB\"\nstatistics = true\n");
    let sources = Sources::new().file(&file).set("node=1");
    let from_file = sources.clone().load().unwrap();
    assert_eq!((from_file.manager, from_file.region_bytes, from_file.statistics), (1, 1 << 20, true));
    assert_eq!(from_file.security_in_use(), Security::Sealed);
    let sources = sources.variable("TRELLIS_REGION_BYTES", "2MiB").variable("TRELLIS_STATISTICS", "0");
    let from_variable = sources.clone().load().unwrap();
    assert_eq!((from_variable.region_bytes, from_variable.statistics), (2 << 20, false));
    let from_flag = sources.set("region_bytes=4MiB").load().unwrap();
    assert_eq!((from_flag.region_bytes, from_flag.manager), (4 << 20, 1));
}

#[test]
fn nodes_are_found_in_one_way() {
    let scratch = Scratch::new();
    let excluded = "exclude each other; leave one of them out";
    for second in ["rendezvous = \"m:7000\"\nrendezvous_nodes = 2\n", "join = \"m:7000\"\n", "engine = \"pmix\"\n"] {
        let refused = scratch.refusal("trellis.toml", &format!("nodes = [\"a:1\", \"b:2\"]\n{second}"));
        assert!(refused.contains("trellis.toml:1") && refused.contains(excluded), "{refused}");
    }
    let flags = Sources::new().set("join=a:1").set("nodes=a:1,b:2");
    assert!(
        flags.clone().load().unwrap_err().to_string().contains("--set nodes=a:1,b:2: the nodes are found in another")
    );
    // A stronger source replaces a weaker one.
    let file = scratch.file("trellis.toml", "nodes = [\"a:1\", \"b:2\"]\n");
    let joins = Sources::new().file(&file).variable("TRELLIS_JOIN", "c:3");
    assert_eq!(joins.clone().load().unwrap().peers, Peers::Join("c:3".to_owned()));
    let met = joins.set("rendezvous=m:7000").set("rendezvous_nodes=2").load().unwrap();
    let place = Rendezvous { address: "m:7000".to_owned(), nodes: 2, job: "trellis".to_owned() };
    assert_eq!(met.peers, Peers::Rendezvous(place));
    // Several programs write an environment, and the process that joins is the innermost.
    let both = Sources::new().variable("TRELLIS_JOIN", "c:3").variable("TRELLIS_NODES", "a:1,b:2");
    assert_eq!(both.load().unwrap().peers, Peers::Join("c:3".to_owned()));
    let engine = |word: &str| Sources::new().file(&file).set("node=0").set(format!("engine={word}")).load();
    assert_eq!(engine("pmi2").unwrap().peers, Peers::Engine(Engine::Pmi2));
    for word in ["none", "auto"] {
        assert_eq!(engine(word).unwrap().nodes(), ["a:1", "b:2"]);
    }
    let wrong = engine("mpi").unwrap_err().to_string();
    assert!(wrong.contains("accepted: auto, none, pmix, pmi, pmi2, slurm"), "{wrong}");
    for alone in ["rendezvous_nodes=2", "rendezvous_job=sort"] {
        let refused = Sources::new().set(alone).load().unwrap_err().to_string();
        assert!(refused.contains("there is no rendezvous"), "{refused}");
    }
}

#[test]
fn a_launcher_puts_its_own_addresses_over_those_of_a_file() {
    let scratch = Scratch::new();
    let config = Sources::new()
        .variable(FILE_VARIABLE, scratch.file("ivy.json", LISTING_2).display().to_string())
        .variable("TRELLIS_NODES", "127.0.0.1:7000,127.0.0.1:7001")
        .variable("TRELLIS_NODE", "1")
        .variable("TRELLIS_LISTEN_FD", "3")
        .load()
        .unwrap();
    assert_eq!(config.nodes(), ["127.0.0.1:7000", "127.0.0.1:7001"]);
    assert_eq!((config.node, config.base_address, config.start), (1, 1 << 40, Start::Manager));
}

#[test]
fn paths_in_a_file_are_relative_to_the_file() {
    let scratch = Scratch::new();
    let file = scratch.file("trellis.toml", "secret_file = \"key\"\nrecord = \"/tmp/run\"\n");
    let config = Sources::new().file(&file).load().unwrap();
    assert_eq!(config.secret_file, Some(scratch.folder.file("key")));
    assert_eq!(config.record, Some(PathBuf::from("/tmp/run")));
    let config = Sources::new().file(&file).variable("TRELLIS_SECRET_FILE", "other").load().unwrap();
    assert_eq!(config.secret_file, Some(PathBuf::from("other")), "elsewhere to the working folder");
}

#[test]
fn every_refusal_of_a_toml_file_names_file_line_and_key() {
    let scratch = Scratch::new();
    let two = "nodes = [\"a:1\", \"b:2\"]\n";
    let cases = [
        (
            "manager = 0\npage_byte = 4096\n",
            "trellis.toml:2: page_byte: no key has this name; did you mean page_bytes?",
        ),
        ("region_sz = 1\n", "trellis.toml:1: region_sz: this is libivy's name; did you mean region_bytes?"),
        ("[region]\nbytes = 1\n", "trellis.toml:1: region: no key has this name; did you mean region_bytes?"),
        (
            "node = 1\n",
            "trellis.toml:1: node: the file is shared by all nodes; set TRELLIS_NODE or --set node=N instead",
        ),
        (
            "page_bytes = 5000\n",
            "trellis.toml:1: page_bytes: 5000 is not a page size; accepted: a power of two from 4096 to 2097152, such as 8192",
        ),
        (
            "page_bytes = \"4MiB\"\n",
            "trellis.toml:1: page_bytes: 4194304 is not a page size; accepted: a power of two from 4096 to 2097152, such as 2097152",
        ),
        (
            "region_bytes = \"63KiB\"\n",
            "trellis.toml:1: region_bytes: 64512 bytes are out of range; accepted: 64KiB to 64GiB",
        ),
        (
            "region_bytes = \"65GiB\"\n",
            "trellis.toml:1: region_bytes: 69793218560 bytes are out of range; accepted: 64KiB to 64GiB",
        ),
        (
            "\nregion_bytes = 100000\n",
            "trellis.toml:2: region_bytes: 100000 is not a multiple of page_bytes (4096); accepted: 98304 or 102400",
        ),
        (
            "region_bytes = 1.5\n",
            "trellis.toml:1: region_bytes: this is a number with a fraction; accepted: a number of bytes, or a number with KiB, MiB, GiB or TiB, such as 256MiB",
        ),
        (
            "base_address = \"0x10000100\"\n",
            "trellis.toml:1: base_address: 0x10000100 is not a multiple of page_bytes (4096); accepted: 0x10000000, for example",
        ),
        (
            "base_address = 0\n",
            "trellis.toml:1: base_address: a region of 268435456 bytes at 0x0 is outside of what a process can map; accepted: 0x10000 to 0x7fffeffff000",
        ),
        (
            "base_address = 0x7ffffffff000\n",
            "trellis.toml:1: base_address: a region of 268435456 bytes at 0x7ffffffff000 is outside of what a process can map; accepted: 0x10000 to 0x7fffeffff000",
        ),
        (
            "base_address = \"high\"\n",
            "trellis.toml:1: base_address: `high` is not an address; accepted: a hexadecimal address such as \"0x400000000000\"",
        ),
        (
            "catch = \"sigsegv\"\n",
            "trellis.toml:1: catch: `sigsegv` is none of the choices; accepted: auto, signal, handler, mprotect",
        ),
        (
            "coherence = 1\n",
            "trellis.toml:1: coherence: this is a number; accepted: a protocol, such as ivy or lock(dynamic)",
        ),
        (
            "coherence = \"lock\"\n",
            "trellis.toml:1: coherence: `lock` is not a protocol; there is auto, ivy, dynamic(forward), dynamic(redirect), dynamic(migratory), migrate, hlrc(invalidate), hlrc(update), hlrc(adaptive), and round any but the last three lock(…), lock(…, spin 100us), delay(…), delay(…, short), delay(…, 500us), each once; auto is delay(dynamic(migratory), short)",
        ),
        (
            "coherence_ranges = [\n  \"0-4096=ivy\",\n  \"8192-4096=ivy\",\n]\n",
            "trellis.toml:3: coherence_ranges: `8192-4096=ivy` is empty; accepted: FIRST-END=PROTOCOL, such as 0-1MiB=lock(dynamic)",
        ),
        (
            "coherence_ranges = \"0-6000=ivy\"\n",
            "trellis.toml:1: coherence_ranges: `0-6000=ivy` begins or ends at byte 6000, inside a page; accepted: multiples of page_bytes (4096)",
        ),
        (
            "region_bytes = \"1MiB\"\ncoherence_ranges = \"0-2MiB=ivy\"\n",
            "trellis.toml:2: coherence_ranges: `0-2097152=ivy` ends outside of the region; accepted: at most 1048576, its region_bytes",
        ),
        (
            "coherence = \"hlrc\"\njoiners_max = 2\n",
            "trellis.toml:2: joiners_max: under hlrc every node meets in barriers, and a node that joins later does not; set joiners_max = 0, or another coherence",
        ),
        (
            "coherence = \"lock(hlrc)\"\n",
            "trellis.toml:1: coherence: `lock(hlrc)` is not a protocol; there is auto, ivy, dynamic(forward), dynamic(redirect), dynamic(migratory), migrate, hlrc(invalidate), hlrc(update), hlrc(adaptive), and round any but the last three lock(…), lock(…, spin 100us), delay(…), delay(…, short), delay(…, 500us), each once; auto is delay(dynamic(migratory), short)",
        ),
        (
            "coherence = \"delay(hlrc)\"\n",
            "trellis.toml:1: coherence: `delay(hlrc)` is not a protocol; there is auto, ivy, dynamic(forward), dynamic(redirect), dynamic(migratory), migrate, hlrc(invalidate), hlrc(update), hlrc(adaptive), and round any but the last three lock(…), lock(…, spin 100us), delay(…), delay(…, short), delay(…, 500us), each once; auto is delay(dynamic(migratory), short)",
        ),
        (
            "link_faults = \"drop=10%\"\n",
            "trellis.toml:1: link_faults: the link tcp has none, because the kernel makes good what a network loses; set link = udp",
        ),
        (
            "multicast_group = \"239.1.2.3\"\n",
            "trellis.toml:1: multicast_group: only the link udp multicasts; set link = udp, or leave this key out",
        ),
        (
            "link = \"udp\"\nadvertise = \"a.example.org\"\n",
            "trellis.toml:2: advertise: over udp a node is known by the address from which its datagrams come; set link = auto, or leave this key out",
        ),
        (
            "advertise = \"a:7000\"\n",
            "trellis.toml:1: advertise: `a:7000` is no host; accepted: a name such as a.example.org of up to 100 letters, or an address such as 10.0.0.1 or fd00::1, without a port",
        ),
        (
            "link = \"udp\"\njoiners_max = 2\n",
            "trellis.toml:2: joiners_max: no process can join a running cluster over udp; set link = auto, or joiners_max = 0",
        ),
        (
            "security = \"plain\"\n",
            "trellis.toml:1: security: `plain` is none of the choices; accepted: auto, sealed, signed, insecure-plain",
        ),
        ("secret_file = \"\"\n", "trellis.toml:1: secret_file: this is empty; accepted: a path"),
        ("statistics = \"yes\"\n", "trellis.toml:1: statistics: `yes` is no truth value; accepted: true, false"),
        (
            "silence_seconds_max = 0\n",
            "trellis.toml:1: silence_seconds_max: 0 is out of range; accepted: a whole number from 1 to 3600",
        ),
        (
            "nodes = [\n  \"a:1\",\n  \"b\",\n]\n",
            "trellis.toml:3: nodes: `b` has no port; accepted: host:port, such as 10.0.0.1:2000 or [::1]:2000",
        ),
        (
            "nodes = [\n  \"a:1\",\n  \"b:1\",\n  \"A:1\",\n]\n",
            "trellis.toml:4: nodes: node 0 and node 2 both have the address A:1; accepted: every node its own host and port",
        ),
        (
            "nodes = [\"localhost:1\", \"127.0.0.1:1\"]\n",
            "trellis.toml:1: nodes: node 0 and node 1 both have the address 127.0.0.1:1; accepted: every node its own host and port",
        ),
        (
            "nodes = [1, 2]\n",
            "trellis.toml:1: nodes: this is a list of something else than strings; accepted: a list of \"host:port\"",
        ),
        ("manager = 1\n", "trellis.toml:1: manager: there is no node 1; accepted: 0, the only node"),
        (&format!("{two}manager = 2\n"), "trellis.toml:2: manager: there is no node 2; accepted: 0 to 1"),
    ];
    for (text, expected) in cases {
        assert_eq!(scratch.refusal("trellis.toml", text), expected, "{text}");
    }
    let notation = scratch.refusal("trellis.toml", "manager = 0\nmanager = 1\n");
    assert!(notation.starts_with("trellis.toml:2: is not valid TOML: "), "{notation}");
}

#[test]
fn every_refusal_of_a_json_file_names_file_line_and_key() {
    let scratch = Scratch::new();
    let without = |line: &str| LISTING_2.replace(line, "");
    let cases = [
        (
            without("  \"manager_id\": 0,\n"),
            "ivy.json:1: manager_id: is missing; a libivy configuration has nodes, manager_id, region_sz and base_addr",
        ),
        (
            LISTING_2.replace("manager_id", "manger_id"),
            "ivy.json:7: manger_id: no key has this name; did you mean manager_id?",
        ),
        (
            LISTING_2.replace("\"manager_id\": 0", "\"manager_id\": 3"),
            "ivy.json:7: manager_id: there is no node 3; accepted: 0 to 2",
        ),
        (
            LISTING_2.replace("\"manager_id\": 0", "\"manager_id\": -1"),
            "ivy.json:7: manager_id: -1 is out of range; accepted: a whole number from 0 to 63",
        ),
        (
            LISTING_2.replace("\"manager_id\": 0", "\"manager_id\": 0, \"manager_id\": 1"),
            "ivy.json:7: manager_id: is given twice, first on line 7; accepted: once",
        ),
        (
            LISTING_2.replace("\"manager_id\": 0", "\"manager_id\": 0, \"page_bytes\": 4096"),
            "ivy.json:7: page_bytes: libivy's JSON does not have this key; put it into a trellis.toml, into TRELLIS_PAGE_BYTES or after --set",
        ),
        (
            LISTING_2.replace("localhost:2001", "localhost"),
            "ivy.json:4: nodes: `localhost` has no port; accepted: host:port, such as 10.0.0.1:2000 or [::1]:2000",
        ),
        (
            LISTING_2.replace("localhost:2002", "localhost:2000"),
            "ivy.json:5: nodes: node 0 and node 2 both have the address localhost:2000; accepted: every node its own host and port",
        ),
        (
            LISTING_2.replace("\"0x10000000000\"", "\"0x\""),
            "ivy.json:9: base_addr: `0x` is not an address; accepted: a hexadecimal address such as \"0x400000000000\"",
        ),
        (
            LISTING_2.replace("268435456", "null"),
            "ivy.json:8: region_sz: this is null; accepted: a number of bytes, or a number with KiB, MiB, GiB or TiB, such as 256MiB",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(scratch.refusal("ivy.json", &text), expected, "{text}");
    }
    let empty = r#"{ "nodes": [], "manager_id": 0, "region_sz": 65536, "base_addr": "0x10000000000" }"#;
    assert_eq!(
        scratch.refusal("ivy.json", empty),
        "ivy.json:1: nodes: is empty; accepted: a list of at least one \"host:port\""
    );
    let notation = scratch.refusal("ivy.json", "{\n  \"nodes\": [\n");
    assert!(notation.starts_with("ivy.json:3: is not valid JSON: "), "{notation}");
}

#[test]
fn refusals_of_variables_and_flags_name_them() {
    let said = |sources: Sources| sources.load().unwrap_err().to_string();
    let variable = |name: &str, value: &str| said(Sources::new().variable(name, value));
    assert_eq!(
        variable("TRELLIS_PAGE_BYTES", "3"),
        "TRELLIS_PAGE_BYTES: 3 is not a page size; accepted: a power of two from 4096 to 2097152, such as 4096"
    );
    assert_eq!(
        variable("TRELLIS_PAGE_BYTE", "4096"),
        "TRELLIS_PAGE_BYTE: no key has this name; did you mean TRELLIS_PAGE_BYTES?"
    );
    assert_eq!(
        variable("TRELLIS_NODES", "a:1,b"),
        "TRELLIS_NODES: `b` has no port; accepted: host:port, such as 10.0.0.1:2000 or [::1]:2000"
    );
    assert_eq!(variable("TRELLIS_NODE", "1"), "TRELLIS_NODE: there is no node 1; accepted: 0, the only node");
    let flag = |flag: &str| said(Sources::new().set(flag));
    assert_eq!(
        flag("page_bytes"),
        "--set page_bytes: has no equals sign; accepted: key=value, such as page_bytes=16KiB"
    );
    assert_eq!(flag("page_size=3"), "--set page_size=3: no key has this name; did you mean page_bytes?");
    assert!(flag("colour=red").starts_with("--set colour=red: no key has this name; accepted: nodes, node, manager,"));
    assert_eq!(flag("catch="), "--set catch=: this is empty; accepted: auto, signal, handler, mprotect");
    let other = Sources::new().variable("TRELLIS_NODES", "a:1,b:2").variable("TRELLIS_NODE", "1").set("node=0");
    assert_eq!(
        said(other),
        "--set node=0: the environment says TRELLIS_NODE=1; give the program the same node number, or none"
    );
    assert_eq!(
        said(Sources::new().variable("TRELLIS_NODES", "a:1,b:2")),
        "node: there are 2 nodes, and the number of this one is not set; start the program with `trellis run`, or set TRELLIS_NODE to a number from 0 to 1"
    );
    assert!(Sources::new().variable("TRELLIS_NODES", "a:1,b:2").load_for_all().is_ok());
    assert!(Sources::new().variable("TRELLIS_SOMETHING_ELSE", "1").load().is_ok(), "somebody else's");
    for name in LAB_VARIABLES {
        assert!(Sources::new().variable(*name, "1").load().is_ok(), "{name} is a lab's");
    }
}

#[test]
fn a_setting_of_the_program_is_named_as_such() {
    let error = Sources::new().set_by_program("page_bytes=5000").set("node=0").load().unwrap_err().to_string();
    assert!(error.contains("page_bytes=5000 (set by the program)"), "{error}");
    let error = Sources::new().set("link=pigeon").set("node=0").load().unwrap_err().to_string();
    assert!(error.contains("accepted: auto, tcp, udp, shm"), "{error}");
}

#[test]
fn too_many_nodes_are_refused() {
    let addresses = |count: usize| (0..count).map(|node| format!("host:{}", node + 1)).collect::<Vec<_>>().join(",");
    assert!(Sources::new().variable("TRELLIS_NODES", addresses(NODES_MAX)).load_for_all().is_ok());
    let error = Sources::new().variable("TRELLIS_NODES", addresses(NODES_MAX + 1)).load_for_all().unwrap_err();
    assert_eq!(error.to_string(), "TRELLIS_NODES: 65 nodes are too many; accepted: at most 64");
}

#[test]
fn a_file_that_is_no_configuration_is_refused() {
    let scratch = Scratch::new();
    let missing = Sources::new().file(scratch.folder.file("none.toml")).load().unwrap_err().to_string();
    assert!(missing.contains("none.toml: cannot be read (No such file or directory"), "{missing}");
    let folder = Sources::new().file(scratch.folder.path()).load().unwrap_err().to_string();
    assert!(folder.contains("cannot be read (Is a directory"), "{folder}");
    let large = Sources::new().file(scratch.file("large", &"#".repeat((1 << 20) + 1))).load().unwrap_err();
    assert!(large.to_string().contains("is larger than 1 MiB"));
    let path = scratch.folder.file("binary");
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(Sources::new().file(path).load().unwrap_err().to_string().contains("is not UTF-8 text"));
    let empty = Sources::new().variable(FILE_VARIABLE, "").load().unwrap_err().to_string();
    assert_eq!(empty, "TRELLIS_CONFIG: this is empty; accepted: the path of a configuration file");
}

#[test]
fn the_defaults_are_a_valid_configuration_and_the_documented_one() {
    assert_eq!(Sources::new().load().unwrap(), Config::default());
    for key in KEYS {
        let Some(sample) =
            key.default.split(['(', ';', ' ']).next().filter(|sample| !matches!(*sample, "[]" | "none" | ""))
        else {
            continue;
        };
        let config = Sources::new().set(format!("{}={sample}", key.name)).load().unwrap();
        let expected = Config { places: config.places.clone(), ..Config::default() };
        assert_eq!(config, expected, "the documented default of {}", key.name);
    }
}

#[test]
fn the_default_home_follows_the_protocol_of_the_region() {
    let home = |settings: &[&str]| {
        let sources = settings.iter().fold(Sources::new(), |sources, setting| sources.set(*setting));
        sources.load().unwrap().home
    };
    assert_eq!(home(&[]), Home::Manager);
    assert_eq!(home(&["coherence=hlrc(adaptive)"]), Home::FirstTouch);
    assert_eq!(home(&["coherence=hlrc", "home=manager"]), Home::Manager, "what is said counts");
    assert_eq!(home(&["region_bytes=1MiB", "coherence_ranges=0-64KiB=hlrc"]), Home::Manager);
}

#[test]
fn the_reference_page_lists_every_key_with_its_default() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/configuration.md");
    let page = std::fs::read_to_string(&path).unwrap();
    for key in KEYS {
        let row = format!("| `{}` | {} | {} | {} |", key.name, key.accepted, key.default, key.meaning);
        assert!(page.contains(&row), "{} lacks the row\n{row}", path.display());
    }
    let rows = page.lines().filter(|line| line.starts_with("| `") && line.matches(" | ").count() == 3).count();
    assert_eq!(rows, KEYS.len(), "the page has rows for keys that do not exist");
}

#[test]
fn a_group_for_multicasts_is_read() {
    let sources = Sources::new().set("link=udp");
    for text in ["auto", "off", "239.1.2.3", "239.1.2.3:4567"] {
        let config = sources.clone().set(format!("multicast_group={text}")).load().unwrap();
        let LinkKind::Udp { multicast, .. } = config.link else { panic!("{config:?}") };
        assert_eq!(multicast.to_string(), text);
    }
    let sentence = sources.set("multicast_group=10.0.0.1").load().unwrap_err().to_string();
    assert!(sentence.starts_with("--set multicast_group=10.0.0.1: "), "{sentence}");
}

#[test]
fn a_bad_network_is_read_and_taken_back() {
    let sources = Sources::new().set("link=udp").set("link_faults=drop=10%,duplicate=5%,reorder=5%,seed=7");
    let faults_of = |sources: Sources| match sources.load().unwrap().link {
        LinkKind::Udp { faults, .. } => faults,
        other => panic!("{other}"),
    };
    let faults = faults_of(sources.clone()).unwrap();
    assert_eq!((faults.drop_ppm, faults.duplicate_ppm, faults.reorder_ppm, faults.seed), (100_000, 50_000, 50_000, 7));
    assert_eq!(faults_of(sources.clone().set("link_faults=")), None);
    let sentence = sources.set("link_faults=drop=much").load().unwrap_err().to_string();
    assert!(sentence.starts_with("--set link_faults=drop=much: "), "{sentence}");
}

#[test]
fn protocols_are_read_from_every_source() {
    let scratch = Scratch::new();
    let text = "coherence = \"delay(lock(dynamic(forward)), 500us)\"\ncoherence_ranges = [\"0-1MiB=lock(dynamic)\"]\n";
    let from_file = Sources::new().file(scratch.file("trellis.toml", text)).load().unwrap();
    assert_eq!(from_file.coherence.to_string(), "delay(lock(dynamic(forward)), 500us)");
    let whole = [CoherenceRange { first: 0, end: 1 << 20, protocol: "lock(dynamic)".parse().unwrap() }];
    assert_eq!(from_file.coherence_ranges, whole);
    let sources = Sources::new().variable("TRELLIS_COHERENCE_RANGES", "0-4KiB=lock(ivy, spin 9us), 1MiB-2MiB=migrate");
    let from_variable = sources.clone().load().unwrap();
    assert_eq!(from_variable.coherence_ranges.len(), 2);
    let from_flag = sources.set("coherence_ranges=").set("coherence=dynamic").load().unwrap();
    assert_eq!((from_flag.coherence, from_flag.coherence_ranges.len()), (Protocol::DYNAMIC, 0));
}

#[test]
fn nodes_with_other_protocols_learn_in_what_and_the_longest_agreement_fits() {
    let ranges = |text: &str| Sources::new().set(format!("coherence_ranges={text}")).load().unwrap().coherence_ranges;
    let ours = Config { coherence: "lock(ivy, spin 7us)".parse().unwrap(), ..Config::default() };
    let theirs = Config { coherence: "lock(ivy)".parse().unwrap(), ..Config::default() };
    assert!(ours.agree(&theirs.agreement()).unwrap_err().starts_with("it has coherence lock(ivy), this node has "));
    let theirs = Config { coherence_ranges: ranges("0-4096=migrate"), ..ours.clone() };
    let sentence = ours.agree(&theirs.agreement()).unwrap_err();
    assert!(sentence.starts_with("it has coherence_ranges ") && sentence.contains("this node has none"), "{sentence}");
    let longest = Config {
        peers: Peers::Listed((0..54).map(|node| format!("host-{node}:1")).collect()),
        manager: 53,
        joiners_max: 10,
        region_bytes: 64 << 30,
        heap_bytes: Some((64 << 30) - (2 << 20)),
        base_address: 0x7fef_efff_f000,
        page_bytes: 2 << 20,
        coherence: "delay(lock(dynamic(redirect), spin 4294967295us), 4294967295us)".parse().unwrap(),
        coherence_ranges: ranges("0-4096=ivy"),
        home: Home::Interleaved,
        security: Security::InsecurePlain,
        ..Config::default()
    };
    // This holds for any length of the name, whether or not it is spelt out.
    for coherence in
        ["ivy", "lock(dynamic(forward))", "delay(lock(dynamic(forward)))", "lock(delay(dynamic, 5us), spin 1us)"]
    {
        let other = Config { coherence: coherence.parse().unwrap(), ..longest.clone() };
        assert!(other.agreement().len() <= 256, "{coherence}");
        assert_ne!(longest.agreement(), other.agreement());
        assert!(longest.agree(&other.agreement()).unwrap_err().starts_with("it has coherence "), "{coherence}");
    }
    assert!(longest.agreement().len() <= 256);
}

#[test]
fn nodes_agree_where_the_shared_heap_begins() {
    let with = |heap_bytes| Config { region_bytes: 1 << 20, heap_bytes, ..Config::default() };
    assert_eq!(
        with(Some(64 << 10)).agree(&with(None).agreement()).unwrap_err(),
        "it has heap_bytes 524288, this node has 65536; start every node with the same configuration and version"
    );
    let sentence = with(None).agree(&with(Some(4096)).agreement()).unwrap_err();
    assert!(sentence.starts_with("it has heap_bytes 4096, this node has 524288"), "{sentence}");
    // Giving the default explicitly makes no difference.
    assert_eq!(with(None).agree(&with(Some(512 << 10)).agreement()), Ok(()));
    assert_ne!(with(Some(0)).agreement(), with(None).agreement());
}

#[test]
fn nodes_agree_how_many_may_join() {
    let (none, some) = (Config::default(), Config { joiners_max: 2, ..Config::default() });
    assert!(none.agree(&some.agreement()).unwrap_err().starts_with("it has joiners_max 2, this node has 0"));
    assert!(some.agree(&none.agreement()).unwrap_err().starts_with("it has joiners_max 0, this node has 2"));
}

#[test]
fn nodes_that_differ_learn_in_what() {
    let ours = Config { peers: Peers::Listed(vec!["a:1".to_owned(), "b:2".to_owned()]), ..Config::default() };
    let theirs = Config { page_bytes: 8192, node: 1, record: Some(PathBuf::from("/tmp")), ..ours.clone() };
    assert_eq!(ours.agree(&Config { node: 1, ..ours.clone() }.agreement()), Ok(()));
    assert_eq!(
        ours.agree(&theirs.agreement()).unwrap_err(),
        "it has page_bytes 8192, this node has 4096; start every node with the same configuration and version"
    );
    assert!(ours.agree("").unwrap_err().contains("it does not say its version"));
    assert!(
        ours.agree(&format!("{} colour=red", ours.agreement())).unwrap_err().contains("more than this version knows")
    );
}

#[test]
fn the_heap_is_a_part_of_the_region_in_whole_pages() {
    let load = |heap: &str| Sources::new().set("region_bytes=1MiB").set(format!("heap_bytes={heap}")).load();
    assert_eq!(load("64KiB").unwrap().heap_bytes, Some(64 << 10));
    assert_eq!(load("1MiB").unwrap().heap_bytes, Some(1 << 20));
    for wrong in ["2MiB", "1000"] {
        let error = load(wrong).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--set heap_bytes={wrong}: ")), "{error}");
        assert!(error.contains("accepted: 0 to 1048576"), "{error}");
    }
}

#[test]
fn the_link_fabric_is_for_builds_that_have_it_and_for_networks_that_are_trusted() {
    let sources = Sources::new().set("link=fabric").set("fabric_provider=shm");
    if cfg!(not(feature = "fabric")) {
        let sentence = sources.load().unwrap_err().to_string();
        assert!(sentence.starts_with("--set link=fabric") && sentence.contains("has no link fabric"), "{sentence}");
        assert!(sentence.contains("--features fabric") && sentence.contains("link = auto"), "{sentence}");
        return;
    }
    let link = |sources: Sources| sources.load().unwrap().link;
    assert_eq!(link(sources.clone()), LinkKind::Fabric { provider: Some("shm".to_owned()) });
    assert_eq!(link(sources.clone().set("fabric_provider=")), LinkKind::Fabric { provider: None });
    let sentence = sources.clone().set("joiners_max=1").load().unwrap_err().to_string();
    assert!(sentence.contains("no process can join a running cluster over fabric"), "{sentence}");
    for security in ["sealed", "signed"] {
        let sentence = sources.clone().set(format!("security={security}")).load().unwrap_err().to_string();
        assert!(sentence.contains("security = insecure-plain"), "{sentence}");
    }
}

#[test]
fn a_provider_without_the_link_fabric_is_a_mistake() {
    let sentence = Sources::new().set("fabric_provider=shm").load().unwrap_err().to_string();
    assert!(sentence.contains("set link = fabric"), "{sentence}");
}
