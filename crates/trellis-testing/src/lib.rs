//! What tests of several crates share. It is not part of the product: crates have it only as a dev-dependency.

pub mod scripts;
