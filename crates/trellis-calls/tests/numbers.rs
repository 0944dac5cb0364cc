//! Every system call of the kernel is in one class: served by a function or on private memory, without memory, or refused.

#![allow(dead_code)] // the library uses what this test does not

#[path = "../src/classes.rs"]
mod classes;
#[path = "../src/numbers.rs"]
mod numbers;

use std::collections::BTreeMap;

use classes::{BY_COMMAND, CALLED_OTHERWISE, REFUSED, WITH_MEMORY, WITHOUT_MEMORY};

/// The numbers that the kernel has given to system calls, up to the newest one here.
fn all() -> impl Iterator<Item = i64> {
    #[cfg(target_arch = "x86_64")]
    let old = 0..335;
    // Some are for calls of single architectures.
    #[cfg(target_arch = "aarch64")]
    let old = (0..244).chain(260..295);
    old.chain(424..libc::SYS_mseal + 1)
}

/// The names of the system calls that functions of the table do.
fn of_functions() -> Vec<&'static str> {
    let table = include_str!("../src/table.rs").split_once("\ncalls! {\n").expect("the table").1;
    let name = |line: &'static str| line.strip_suffix(';')?.rsplit_once(", ").map(|(_, name)| name);
    table.lines().filter_map(name).filter(|name| name.starts_with("SYS_")).collect()
}

#[test]
fn every_system_call_is_in_one_class() {
    let with_memory = WITH_MEMORY.iter().map(|(number, name, _)| (*number, *name));
    let others = [BY_COMMAND, CALLED_OTHERWISE, WITHOUT_MEMORY, REFUSED].into_iter().flatten().copied();
    let mut known = BTreeMap::new();
    // A call that the kernel does not have here has a negative number.
    for (number, name) in with_memory.chain(others).filter(|(number, _)| *number >= 0) {
        let before = known.insert(number, name);
        assert_eq!(before, None, "{number} is {name}, too");
    }
    let functions = of_functions();
    for name in &functions {
        assert!(!known.values().any(|other| other == name), "{name} has a function, and another class");
        assert_eq!(functions.iter().filter(|other| other == &name).count(), 1, "{name} has one function");
    }
    let rest: Vec<i64> = all().filter(|number| !known.contains_key(number)).collect();
    let strange: Vec<_> = known.iter().filter(|(number, _)| !all().any(|other| other == **number)).collect();
    assert!(strange.is_empty(), "{strange:?} are not numbers of this list");
    if cfg!(target_arch = "x86_64") {
        // All others have a function: there are as many.
        assert_eq!(rest.len(), functions.len(), "{rest:?}\n{functions:?}");
    }
}
