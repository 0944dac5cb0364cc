//! Diffs of pages: makes them from pages and their twins, sends them, checks those that arrive, and applies them.
//!
//! On the wire, the diffs of a message follow one another in the order of their pages, each after its length (4 bytes,
//! little-endian). Promises: a diff that arrives is checked as a whole before it is used. It must never touch a byte of
//! a page that the diff does not name: another thread may be storing there.
//!
//! This file also sends and merges whole pages that travel with a lock's token.

use trellis_cluster_protocol::coherence::Message;
use trellis_cluster_protocol::{NodeId, PageIndex, PageRange, PageSet, wire};
use trellis_memory::{MapError, diff};
use trellis_transport::SendError;

use super::{EPOCH, Node, with_attached};
use trellis_record::LiveCounters;

const _: () = assert!(diff::bytes_max(1 << 12) + 4 <= wire::diff_bytes_max(1 << 12));
const _: () = assert!(diff::bytes_max(1 << 21) + 4 <= wire::diff_bytes_max(1 << 21));

/// The checked diffs, or the page, that came with a message.
#[derive(Clone, Copy)]
pub(super) struct Pieces<'a> {
    pages: PageSet,
    bytes: &'a [u8],
}

/// What is wrong with the diffs of a message.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadPieces {
    #[error("it is cut off")]
    Cut,
    #[error("{0}")]
    Diff(#[from] diff::BadDiff),
}

impl<'a> Pieces<'a> {
    /// The pieces of `message`, if it has any.
    pub(super) fn of(
        message: &Message,
        attached: &'a [u8],
        page_bytes: usize,
    ) -> Result<Option<Pieces<'a>>, BadPieces> {
        if let Some(page) = message.piggybacked() {
            let pieces = Pieces { pages: PageSet::one(page), bytes: attached };
            return if attached.len() == page_bytes { Ok(Some(pieces)) } else { Err(BadPieces::Cut) };
        }
        let Some(pages) = message.diffs() else { return Ok(None) };
        let mut rest = attached;
        for _ in 0..pages.count() {
            let piece = take_piece(&mut rest).ok_or(BadPieces::Cut)?;
            diff::check(piece, page_bytes)?;
        }
        if rest.is_empty() { Ok(Some(Pieces { pages, bytes: attached })) } else { Err(BadPieces::Cut) }
    }

    fn iter(self) -> impl Iterator<Item = (PageIndex, &'a [u8])> {
        let mut rest = self.bytes;
        self.pages.pages().map(move |page| (page, take_piece(&mut rest).expect("they were checked")))
    }
}

fn take_piece<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, behind) = rest.split_first_chunk::<4>()?;
    let (piece, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *rest = behind;
    Some(piece)
}

fn put_piece(out: &mut Vec<u8>, piece: &[u8]) {
    out.extend_from_slice(&(piece.len() as u32).to_le_bytes());
    out.extend_from_slice(piece);
}

impl Node {
    /// Sends diffs to one node or to several: those of this node's stores, or those that came and are passed on
    /// (`pieces`).
    pub(super) fn send_diffs(&self, message: Message, to: impl Iterator<Item = NodeId>, pieces: Option<Pieces<'_>>) {
        let (origin, pages) = match message {
            Message::Diff { writer, pages, .. } => (writer, pages),
            Message::Update { origin, pages, .. } => (origin, pages),
            _ => unreachable!("only these carry diffs"),
        };
        let came = pieces.filter(|pieces| pieces.pages.covers(pages));
        let attached = match came {
            Some(pieces) => relayed(pieces, pages),
            None => {
                debug_assert_eq!(origin, self.me);
                self.diffs_of(pages)
            }
        };
        let (header, body) = with_attached(&wire::Message::Coherence(message), &attached);
        let to: Vec<usize> = to.map(|to| usize::from(to.0)).collect();
        self.count_out(to.len() as u64, body.len());
        LiveCounters::add(&self.counters().diffs_out, u64::from(pages.count()) * to.len() as u64);
        let payload = trellis_transport::Payload::Copy(&body);
        match self.link.send_to_all(&to, &header, payload) {
            Ok(()) => {}
            Err((peer, error)) => self.unless_sent(NodeId(peer as u16), Err::<(), SendError>(error)),
        }
    }

    /// Sends a page that goes with a lock's token. `bytes` are its twin, or the page as it is now.
    fn send_piggybacked(&self, to: NodeId, message: Message, bytes: &[u8]) {
        let encoded = wire::encode_with(&wire::Message::Coherence(message), EPOCH, bytes.len() as u32);
        debug_assert!(encoded.body().is_empty());
        LiveCounters::add(&self.counters().pages_piggybacked_out, 1);
        self.count_out(1, bytes.len());
        let sent = self.link.send(usize::from(to.0), &encoded.header, trellis_transport::Payload::Copy(bytes));
        self.unless_sent(to, sent);
    }

    /// Sends a page whose home is this node, with a lock's token.
    pub(super) fn send_page_piggybacked(&self, to: NodeId, message: Message) {
        let page = message.piggybacked().expect("only a message that carries a page is sent so");
        self.send_piggybacked(to, message, &self.snapshot(PageRange::one(page)));
    }

    /// Merges a page that came with a lock's token into the copy.
    pub(super) fn merge(&self, page: PageIndex, has_twin: bool, pieces: Option<Pieces<'_>>) -> Result<(), MapError> {
        let pieces = pieces.expect("a page is merged when it comes");
        let range = PageRange::one(page);
        self.prepare(range)?;
        LiveCounters::add(&self.counters().pages_piggybacked_in, 1);
        let twin = has_twin.then(|| self.region.twin(page.0 as usize, 1));
        // SAFETY: the bytes were found to be those of a page. Page and twin are whole pages that live as long as the
        // region; the twin is used under this shard's lock only, and the page is changed word by word. If there is no
        // twin, no thread can store to the page.
        unsafe { diff::merge(pieces.bytes, twin, self.privileged(range)) };
        Ok(())
    }

    /// Sends pages as they were at their last publication.
    pub(super) fn send_twins(&self, to: NodeId, message: Message) {
        if let Some(page) = message.piggybacked() {
            // SAFETY: as below.
            let twin =
                unsafe { std::slice::from_raw_parts(self.region.twin(page.0 as usize, 1), self.config.page_bytes) };
            return self.send_piggybacked(to, message, twin);
        }
        let range = message.bytes().expect("only a message with pages is sent so");
        let bytes = self.bytes_of(range);
        let encoded = wire::encode(&wire::Message::Coherence(message), EPOCH);
        LiveCounters::add(&self.counters().pages_out, u64::from(range.count()));
        self.count_out(1, bytes);
        // SAFETY: the twins are whole pages that live as long as the region and are used under this shard's lock only,
        // which is held; the link copies what it cannot send at once.
        let twins = unsafe {
            std::slice::from_raw_parts(self.region.twin(range.first().0 as usize, range.count() as usize), bytes)
        };
        let payload = trellis_transport::Payload::Copy(twins);
        let sent = self.link.send_placed(usize::from(to.0), &encoded.header, payload, self.place_of(range));
        self.unless_sent(to, sent);
    }

    /// Makes the diffs of what this node stored to pages since their twins were kept, and brings the twins up to date.
    fn diffs_of(&self, pages: PageSet) -> Vec<u8> {
        let mut out = Vec::new();
        for page in pages.pages() {
            let place = out.len();
            out.extend_from_slice(&[0; 4]);
            let twin = self.region.twin(page.0 as usize, 1);
            // SAFETY: both are whole pages of this node's memory that live as long as the region; the twin is used
            // under this shard's lock only, and the page is read word by word while threads may store to it.
            unsafe { diff::encode(self.privileged(PageRange::one(page)), twin, self.config.page_bytes, &mut out) };
            let length = (out.len() - place - 4) as u32;
            out[place..place + 4].copy_from_slice(&length.to_le_bytes());
        }
        out
    }

    /// Applies diffs that arrived to pages, and to those twins that are kept.
    pub(super) fn apply(
        &self,
        pages: PageSet,
        twins: Option<PageSet>,
        pieces: Option<Pieces<'_>>,
    ) -> Result<(), MapError> {
        let pieces = pieces.expect("diffs are put into pages when they come");
        LiveCounters::add(&self.counters().diffs_in, u64::from(pages.count()));
        for (page, piece) in pieces.iter().filter(|(page, _)| pages.contains(*page)) {
            let range = PageRange::one(page);
            self.prepare(range)?;
            // SAFETY: the diff was checked against the size of a page; the page exists, and is changed word by word.
            unsafe { diff::apply(piece, self.privileged(range)) };
            if twins.is_some_and(|twins| twins.contains(page)) {
                // SAFETY: as above; the twin is used under this shard's lock only.
                unsafe { diff::apply(piece, self.region.twin(page.0 as usize, 1)) };
            }
        }
        Ok(())
    }

    /// Whether a page differs from its twin. Threads may be storing to it; this sees what they stored before the call.
    pub(super) fn differs_from_twin(&self, page: PageIndex) -> bool {
        let (now, before) = (self.privileged(PageRange::one(page)), self.region.twin(page.0 as usize, 1));
        // SAFETY: both are whole pages that live as long as the region. If bytes change meanwhile, either answer will
        // do: such a page is looked at again. The twin is used under this shard's lock only, which is held.
        unsafe { libc::memcmp(now.cast(), before.cast(), self.config.page_bytes) != 0 }
    }
}

/// The diffs of `pages`, out of those that came.
fn relayed(pieces: Pieces<'_>, pages: PageSet) -> Vec<u8> {
    if pieces.pages == pages {
        return pieces.bytes.to_vec();
    }
    let mut out = Vec::new();
    pieces.iter().filter(|(page, _)| pages.contains(*page)).for_each(|(_, piece)| put_piece(&mut out, piece));
    out
}
