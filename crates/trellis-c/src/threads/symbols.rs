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
            Some(Variable { addresses: start..start + symbol.size() as usize, name: name.to_owned() })
        }));
    }
    found
}
