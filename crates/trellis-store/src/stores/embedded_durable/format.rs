//! Reads redb's file as it lies on the disk (its format 3) and verifies the checksum of every page.
//!
//! redb either opens a file whole or not at all, so the remains of a damaged one are read here. Promises: a page is
//! used only if its bytes have the 128-bit checksum that its parent gives, so nothing that is returned was changed on
//! the disk; a single wrong bit of a page is found and corrected; and reading ends without a panic, whatever the file
//! contains. It must never write.
//!
//! The file begins with a header of 320 bytes: the file's identification, and the records of the last two commits, each
//! with the root of a tree of tables. A tree's inner pages have the checksum and the place of each child, so one
//! damaged page hides everything below it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use twox_hash::XxHash3_128;

/// The first bytes of every file.
pub(super) const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";
const FLAGS_AT: usize = 9;
const PAGE_BYTES_AT: usize = 12;
const REGION_HEADER_PAGES_AT: usize = 16;
const REGION_PAGES_AT: usize = 20;
const FULL_REGIONS_AT: usize = 24;
const LAST_REGION_PAGES_AT: usize = 28;
const COMMITS_AT: [usize; 2] = [64, 192];
const COMMIT_BYTES: usize = 128;
const HEADER_BYTES: usize = 320;
/// Flag: the second commit is the current one.
const SECOND_COUNTS: u8 = 1;
/// Flag: the file is open, or was not closed.
const NOT_CLOSED: u8 = 2;
const VERSION: u8 = 3;
const PAGE_BYTES: u64 = 4096;
/// The region size in every file that a store creates: redb requests 4 GiB.
const REGION_PAGES: u32 = 1 << 20;
const REGION_HEADER_PAGES: u32 = 0;
const LEAF: u8 = 1;
const BRANCH: u8 = 2;
/// Deeper than any tree that fits on a disk.
const DEPTH_MAX: usize = 64;
/// The maximum size of a page in which a wrong bit is searched; every bit is tried.
const MEND_BYTES_MAX: usize = 16 << 10;
/// The longest page: a value of 16 MiB and its key.
const LONGEST_PAGE_BYTES: u64 = 64 << 20;

/// Where a tree begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root {
    page: u64,
    checksum: u128,
}

impl Root {
    fn decode(bytes: &[u8]) -> Option<Root> {
        Some(Root { page: u64_at(bytes, 0)?, checksum: u128_at(bytes, 8)? })
    }
}

/// The lengths of keys and values if they are fixed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    key: Option<usize>,
    value: Option<usize>,
}

/// A table of a commit.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) name: String,
    pub(super) pairs: u64,
    root: Option<Root>,
    shape: Shape,
}

/// One of the last two commits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Commit {
    number: u64,
    /// Whether the header names it as the current one.
    pub(super) counts: bool,
    /// The tables of the store, and redb's own.
    pub(super) trees: [Option<Root>; 2],
}

/// A place of the file that is not as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) bytes: Range<u64>,
    /// The wrong bit, counted from the first byte of the file, if there is exactly one and it is known.
    pub(super) bit: Option<u64>,
}

/// Receives the content of a tree, in the order of its keys.
pub(super) trait Visitor {
    /// An intact or corrected page.
    fn page(&mut self, bytes: u64);

    /// A wrong bit; the page is used with the bit corrected.
    fn mended(&mut self, place: Place);

    /// What lies between two keys cannot be read: the first key is excluded, the last included.
    fn lost(&mut self, place: Place, between: Between);

    /// A key and its value.
    ///
    /// # Errors
    ///
    /// Any error ends the walk.
    fn pair(&mut self, key: &[u8], value: &[u8]) -> io::Result<()>;
}

/// Two keys; `None` means unbounded.
pub(super) type Between = (Option<Vec<u8>>, Option<Vec<u8>>);

/// A file.
pub(super) struct Image {
    file: File,
    bytes: u64,
    region_pages: u32,
    region_header_pages: u32,
    /// The commits whose records can be read, the newest first.
    pub(super) commits: Vec<Commit>,
    /// The damage to the header.
    pub(super) damage: Vec<(Place, String)>,
    /// Whether the file was closed properly.
    pub(super) was_closed: bool,
    /// Whether the record of the commit that the header names as current cannot be read.
    pub(super) is_newest_lost: bool,
}

impl Image {
    /// Reads the header, and corrects in it what can be corrected.
    pub(super) fn open(file: File) -> io::Result<Image> {
        let bytes = file.metadata()?.len();
        let mut header = [0; HEADER_BYTES];
        let here = usize::try_from(bytes).unwrap_or(usize::MAX).min(HEADER_BYTES);
        file.read_exact_at(&mut header[..here], 0)?;
        let mut image = Image {
            file,
            bytes,
            region_pages: REGION_PAGES,
            region_header_pages: REGION_HEADER_PAGES,
            commits: Vec::new(),
            damage: Vec::new(),
            was_closed: header[FLAGS_AT] & NOT_CLOSED == 0,
            is_newest_lost: false,
        };
        if header[..MAGIC.len()] != MAGIC {
            image.note(0..MAGIC.len(), "it does not begin as a store does".to_owned());
        }
        let expected = |at: usize, is: u32| (at, u32_at(&header, at).unwrap_or(0), is);
        for (at, found, expected) in [
            expected(PAGE_BYTES_AT, PAGE_BYTES as u32),
            expected(REGION_HEADER_PAGES_AT, REGION_HEADER_PAGES),
            expected(REGION_PAGES_AT, REGION_PAGES),
        ] {
            if found != expected {
                image.note(at..at + 4, format!("the header says {found} where {expected} belongs"));
            }
        }
        if image.was_closed {
            image.compare_length(&header);
        }
        image.read_commits(&header, usize::from(header[FLAGS_AT] & SECOND_COUNTS));
        Ok(image)
    }

    /// Compares the length in the header with the file's; it is valid for a file that was closed.
    fn compare_length(&mut self, header: &[u8]) {
        let pages = (self.bytes / PAGE_BYTES).saturating_sub(1);
        let said = u64::from(u32_at(header, FULL_REGIONS_AT).unwrap_or(0)) * u64::from(REGION_PAGES)
            + u64::from(u32_at(header, LAST_REGION_PAGES_AT).unwrap_or(0));
        if pages != said {
            let what = format!("the file has {pages} pages, and its header says {said}");
            self.note(FULL_REGIONS_AT..LAST_REGION_PAGES_AT + 4, what);
        }
    }

    fn read_commits(&mut self, header: &[u8], counts: usize) {
        let mut found: [Option<Commit>; 2] = [None, None];
        for (place, at) in COMMITS_AT.into_iter().enumerate() {
            let record = &header[at..at + COMMIT_BYTES];
            if let Some(commit) = commit(record) {
                found[place] = Some(commit);
                continue;
            }
            let mended = (0..COMMIT_BYTES * 8).find_map(|bit| {
                let mut tried: [u8; COMMIT_BYTES] = record.try_into().ok()?;
                tried[bit / 8] ^= 1 << (bit % 8);
                Some((bit, commit(&tried)?))
            });
            // During a write, the record that is not current yet may be half written.
            if let Some((bit, commit)) = mended {
                found[place] = Some(commit);
                let place = Place { bytes: (at as u64)..(at + COMMIT_BYTES) as u64, bit: Some((at * 8 + bit) as u64) };
                self.damage.push((place, "one bit of the record of a commit is wrong, and can be mended".to_owned()));
            } else if place == counts || self.was_closed {
                self.note(at..at + COMMIT_BYTES, "the record of a commit cannot be read".to_owned());
            }
        }
        let number = |place: usize| found[place].map(|commit| commit.number);
        if self.was_closed && found.iter().all(Option::is_some) && number(counts) < number(1 - counts) {
            self.note(FLAGS_AT..FLAGS_AT + 1, "the header names the older of the last two commits".to_owned());
        }
        self.is_newest_lost = found[counts].is_none();
        if let Some(commit) = &mut found[counts] {
            commit.counts = true;
        }
        self.commits = found.into_iter().flatten().collect();
        self.commits.sort_by_key(|commit| std::cmp::Reverse(commit.number));
    }

    fn note(&mut self, bytes: Range<usize>, what: String) {
        self.damage.push((Place { bytes: bytes.start as u64..bytes.end as u64, bit: None }, what));
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The length of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The tables of a tree of tables, by name; `visitor` receives its pages.
    pub(super) fn tables(&self, root: Option<Root>, visitor: &mut dyn Visitor) -> io::Result<Vec<Table>> {
        let mut tables = Tables { found: Vec::new(), visitor };
        self.walk(root, Shape::default(), &mut tables)?;
        Ok(tables.found)
    }

    /// All of a table.
    pub(super) fn read(&self, table: &Table, visitor: &mut dyn Visitor) -> io::Result<()> {
        self.walk(table.root, table.shape, visitor)
    }

    fn walk(&self, root: Option<Root>, shape: Shape, visitor: &mut dyn Visitor) -> io::Result<()> {
        match root {
            None => Ok(()),
            Some(root) => self.below(root.page, root.checksum, shape, (None, None), 0, visitor),
        }
    }

    /// Visits what lies below a page.
    fn below(
        &self,
        page: u64,
        checksum: u128,
        shape: Shape,
        between: Between,
        depth: usize,
        visitor: &mut dyn Visitor,
    ) -> io::Result<()> {
        let place = self.place(page);
        let Some(bytes) = self.page(&place)?.and_then(|bytes| right(bytes, checksum, shape, &place, visitor)) else {
            visitor.lost(Place { bytes: place, bit: None }, between);
            return Ok(());
        };
        visitor.page(place.end - place.start);
        // The checksum was right, so these bytes exist; the code still checks every access.
        let read = match bytes.first() {
            Some(&LEAF) => leaf(&bytes, shape, visitor)?,
            Some(&BRANCH) if depth < DEPTH_MAX => match children(&bytes, shape) {
                None => None,
                Some(children) => {
                    let mut from = between.0.clone();
                    for child in children {
                        let to = child.to.or_else(|| between.1.clone());
                        let below = (from, to.clone());
                        self.below(child.page, child.checksum, shape, below, depth + 1, visitor)?;
                        from = to;
                    }
                    Some(())
                }
            },
            _ => None,
        };
        if read.is_none() {
            visitor.lost(Place { bytes: place, bit: None }, between);
        }
        Ok(())
    }

    /// The place of a page from its number: index in its region (20 bits), region (20 bits), and its length as a power of
    /// two (the last 5).
    fn place(&self, number: u64) -> Range<u64> {
        let power = number >> 59;
        let index = number & (0xf_ffff >> power.min(20));
        let region = number >> 20 & 0xf_ffff;
        let bytes = PAGE_BYTES << power.min(20);
        let region_bytes = (u64::from(self.region_header_pages) + u64::from(self.region_pages)) * PAGE_BYTES;
        let start =
            PAGE_BYTES + region * region_bytes + u64::from(self.region_header_pages) * PAGE_BYTES + index * bytes;
        start..start + bytes
    }

    /// The bytes of a page; `None` if the file does not have them.
    fn page(&self, place: &Range<u64>) -> io::Result<Option<Vec<u8>>> {
        if place.end > self.bytes || place.end - place.start > LONGEST_PAGE_BYTES {
            return Ok(None);
        }
        let mut bytes = vec![0; (place.end - place.start) as usize];
        match self.file.read_exact_at(&mut bytes, place.start) {
            Ok(()) => Ok(Some(bytes)),
            // The disk cannot read these bytes, but may be able to read others.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The bytes of a page if they have its checksum, if need be after correcting one bit.
fn right(
    mut bytes: Vec<u8>,
    checksum: u128,
    shape: Shape,
    place: &Range<u64>,
    visitor: &mut dyn Visitor,
) -> Option<Vec<u8>> {
    if sum(&bytes, shape) == Some(checksum) {
        return Some(bytes);
    }
    if bytes.len() > MEND_BYTES_MAX {
        return None;
    }
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        if sum(&bytes, shape) == Some(checksum) {
            visitor.mended(Place { bytes: place.clone(), bit: Some(place.start * 8 + bit as u64) });
            return Some(bytes);
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    None
}

/// The checksum of the used bytes of a page.
fn sum(page: &[u8], shape: Shape) -> Option<u128> {
    let count = count(page)?;
    let end = match *page.first()? {
        LEAF => Offsets::of_leaf(count, shape).value_end(page, count.checked_sub(1)?)?,
        BRANCH => branch_key_end(page, count, shape, count.checked_sub(1)?)?,
        _ => return None,
    };
    Some(XxHash3_128::oneshot(page.get(..end)?))
}

fn count(page: &[u8]) -> Option<usize> {
    Some(u16::from_le_bytes(page.get(2..4)?.try_into().ok()?).into())
}

/// The offsets of the parts of a leaf.
struct Offsets {
    count: usize,
    shape: Shape,
    keys: usize,
}

impl Offsets {
    fn of_leaf(count: usize, shape: Shape) -> Offsets {
        let offsets = usize::from(shape.key.is_none()) + usize::from(shape.value.is_none());
        Offsets { count, shape, keys: 4 + 4 * count * offsets }
    }

    fn key_end(&self, page: &[u8], at: usize) -> Option<usize> {
        match self.shape.key {
            Some(bytes) => bytes.checked_mul(at + 1)?.checked_add(self.keys),
            None => Some(u32_at(page, 4 + 4 * at)? as usize),
        }
    }

    fn value_end(&self, page: &[u8], at: usize) -> Option<usize> {
        match self.shape.value {
            Some(bytes) => bytes.checked_mul(at + 1)?.checked_add(self.key_end(page, self.count.checked_sub(1)?)?),
            None => {
                let before = if self.shape.key.is_none() { self.count } else { 0 };
                Some(u32_at(page, 4 + 4 * (before + at))? as usize)
            }
        }
    }
}

/// Passes the pairs of a leaf to the visitor; `None` if the page is not a leaf.
fn leaf(page: &[u8], shape: Shape, visitor: &mut dyn Visitor) -> io::Result<Option<()>> {
    let Some(count) = count(page) else { return Ok(None) };
    let offsets = Offsets::of_leaf(count, shape);
    let pair = |at: usize| {
        let key_start = if at == 0 { offsets.keys } else { offsets.key_end(page, at - 1)? };
        let value_start = match at {
            0 => offsets.key_end(page, count.checked_sub(1)?)?,
            _ => offsets.value_end(page, at - 1)?,
        };
        let key = page.get(key_start..offsets.key_end(page, at)?)?;
        Some((key, page.get(value_start..offsets.value_end(page, at)?)?))
    };
    for at in 0..count {
        let Some((key, value)) = pair(at) else { return Ok(None) };
        visitor.pair(key, value)?;
    }
    Ok(Some(()))
}

fn branch_key_end(page: &[u8], count: usize, shape: Shape, at: usize) -> Option<usize> {
    let after_children = 8 + 24 * (count + 1);
    match shape.key {
        Some(bytes) => bytes.checked_mul(at + 1)?.checked_add(after_children),
        None => Some(u32_at(page, after_children + 4 * at)? as usize),
    }
}

/// A child of an inner page.
struct Child {
    checksum: u128,
    page: u64,
    /// The last key below it; `None` for the last child.
    to: Option<Vec<u8>>,
}

fn children(page: &[u8], shape: Shape) -> Option<Vec<Child>> {
    let count = count(page)?;
    let keys = 8 + 24 * (count + 1) + if shape.key.is_none() { 4 * count } else { 0 };
    let child = |at: usize| {
        let to = if at == count {
            None
        } else {
            let start = if at == 0 { keys } else { branch_key_end(page, count, shape, at - 1)? };
            Some(page.get(start..branch_key_end(page, count, shape, at)?)?.to_vec())
        };
        Some(Child { checksum: u128_at(page, 8 + 16 * at)?, page: u64_at(page, 8 + 16 * (count + 1) + 8 * at)?, to })
    };
    (0..=count).map(child).collect()
}

/// Decodes the record of a commit; `None` if its version or its checksum is wrong.
fn commit(record: &[u8]) -> Option<Commit> {
    let (said, checksum) = record.split_at_checked(COMMIT_BYTES - 16)?;
    if said[0] != VERSION || u128_at(checksum, 0)? != XxHash3_128::oneshot(said) {
        return None;
    }
    let root = |is_there: u8, at: usize| if is_there == 0 { Some(None) } else { Root::decode(&said[at..]).map(Some) };
    Some(Commit { number: u64_at(said, 104)?, counts: false, trees: [root(said[1], 8)?, root(said[2], 40)?] })
}

/// Collects the tables.
struct Tables<'a> {
    found: Vec<Table>,
    visitor: &'a mut dyn Visitor,
}

impl Visitor for Tables<'_> {
    fn page(&mut self, bytes: u64) {
        self.visitor.page(bytes);
    }

    fn mended(&mut self, place: Place) {
        self.visitor.mended(place);
    }

    fn lost(&mut self, place: Place, between: Between) {
        self.visitor.lost(place, between);
    }

    fn pair(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let strange = || io::Error::new(io::ErrorKind::InvalidData, "a table is described in a way that is not known");
        let table = table(key, value).ok_or_else(strange)?;
        self.found.push(table);
        Ok(())
    }
}

/// A table's description: kind u8, number of pairs u64, root, lengths of keys and of values, and the names of its types.
fn table(name: &[u8], described: &[u8]) -> Option<Table> {
    let length = |at: usize| match described.get(at)? {
        0 => Some(None),
        _ => Some(Some(u32_at(described, at + 1)? as usize)),
    };
    let root = match described.get(9)? {
        0 => None,
        _ => Some(Root::decode(described.get(10..42)?)?),
    };
    Some(Table {
        name: String::from_utf8_lossy(name).into_owned(),
        pairs: u64_at(described, 1)?,
        root,
        shape: Shape { key: length(42)?, value: length(47)? },
    })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn u128_at(bytes: &[u8], at: usize) -> Option<u128> {
    Some(u128::from_le_bytes(bytes.get(at..at.checked_add(16)?)?.try_into().ok()?))
}
