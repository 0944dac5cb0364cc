//! Programs written for libivy, compiled unchanged and started by hand as users start them: one process per node, in
//! any order.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{CPP_OF_LIBIVY, Node};

fn compile(test: &str, source: &str) -> Option<PathBuf> {
    let flags = support::libivy_link_flags();
    support::compile(
        test,
        &CPP_OF_LIBIVY,
        &support::program(source),
        &flags.iter().map(String::as_str).collect::<Vec<_>>(),
    )
}

/// libivy's JSON for nodes on loopback.
fn configure(folder: &Path, nodes: usize, manager: usize) -> String {
    let file = folder.join("cluster.json");
    let list = support::addresses(nodes).iter().map(|address| format!("\"{address}\"")).collect::<Vec<_>>().join(", ");
    let text = format!(
        "{{ \"nodes\": [{list}], \"manager_id\": {manager}, \"region_sz\": 4194304, \"base_addr\": \"0x10000000000\" }}\n"
    );
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

fn start(folder: &Path, program: &Path, id: usize, arguments: &[&str]) -> Node {
    // How long a finished manager waits for nodes that the file lists but that were never started.
    let variables = [("TRELLIS_START_SECONDS_MAX", "10")];
    Node::start(folder, &id.to_string(), Command::new(program).args(arguments).current_dir(folder), &variables)
}

/// Every order in which three nodes can start.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

#[test]
fn the_papers_listings_work_as_printed() {
    let Some(program) = compile("listing1", "listing1.cc") else { return };
    let folder = support::fresh_folder("listings");
    std::fs::create_dir(folder.join("path")).unwrap();
    std::fs::copy(support::program("listing2.json"), folder.join("path/to-config")).unwrap();
    std::fs::create_dir_all(folder.join("path/to")).unwrap();
    std::fs::rename(folder.join("path/to-config"), folder.join("path/to/config")).unwrap();
    // The listing's ports may be in use on this machine; its file is used as printed, and the environment moves the
    // nodes.
    let list = support::addresses(3).join(",");
    let start = |id: usize| {
        let mut command = Command::new(&program);
        command.arg(id.to_string()).current_dir(&folder);
        Node::start(&folder, &id.to_string(), &mut command, &[("TRELLIS_NODES", &list)])
    };
    // The first process to finish, a worker or the manager, is still there for later ones.
    for order in [[0, 1, 2], [2, 0, 1]] {
        let mut nodes = Vec::new();
        for id in order {
            let mut node = start(id);
            if nodes.is_empty() && id == 0 {
                node.until_printed("node 0 wrote at 0x10000000000");
            }
            nodes.push(node);
        }
        for (id, node) in order.iter().zip(&mut nodes) {
            assert_eq!(node.succeed(), format!("node {id} wrote at 0x10000000000\n"));
        }
    }
}

#[test]
fn a_sort_is_right_in_whatever_order_the_nodes_start() {
    let Some(program) = compile("ivy-sort", "ivy_sort.cc") else { return };
    let folder = support::fresh_folder("ivy-sort-runs");
    let numbers: Vec<u64> = (0..4096u64).map(|i| i * 7919 % 4096).collect();
    let input = folder.join("numbers.txt");
    let text: Vec<String> =
        std::iter::once(numbers.len() as u64).chain(numbers).map(|number| number.to_string()).collect();
    std::fs::write(&input, text.join("\n")).unwrap();
    let expected: String = (0..4096).map(|number| format!("{number}\n")).collect::<String>() + "All done\n";
    for order in ORDERS {
        // The file lists two nodes more than are started.
        let config = configure(&folder, 5, 0);
        let mut cluster: Vec<Node> = order
            .iter()
            .map(|id| start(&folder, &program, *id, &[input.to_str().unwrap(), &config, &id.to_string()]))
            .collect();
        let manager = order.iter().position(|id| *id == 0).unwrap();
        let printed = cluster[manager].until_printed("All done");
        assert!(printed == expected, "order {order:?}: the manager printed the sorted integers");
        for node in &mut cluster {
            node.until_printed("All done");
        }
    }
}

#[test]
fn a_dot_product_is_right_when_the_manager_comes_last() {
    let Some(program) = compile("ivy-dot", "ivy_dot.cc") else { return };
    let folder = support::fresh_folder("ivy-dot-runs");
    let input = folder.join("vectors.txt");
    let vectors = [(1..=512u64).collect::<Vec<_>>(), (1..=512u64).map(|i| i % 7).collect()];
    let product: u64 = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum();
    let text: Vec<String> = vectors.iter().flatten().map(u64::to_string).collect();
    std::fs::write(&input, format!("1024\n{}\n", text.join(" "))).unwrap();
    let config = configure(&folder, 4, 0);
    let mut cluster: Vec<Node> = [3, 2, 1, 0]
        .iter()
        .map(|id| start(&folder, &program, *id, &[input.to_str().unwrap(), &config, &id.to_string()]))
        .collect();
    assert!(cluster[2].until_printed("All done").contains(&format!("Dot product: {product}\n")));
}

#[test]
fn the_configured_manager_manages() {
    let Some(program) = compile("ivy-turns", "ivy_turns.cc") else { return };
    let folder = support::fresh_folder("ivy-turns-runs");
    let config = configure(&folder, 3, 2);
    let mut cluster: Vec<Node> =
        (0..3).map(|id| start(&folder, &program, id, &[&config, &id.to_string(), "3"])).collect();
    for (id, node) in cluster.iter_mut().enumerate() {
        assert_eq!(node.succeed(), format!("manager = {}\nCounter updated to 50\n", u8::from(id == 2)));
    }
}

#[test]
fn nodes_that_were_never_started_keep_nobody_from_leaving() {
    let Some(program) = compile("ivy-few", "ivy_turns.cc") else { return };
    let folder = support::fresh_folder("ivy-few-runs");
    let config = configure(&folder, 4, 1);
    let mut cluster: Vec<Node> =
        (0..2).map(|id| start(&folder, &program, id, &[&config, &id.to_string(), "2"])).collect();
    for node in &mut cluster {
        assert!(node.succeed().ends_with("Counter updated to 50\n"));
    }
}

#[test]
fn every_name_of_the_interface_does_what_it_says() {
    let Some(program) = compile("ivy-interface", "ivy_interface.cc") else { return };
    let folder = support::fresh_folder("ivy-interface-runs");
    let config = configure(&folder, 1, 0);
    let mut node = start(&folder, &program, 0, &[&config]);
    assert_eq!(node.succeed(), "interface complete\n", "{}", node.complained());
    let complaints = node.complained();
    assert!(complaints.contains("0000  A5A5"), "the page is dumped: {complaints}");
    assert!(complaints.contains("there is no page"), "{complaints}");
}

#[test]
fn what_is_wrong_with_a_configuration_is_an_exception_with_a_sentence() {
    let Some(program) = compile("ivy-wrong", "listing1.cc") else { return };
    let folder = support::fresh_folder("ivy-wrong-runs");
    std::fs::create_dir_all(folder.join("path/to")).unwrap();
    std::fs::write(folder.join("path/to/config"), "{ \"nodes\": [\"localhost:2000\"],\n\"manager\": 0 }").unwrap();
    let mut node = start(&folder, &program, 0, &["0"]);
    assert!(!node.end().success());
    let complaint = node.complained();
    assert!(complaint.contains("path/to/config:2: manager: "), "{complaint}");
}
