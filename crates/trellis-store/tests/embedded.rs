//! Tests the store `embedded`.

mod conformance;

use std::sync::Arc;

use trellis_store::{Key, Store, open};

#[test]
fn embedded_is_a_store() {
    let store = open("embedded:").unwrap();
    conformance::run("embedded", &|| Arc::clone(&store));
}

#[test]
fn a_name_is_the_same_store_as_long_as_somebody_has_it() {
    let key = Key::page(1, 1);
    let one = open("embedded:shared").unwrap();
    one.apply(&[conformance::put(&key, b"here")], None).unwrap();
    let found = |store: &Arc<dyn Store>| store.get_many(std::slice::from_ref(&key)).unwrap().remove(0);
    let two = open("embedded:shared").unwrap();
    assert_eq!(found(&two).unwrap(), b"here");
    assert_eq!(found(&open("embedded:").unwrap()), None);
    drop((one, two));
    assert_eq!(found(&open("embedded:shared").unwrap()), None);
}
