//! No code: cargo wants a target in every package, and this one only names where foreign sources come from.
