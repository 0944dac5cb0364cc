//! The parts of an address that a switch interprets: the cluster, the home, the class of the command, the page.
//!
//! The protocol defines the whole address; this is the part that the network uses. It must never interpret the command
//! bits of an address that names a client, where they have another meaning.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::layout;

/// The first byte of every address.
const ADDRESS_FIRST_BYTE: u8 = 0xfd;
/// The number of bits of an address that identify the home.
pub(crate) const HOME_BITS: u8 = 48;

/// A fabric: the hosts whose addresses begin with the same 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cluster(u32);

impl Cluster {
    /// The cluster with this number of 24 bits.
    #[must_use]
    pub const fn new(number: u32) -> Cluster {
        Cluster(number & 0xff_ffff)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The first four bytes of its addresses.
    #[must_use]
    pub const fn scope(self) -> [u8; 4] {
        ((ADDRESS_FIRST_BYTE as u32) << 24 | self.0).to_be_bytes()
    }

    /// All of its addresses, as a prefix of 32 bits: the destination of a host's single route.
    #[must_use]
    pub fn everything(self) -> String {
        let [a, b, c, d] = self.scope();
        format!("{:x}:{:x}::/32", u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
    }

    /// An address of a host: a command, its arguments, and the lower 64 bits.
    #[must_use]
    pub fn address(self, host: u16, command: u8, arguments: u8, low: u64) -> Ipv6Addr {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.scope());
        bytes[4..6].copy_from_slice(&host.to_be_bytes());
        bytes[6] = command;
        bytes[7] = arguments;
        bytes[8..].copy_from_slice(&low.to_be_bytes());
        Ipv6Addr::from(bytes)
    }
}

/// A page of a home's memory: 4,096 bytes, the unit of leases and redirects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page {
    /// The home.
    pub home: u16,
    /// The page's offset divided by 4,096; 36 bits.
    pub number: u64,
}

impl Page {
    /// The key in tables: home and page number.
    pub(crate) const fn key(self) -> u64 {
        (self.home as u64) << layout::OFFSET_BITS | self.number
    }

    /// The page of a key.
    pub(crate) const fn from_key(key: u64) -> Page {
        Page { home: (key >> layout::OFFSET_BITS) as u16, number: key & ((1 << layout::OFFSET_BITS) - 1) }
    }

    /// The page that contains an address of a home.
    #[must_use]
    pub fn of(address: Ipv6Addr) -> Page {
        let offset = low_half(address) & ((1 << layout::OFFSET_BITS) - 1);
        Page { home: home(address), number: offset >> layout::PAGE_SHIFT }
    }
}

impl fmt::Display for Page {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "page {} of home {}", self.number, self.home)
    }
}

/// The number of bits of a page number.
pub(crate) const PAGE_BITS: u8 = (layout::OFFSET_BITS - layout::PAGE_SHIFT) as u8;

/// A page range of a home: a power of two of contiguous pages, the first of which is a multiple of their number. A page
/// range is to pages what a prefix is to addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageRange {
    home: u16,
    first: u64,
    order: u8,
}

impl PageRange {
    /// The 2^`order` pages of a home from `first` on.
    ///
    /// # Errors
    ///
    /// A message if `first` is not a multiple of 2^`order`, or a home has no such pages.
    pub fn new(home: u16, first: u64, order: u8) -> Result<PageRange, String> {
        let most = 1_u64 << PAGE_BITS;
        if order > PAGE_BITS || first >= most {
            return Err(format!(
                "a home has {most} pages, so there is no range of 2^{order} pages from page {first} on"
            ));
        }
        let pages = 1_u64 << order;
        if !first.is_multiple_of(pages) {
            return Err(format!(
                "{pages} pages from page {first} on are no range; the first must be a multiple of {pages}"
            ));
        }
        Ok(PageRange { home, first, order })
    }

    /// The fewest page ranges that contain exactly these pages of a home, in ascending order. Pages that no home has are
    /// left out.
    #[must_use]
    pub fn cover(home: u16, first: u64, pages: u64) -> Vec<PageRange> {
        let end = first.saturating_add(pages).min(1 << PAGE_BITS);
        let mut ranges = Vec::new();
        let mut next = first;
        while next < end {
            let aligned = next.trailing_zeros().min(u32::from(PAGE_BITS));
            let order = aligned.min((end - next).ilog2()) as u8;
            ranges.push(PageRange { home, first: next, order });
            next += 1 << order;
        }
        ranges
    }

    /// The home.
    #[must_use]
    pub const fn home(self) -> u16 {
        self.home
    }

    /// The number of the first page.
    #[must_use]
    pub const fn first(self) -> u64 {
        self.first
    }

    /// The binary logarithm of the number of pages, 0 to 36.
    #[must_use]
    pub const fn order(self) -> u8 {
        self.order
    }

    /// The number of pages.
    #[must_use]
    pub const fn pages(self) -> u64 {
        1 << self.order
    }

    /// Whether it contains a page.
    #[must_use]
    pub const fn has(self, page: Page) -> bool {
        page.home == self.home && page.number >> self.order == self.first >> self.order
    }
}

impl fmt::Display for PageRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.order {
            0 => write!(formatter, "page {} of home {}", self.first, self.home),
            _ => write!(formatter, "pages {} to {} of home {}", self.first, self.first + self.pages() - 1, self.home),
        }
    }
}

/// The host that an address names.
pub(crate) fn home(address: Ipv6Addr) -> u16 {
    let bytes = address.octets();
    u16::from_be_bytes([bytes[layout::ADDRESS_HOME_AT], bytes[layout::ADDRESS_HOME_AT + 1]])
}

/// Generation and offset of a pointer, or the number of a client's request.
pub(crate) fn low_half(address: Ipv6Addr) -> u64 {
    address.to_bits() as u64
}

/// The addresses that begin with the same bits: a whole host (48 bits), a class of its commands (52), one command (56),
/// and so on down to a single address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: u128,
    bits: u8,
}

impl Prefix {
    /// The first `bits` bits of an address; the other bits are taken as zero.
    ///
    /// # Errors
    ///
    /// A message for fewer than 48 bits or more than 128.
    pub fn new(address: Ipv6Addr, bits: u8) -> Result<Prefix, String> {
        if !(HOME_BITS..=128).contains(&bits) {
            return Err(format!("a prefix of {bits} bits is none that a switch routes by; give 48 to 128"));
        }
        Ok(Prefix { address: address.to_bits() & mask(bits), bits })
    }

    /// All addresses of one host.
    #[must_use]
    pub fn host(cluster: Cluster, host: u16) -> Prefix {
        Prefix { address: cluster.address(host, 0, 0, 0).to_bits(), bits: HOME_BITS }
    }

    /// The first address.
    #[must_use]
    pub fn address(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.address)
    }

    /// The number of common bits.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.bits
    }

    /// The host that all of its addresses name.
    #[must_use]
    pub fn home(self) -> u16 {
        home(self.address())
    }

    /// Whether it contains an address.
    #[must_use]
    pub fn contains(self, address: Ipv6Addr) -> bool {
        address.to_bits() & mask(self.bits) == self.address
    }
}

fn mask(bits: u8) -> u128 {
    u128::MAX << (128 - u32::from(bits))
}

impl fmt::Display for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address(), self.bits)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Prefix, String> {
        let wrong = || format!("`{text}` is not a prefix; an example: fd00:1:7::/48");
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let address: Ipv6Addr = address.parse().map_err(|_| wrong())?;
        Prefix::new(address, bits.parse().map_err(|_| wrong())?)
    }
}

/// A set of command classes; the class is the high nibble of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Classes(u16);

impl Classes {
    /// READ, and other commands that change nothing.
    pub const READING: Classes = Classes(1 << layout::CLASS_READING);
    /// WRITE, atomics, COMMIT.
    pub const CHANGING: Classes = Classes(1 << layout::CLASS_CHANGING);
    /// CREATE and DELETE.
    pub const OBJECTS: Classes = Classes(1 << 2);
    /// UPDATE, RENEW, RELEASE.
    pub const LEASES: Classes = Classes(1 << layout::CLASS_LEASES);
    /// Commands between servers, and with a controller.
    pub const SERVERS: Classes = Classes(1 << 4);
    /// No class.
    pub const NONE: Classes = Classes(0);
    /// Every class.
    pub const ALL: Classes = Classes(u16::MAX);

    /// The union of both.
    #[must_use]
    pub const fn and(self, other: Classes) -> Classes {
        Classes(self.0 | other.0)
    }

    /// Whether the class of a command is in the set.
    #[must_use]
    pub const fn contain(self, command: u8) -> bool {
        self.0 >> (command >> 4) & 1 == 1
    }

    /// A bit for each class, the lowest for class 0.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The set with these bits.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Classes {
        Classes(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_parts_where_the_layout_says() {
        let cluster = Cluster::new(0x12_3456);
        let address = cluster.address(0x789a, 0x30, 0x1c, 0x0007_0000_0123_4567);
        assert_eq!(address.to_string(), "fd12:3456:789a:301c:7:0:123:4567");
        assert_eq!(home(address), 0x789a);
        assert_eq!(address.octets()[layout::ADDRESS_COMMAND_AT], 0x30);
        assert_eq!(Page::of(address), Page { home: 0x789a, number: 0x1234 });
        assert_eq!(Page::from_key(Page::of(address).key()), Page::of(address));
        assert_eq!(cluster.everything(), "fd12:3456::/32");
    }

    #[test]
    fn a_prefix_is_read_shown_and_asked() {
        let class: Prefix = "fd00:1:7:3fff::/52".parse().unwrap();
        assert_eq!(class.to_string(), "fd00:1:7:3000::/52");
        assert_eq!(class.home(), 7);
        assert!(class.contains("fd00:1:7:31ff::5".parse().unwrap()));
        assert!(!class.contains("fd00:1:7:4000::5".parse().unwrap()));
        assert!(Prefix::host(Cluster::new(1), 7).contains("fd00:1:7:ffff::".parse().unwrap()));
        for wrong in ["", "fd00::", "fd00::/32", "fd00::/129", "x/48", "fd00::/x"] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
        assert!("fd00:1:7::9/128".parse::<Prefix>().unwrap().contains("fd00:1:7::9".parse().unwrap()));
    }

    #[test]
    fn a_run_is_aligned() {
        let range = PageRange::new(7, 64, 6).unwrap();
        assert_eq!((range.to_string(), range.pages()), ("pages 64 to 127 of home 7".to_owned(), 64));
        assert_eq!(PageRange::new(7, 3, 0).unwrap().to_string(), "page 3 of home 7");
        let has = |home, number| range.has(Page { home, number });
        assert_eq!([has(7, 63), has(7, 64), has(7, 127), has(7, 128), has(8, 64)], [false, true, true, false, false]);
        assert!(PageRange::new(7, 32, 6).unwrap_err().contains("a multiple of 64"));
        assert!(PageRange::new(7, 0, 36).unwrap().has(Page { home: 7, number: (1 << 36) - 1 }));
        for (first, order) in [(0, 37), (0, 255), (1 << 36, 0)] {
            assert!(PageRange::new(7, first, order).unwrap_err().contains("68719476736 pages"));
        }
    }

    /// The fewest aligned page ranges that cover pages, found by trying every first one.
    fn fewest(first: u64, pages: u64, known: &mut std::collections::HashMap<(u64, u64), usize>) -> usize {
        if pages == 0 {
            return 0;
        }
        if let Some(&count) = known.get(&(first, pages)) {
            return count;
        }
        let orders = (0..7).filter(|&order| first.is_multiple_of(1 << order) && 1 << order <= pages);
        let best = orders.map(|order| 1 + fewest(first + (1 << order), pages - (1 << order), known)).min().unwrap();
        known.insert((first, pages), best);
        best
    }

    #[test]
    fn any_pages_are_covered_by_the_fewest_runs() {
        let mut known = std::collections::HashMap::new();
        for (first, pages) in (0..65).flat_map(|first| (0..65).map(move |pages| (first, pages))) {
            let ranges = PageRange::cover(7, first, pages);
            let covered: Vec<u64> =
                ranges.iter().flat_map(|range| range.first()..range.first() + range.pages()).collect();
            assert_eq!(covered, (first..first + pages).collect::<Vec<u64>>());
            assert!(ranges.iter().all(|range| PageRange::new(7, range.first(), range.order()) == Ok(*range)));
            assert_eq!(ranges.len(), fewest(first, pages, &mut known), "{first} {pages}");
        }
        let last = (1 << 36) - 1;
        assert_eq!(PageRange::cover(7, 0, u64::MAX), [PageRange::new(7, 0, 36).unwrap()]);
        assert_eq!(PageRange::cover(7, last, 9), [PageRange::new(7, last, 0).unwrap()]);
        assert_eq!((PageRange::cover(7, 1, last - 1).len(), PageRange::cover(7, last + 1, 1).len()), (70, 0));
    }

    #[test]
    fn classes_are_the_high_nibble() {
        let some = Classes::READING.and(Classes::LEASES);
        assert!(some.contain(0x01) && some.contain(0x3f));
        assert!(!some.contain(0x10) && !some.contain(0x42));
        assert_eq!(Classes::from_bits(some.bits()), some);
    }
}
