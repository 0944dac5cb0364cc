//! Clusters and stores have the same objects with the same words: the same program runs on both.

mod support;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use trellis::stored::coherence::log::{Coherence, Identity, NoCopies};
use trellis::stored::settings::Settings;
use trellis::stored::stores;
use trellis::stored::synchronisation::{Options, Session, member};

const SOON: Duration = Duration::from_millis(1);

/// An object of a cluster, which cannot fail to be named.
fn named<T>(object: T) -> T {
    object
}

/// An object of a store.
fn found<T, E: Debug>(object: Result<T, E>) -> T {
    object.unwrap()
}

/// One thread uses every word once.
macro_rules! every_word {
    ($objects:expr, $object:ident) => {
        let mutex = $object($objects.mutex(1));
        let mut guard = mutex.lock().unwrap();
        assert!(mutex.try_lock().unwrap().is_none() && mutex.try_lock_for(SOON).unwrap().is_none());

        let condvar = $object($objects.condvar(1));
        assert!(!condvar.wait_for(&mut guard, SOON).unwrap(), "nobody notified");
        condvar.wait_while(&mut guard, || false).unwrap();
        condvar.notify_one().unwrap();
        condvar.notify_all().unwrap();
        guard.unlock().unwrap();
        drop(mutex.try_lock().unwrap().expect("it is free"));

        let rwlock = $object($objects.rwlock(1));
        let readers = (rwlock.read().unwrap(), rwlock.try_read().unwrap().expect("readers share it"));
        assert!(rwlock.try_write().unwrap().is_none() && rwlock.try_write_for(SOON).unwrap().is_none());
        readers.0.unlock().unwrap();
        readers.1.unlock().unwrap();
        let writer = rwlock.write().unwrap();
        assert!(rwlock.try_read().unwrap().is_none() && rwlock.try_read_for(SOON).unwrap().is_none());
        writer.unlock().unwrap();

        let semaphore = $object($objects.semaphore(1));
        semaphore.release(2).unwrap();
        semaphore.acquire().unwrap();
        assert_eq!(semaphore.value().unwrap(), 1);
        assert!(semaphore.try_acquire().unwrap() && !semaphore.try_acquire_for(SOON).unwrap());

        let event = $object($objects.event(1));
        assert!(!event.wait_for(SOON).unwrap() && !event.is_set().unwrap());
        event.set().unwrap();
        event.wait().unwrap();
        event.clear().unwrap();

        let once = $object($objects.once(1));
        assert!(once.call_once(|| ()).unwrap() && !once.call_once(|| ()).unwrap());

        assert!($object($objects.barrier_of(1, 1)).wait().unwrap(), "the last to arrive");
    };
}

#[test]
fn one_program_uses_the_objects_of_a_cluster() {
    support::run(
        1,
        |_| (),
        |cluster| {
            every_word!(cluster, named);
        },
    );
}

#[test]
fn and_those_of_a_store() {
    let store = stores::open(&Settings::default()).unwrap();
    let (region, lease) = (1, member::LEASE.time());
    let member = member::join(&*store, region, lease).unwrap();
    let who = Identity { name: "words".to_owned(), region, member, lease, is_private: false };
    let shared = Coherence::new(store, who, Arc::new(NoCopies), 0);
    let session = Session::new(Arc::new(shared), Options::default()).unwrap();
    every_word!(session, found);
}
