//! The variables of the program and its libraries, by their symbols.
//!
//! Promises: the variables are the same on every node, which has the same files. A file without symbols has none.

use std::ops::Range;
use std::path::Path;

use object::{Object as _, ObjectSymbol as _, SymbolKind};

use crate::layout::objects;

/// A variable.
pub(super) struct Variable {
    pub(super) addresses: Range<usize>,
    pub(super) name: String,
}

/// The variables of the program, and of those libraries whose variables its threads share. Some have several names.
pub(super) fn variables() -> Vec<Variable> {
    let mut found = Vec::new();
    for object in objects().iter().filter(|object| !object.is_of_process) {
        let path = if object.is_program { Path::new("/proc/self/exe") } else { Path::new(&object.path) };
        let Ok(bytes) = std::fs::read(path) else { continue };
        let Ok(file) = object::File::parse(&*bytes) else { continue };
        let symbols = file.symbols().chain(file.dynamic_symbols());
        found.extend(symbols.filter_map(|symbol| {
            let is_variable = symbol.kind() == SymbolKind::Data && symbol.is_definition() && symbol.size() > 0;
            let name = symbol.name().ok().filter(|_| is_variable)?;
            let start = object.base + symbol.address() as usize;
            Some(Variable { addresses: start..start + symbol.size() as usize, name: source_name(name) })
        }));
    }
    found
}

/// The name of a variable in the source, where C++ has made another one from it (Itanium C++ ABI, 5.1: `_ZL` and a name, or
/// `_ZN` and names up to an `E`); otherwise the name as it is.
fn source_name(symbol: &str) -> String {
    let one = |text: &'_ str| -> Option<(String, String)> {
        let digits = text.len() - text.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
        let (count, rest) = text.split_at_checked(digits)?;
        let (name, rest) = rest.split_at_checked(count.parse().ok()?)?;
        Some((name.to_owned(), rest.to_owned()))
    };
    let nested = |text: &str| -> Option<String> {
        let (mut names, mut rest) = (Vec::new(), text.strip_prefix('L').unwrap_or(text).to_owned());
        while rest != "E" {
            let (name, after) = one(rest.strip_prefix('L').unwrap_or(&rest))?;
            names.push(name);
            rest = after;
        }
        Some(names.join("::"))
    };
    let plain = || symbol.strip_prefix("_ZL").and_then(one).filter(|(_, rest)| rest.is_empty()).map(|(name, _)| name);
    plain().or_else(|| symbol.strip_prefix("_ZN").and_then(nested)).unwrap_or_else(|| symbol.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        for (symbol, name) in [
            ("u", "u"),
            ("_ZL5cells", "cells"),
            ("_ZN2ns5cellsE", "ns::cells"),
            ("_ZN12_GLOBAL__N_1L5cellsE", "_GLOBAL__N_1::cells"),
            ("_ZZ4mainE5table", "_ZZ4mainE5table"),
            ("_ZL99x", "_ZL99x"),
            ("_ZSt4cout", "_ZSt4cout"),
        ] {
            assert_eq!(source_name(symbol), name);
        }
    }
}
