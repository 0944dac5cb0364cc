//! Chooses which of the last two commits of a file is read, and lists the damage in it.
//!
//! Promises: the newest commit that can be read completely is chosen, or otherwise the newest whose tables are known. A
//! commit that was under way when its process ended does not count. It must never use a page whose checksum is wrong.

use std::io;
use std::path::Path;

use super::format::{Between, Commit, Image, Place, Table, Visitor};
use super::rescue::{OnProgress, Progress, Report};
use super::{file, tables};
use crate::error::StoreError;

/// The commit that is read.
pub(super) struct Chosen {
    pub(super) report: Report,
    /// Empty if no commit says where the tables are.
    pub(super) tables: Vec<Table>,
}

/// Checks a file and chooses the commit.
pub(super) fn chosen(
    path: &Path,
    image: &Image,
    step: &'static str,
    on_progress: OnProgress,
) -> Result<Chosen, StoreError> {
    let mut readable: Option<Chosen> = None;
    let mut passed = u32::from(image.is_newest_lost);
    for (at, commit) in image.commits.iter().enumerate() {
        let looked = survey(image, commit, step, on_progress).map_err(|error| file::failed(path, "read", &error))?;
        // A commit that is not current yet was never acknowledged.
        let is_under_way = !commit.counts && at == 0 && !image.was_closed;
        let Some(mut looked) = looked else {
            passed += u32::from(!is_under_way);
            continue;
        };
        looked.report.commits_back = passed;
        if !looked.report.damage.iter().any(|damage| damage.is_loss) {
            return Ok(looked);
        }
        if !is_under_way {
            passed += 1;
            readable.get_or_insert(looked);
        }
    }
    Ok(readable.unwrap_or_else(|| Chosen { report: with_header(image), tables: Vec::new() }))
}

/// The damage that is known before any tree is read.
fn with_header(image: &Image) -> Report {
    let mut report = Report { bytes: image.bytes(), ..Report::default() };
    for (place, what) in &image.damage {
        report.add(place, what.clone(), false);
    }
    report
}

/// Reads all of a commit; `None` if its tables are not known.
fn survey(image: &Image, commit: &Commit, step: &'static str, on_progress: OnProgress) -> io::Result<Option<Chosen>> {
    let mut looker = Looker { report: with_header(image), step, on_progress, table: "", has_lost: false, pairs: 0 };
    let [ours, redb] = commit.trees;
    let found = image.tables(ours, &mut looker)?;
    if looker.has_lost || ours.is_none() {
        return Ok(None);
    }
    for table in &found {
        looker.has_lost = false;
        looker.pairs = 0;
        looker.table = tables::NAMES.into_iter().find(|name| *name == table.name).unwrap_or("");
        image.read(table, &mut looker)?;
        looker.report.pairs += looker.pairs;
        looker.report.lost_pairs += table.pairs.saturating_sub(looker.pairs);
    }
    looker.table = "";
    for table in &image.tables(redb, &mut looker)? {
        image.read(table, &mut looker)?;
    }
    Ok(Some(Chosen { report: looker.report, tables: found }))
}

/// Counts pages and pairs, and records damage.
struct Looker<'a, 'b> {
    report: Report,
    step: &'static str,
    on_progress: &'a mut (dyn FnMut(Progress) + 'b),
    /// Empty for redb's own tables.
    table: &'static str,
    has_lost: bool,
    pairs: u64,
}

impl Visitor for Looker<'_, '_> {
    fn page(&mut self, bytes: u64) {
        self.report.read_bytes += bytes;
        let (done_bytes, of_bytes) = (self.report.read_bytes, self.report.bytes);
        (self.on_progress)(Progress { step: self.step, done_bytes, of_bytes });
    }

    fn mended(&mut self, place: Place) {
        self.report.add(&place, "one bit is wrong, and can be mended".to_owned(), false);
    }

    fn lost(&mut self, place: Place, between: Between) {
        self.has_lost = true;
        let is_ours = !self.table.is_empty();
        let what = if is_ours {
            format!("a page cannot be read: {}", tables::between(self.table, &between))
        } else {
            "a page of redb's own notes cannot be read: nothing of the store is in it".to_owned()
        };
        self.report.add(&place, what, is_ours);
    }

    fn pair(&mut self, _key: &[u8], _value: &[u8]) -> io::Result<()> {
        self.pairs += 1;
        Ok(())
    }
}
