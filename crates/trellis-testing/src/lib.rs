//! What tests of several crates share. It is no part of the product: crates have it as a dependency of their tests alone.

pub mod scripts;
