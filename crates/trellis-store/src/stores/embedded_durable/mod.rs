//! The store `embedded-durable`: a file of this machine, managed by redb.
//!
//! redb was chosen because it is maintained, depends only on libc, has transactions that cover everything that a call
//! may touch, and has written a commit to the disk when the commit returns. Promises: an acknowledged call survives a
//! killed process and a loss of power, and a call that was not acknowledged is present completely or not at all.
//!
//! A commit waits for the disk, so calls that arrive while a commit is under way are committed together, in the order
//! of their arrival. One process has the file open at a time. After a crash the file is checked when it is opened,
//! which takes time in proportion to its size.
//!
//! It must never acknowledge a call before its commit.

mod file;
mod format;
mod losses;
pub mod rescue;
mod survey;
mod tables;

use std::collections::VecDeque;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use redb::backends::FileBackend;
use redb::{Database, DatabaseError, ReadableDatabase, StorageError};

use crate::capabilities::{Atomic, Capabilities};
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation};
use crate::steps;
use crate::store::Store;
use crate::stores::address;
use crate::transaction;
use file::Aside;
use tables::{Read, Write};

const CAPABILITIES: Capabilities = Capabilities {
    atomic: Atomic::Call,
    byte_ranges: false,
    native_add: true,
    wait: true,
    durable: true,
    shared: false,
    value_bytes_max: 16 << 20,
    operations_max: 1 << 16,
    call_bytes_max: 64 << 20,
};

/// How much of the file is cached: the inner pages that lead to every page of some GiB. The users of the store cache
/// pages themselves, and this process may be one that is short of memory.
const CACHE_BYTES: usize = 32 << 20;
/// The maximum number of calls that are committed together.
const TOGETHER_MAX: usize = 256;

/// A store in a file.
pub struct EmbeddedDurable {
    name: String,
    path: PathBuf,
    file: Database,
    /// Calls that wait for the commit under way.
    queue: Mutex<VecDeque<Job>>,
    /// Held by the thread that commits.
    writer: Mutex<()>,
    changes: Changes,
}

/// The number of commits that changed something, for threads that wait for a change.
#[derive(Default)]
struct Changes {
    count: Mutex<u64>,
    more: Condvar,
}

/// A call that waits to be carried out.
struct Job {
    operations: Vec<Operation>,
    guard: Option<Guard>,
    answer: SyncSender<Result<Applied, StoreError>>,
}

/// Opens `embedded-durable:`.
pub(super) fn open(url: &str, path: &str) -> Result<Arc<dyn Store>, StoreError> {
    let path = path.strip_prefix("//").unwrap_or(path);
    if !path.starts_with('/') {
        return Err(address(url, "a file needs its whole path"));
    }
    Ok(Arc::new(EmbeddedDurable::open(Path::new(path))?))
}

/// Opens a file with redb; an empty file becomes a store.
fn database(path: &Path, file: File) -> Result<Database, StoreError> {
    let opened = catch_unwind(|| {
        let backend = FileBackend::new(file)?;
        Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend)
    });
    match opened {
        Err(_) => Err(file::damaged(path, "redb stumbled over it")),
        Ok(Ok(database)) => Ok(database),
        Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => Err(file::in_use(path)),
        Ok(Err(DatabaseError::Storage(StorageError::Corrupted(reason)))) => Err(file::damaged(path, &reason)),
        Ok(Err(DatabaseError::Storage(StorageError::Io(error)))) => Err(file::failed(path, "opened", &error)),
        Ok(Err(error)) => Err(StoreError::Protocol {
            store: file::name(path),
            reason: format!("its file cannot be opened: {error}; name a file that this release of Trellis made"),
        }),
    }
}

/// Creates a store with its tables in an empty file, so that readers find the tables.
fn new_database(path: &Path, file: File) -> Result<Database, StoreError> {
    let database = database(path, file)?;
    let made = || -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        Write::new(&transaction)?;
        Ok(transaction.commit()?)
    };
    match made() {
        Ok(()) => Ok(database),
        Err(error) => {
            let reason = format!("its file cannot be made: {error}");
            Err(StoreError::Protocol { store: file::name(path), reason })
        }
    }
}

impl EmbeddedDurable {
    /// Opens the store in a file, or creates one if there is nothing at the path.
    ///
    /// # Errors
    ///
    /// When another process has the file open, when the file is damaged or no store, or when the system refuses access.
    pub fn open(path: &Path) -> Result<EmbeddedDurable, StoreError> {
        if let Some(store) = EmbeddedDurable::open_existing(path)? {
            return Ok(store);
        }
        let aside = Aside::begin(path)?;
        let database = new_database(path, aside.file()?)?;
        if aside.finish()? {
            return Ok(EmbeddedDurable::of(path, database));
        }
        // Another process created the file in the meantime.
        drop(database);
        match EmbeddedDurable::open_existing(path)? {
            Some(store) => Ok(store),
            None => Err(file::failed(path, "made", &std::io::ErrorKind::AlreadyExists.into())),
        }
    }

    fn open_existing(path: &Path) -> Result<Option<EmbeddedDurable>, StoreError> {
        let Some(file) = file::existing(path, true)? else { return Ok(None) };
        file::check_beginning(path, &file)?;
        Ok(Some(EmbeddedDurable::of(path, database(path, file)?)))
    }

    fn of(path: &Path, file: Database) -> EmbeddedDurable {
        EmbeddedDurable {
            name: file::name(path),
            path: path.to_owned(),
            file,
            queue: Mutex::default(),
            writer: Mutex::default(),
            changes: Changes::default(),
        }
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> StoreError {
        StoreError::Protocol { store: self.name.clone(), reason: format!("its file fails: {error}") }
    }

    /// Runs work on the file and turns a panic of redb into an error: checksums are not verified here, and redb may panic
    /// on a damaged page.
    fn guarded<T>(&self, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        catch_unwind(AssertUnwindSafe(work))
            .unwrap_or_else(|_| Err(file::damaged(&self.path, "redb stumbled over it while it was used")))
    }

    fn read(&self) -> Result<Read, StoreError> {
        let transaction = self.file.begin_read().map_err(|error| self.failed(&error))?;
        Read::new(transaction, &self.name)
    }

    /// Carries out a call, together with other waiting calls.
    fn change(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        let (answer, answered) = sync_channel(1);
        let job = Job { operations: operations.to_vec(), guard: guard.cloned(), answer };
        locked(&self.queue).push_back(job);
        let writer = locked(&self.writer);
        // The previous committer may have carried out this call with its own.
        if let Ok(answer) = answered.try_recv() {
            return answer;
        }
        loop {
            let mut queue = locked(&self.queue);
            let count = queue.len().min(TOGETHER_MAX);
            let jobs: Vec<Job> = queue.drain(..count).collect();
            drop(queue);
            self.commit(jobs);
            if let Ok(answer) = answered.try_recv() {
                drop(writer);
                return answer;
            }
        }
    }

    /// Carries out calls in one transaction, and answers each.
    fn commit(&self, jobs: Vec<Job>) {
        let answers = self.guarded(|| self.commit_all(&jobs));
        for (place, job) in jobs.iter().enumerate() {
            let answer = match &answers {
                Ok(answers) => Ok(answers[place].clone()),
                Err(error) => Err(error.clone()),
            };
            // The receiver exists as long as the caller waits.
            job.answer.send(answer).ok();
        }
    }

    fn commit_all(&self, jobs: &[Job]) -> Result<Vec<Applied>, StoreError> {
        let transaction = self.file.begin_write().map_err(|error| self.failed(&error))?;
        let mut answers = Vec::with_capacity(jobs.len());
        let mut changed = false;
        {
            let mut tables = Write::new(&transaction).map_err(|error| self.failed(&error))?;
            for job in jobs {
                let mut snapshot = tables.snapshot(&self.name);
                let (applied, changes) = transaction::run(&mut snapshot, &job.operations, job.guard.as_ref())?;
                if !changes.is_empty() {
                    tables.write(&changes).map_err(|error| self.failed(&error))?;
                    changed = true;
                }
                answers.push(applied);
            }
        }
        if !changed {
            transaction.abort().map_err(|error| self.failed(&error))?;
            return Ok(answers);
        }
        transaction.commit().map_err(|error| StoreError::OutcomeUnknown {
            store: self.name.clone(),
            what: "a commit".to_owned(),
            reason: error.to_string(),
        })?;
        *locked(&self.changes.count) += 1;
        self.changes.more.notify_all();
        Ok(answers)
    }
}

impl Store for EmbeddedDurable {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        steps::check_keys(&self.name, keys)?;
        self.guarded(|| {
            let mut tables = self.read()?;
            keys.iter().map(|key| transaction::Snapshot::value(&mut tables, key)).collect()
        })
    }

    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        steps::check(&self.name, &CAPABILITIES, operations, guard)?;
        if operations.iter().all(Operation::only_reads) {
            return self.guarded(|| transaction::run(&mut self.read()?, operations, guard).map(|(applied, _)| applied));
        }
        self.change(operations, guard)
    }

    fn apply_when(
        &self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        loop {
            // A change after this number was read wakes the thread.
            let seen = *locked(&self.changes.count);
            let applied = self.apply(operations, guard)?;
            if !matches!(applied, Applied::Refused(..)) {
                return Ok(applied);
            }
            let mut count = locked(&self.changes.count);
            while *count == seen {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(applied);
                }
                let waited = self.changes.more.wait_timeout(count, left);
                count = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            drop(count);
            if Instant::now() >= deadline {
                return self.apply(operations, guard);
            }
        }
    }

    fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError> {
        self.guarded(|| self.read()?.numbers(region, kind, from, count))
    }

    fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        self.guarded(|| self.read()?.names(region, after, count))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No state is left half done under these locks: an uncommitted transaction is discarded.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Change;

    #[test]
    fn values_of_every_length_come_back_whatever_was_there_before() {
        let folder = trellis_testing::Folder::new();
        let key = Key::page(1, 7);
        let value =
            |length: usize, seed: u8| -> Vec<u8> { (0..length).map(|at| (at as u8).wrapping_add(seed)).collect() };
        let store = EmbeddedDurable::open(&folder.file("values")).expect("a file");
        let put = |change: Change| {
            let applied = store.apply(&[Operation::Change { key: key.clone(), change }], None).expect("it works");
            assert!(matches!(applied, Applied::Done(_)));
        };
        let now = || store.get_many(std::slice::from_ref(&key)).expect("it works").remove(0);
        // Lengths around those at which a part is stored elsewhere, in every order.
        let lengths = [0, 1, 4031, 4032, 4033, 4095, 4096, 4097, 9000];
        for (seed, (&first, &second)) in
            lengths.iter().flat_map(|first| lengths.iter().map(move |second| (first, second))).enumerate()
        {
            for length in [first, second] {
                put(Change::Put(value(length, seed as u8)));
                assert_eq!(now(), Some(value(length, seed as u8)), "{length} after {first}");
            }
        }
        put(Change::Put(value(4096, 1)));
        put(Change::PutRange { offset: 4000, bytes: vec![9; 96] });
        assert_eq!(now(), Some([value(4000, 1), vec![9; 96]].concat()));
        put(Change::Delete);
        assert_eq!(now(), None);
        // The rest of a deleted value must not appear at the end of this one.
        put(Change::Put(value(4032, 3)));
        assert_eq!(now(), Some(value(4032, 3)));
    }
}
