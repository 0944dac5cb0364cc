//! The text form of messages, for scripts, traces and counterexamples.
//!
//! Promises: each takes one line, without a line end; with `{:#}` the number of a request is included. The text must never
//! be needed for a decision.

use core::fmt;

use super::{Ask, Epoch, Message, PageNumber};

/// The incarnation, and the count within it.
struct InWords(Epoch);

impl fmt::Display for InWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 48, self.0 & 0xffff_ffff_ffff)
    }
}

/// A range of pages: the first, and how many.
struct Run(PageNumber, PageNumber);

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            1 => write!(f, "p{}", self.0),
            pages => write!(f, "p{} to p{}", self.0, self.0 + pages - 1),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |f: &mut fmt::Formatter<'_>, request: &u64| match f.alternate() {
            true => write!(f, " #{request}"),
            false => Ok(()),
        };
        match self {
            Message::Request { page, request, ask } => {
                match ask {
                    Ask::Read => write!(f, "read p{page}"),
                    Ask::Copy => write!(f, "copy p{page}"),
                    Ask::Update => write!(f, "update p{page}"),
                    Ask::Renew(of) => write!(f, "renew p{page} {}", InWords(*of)),
                    Ask::Commit { epoch, release } => {
                        let released = if *release { " and release" } else { "" };
                        write!(f, "commit p{page} {}{released}", InWords(*epoch))
                    }
                    Ask::Release(of) => write!(f, "release p{page} {}", InWords(*of)),
                }?;
                number(f, request)
            }
            Message::Reply { page, request, status, epoch, .. } => {
                write!(f, "{} p{page} {}", Lower(status), InWords(*epoch))?;
                number(f, request)
            }
            Message::Recall { page, epoch } => write!(f, "recall p{page} {}", InWords(*epoch)),
            Message::Invalidate { page, epoch } => write!(f, "invalidate p{page} before {}", InWords(*epoch)),
            Message::Invalidated { page, epoch } => write!(f, "invalidated p{page} before {}", InWords(*epoch)),
            Message::Store { page, pages, epoch, incarnation } => {
                write!(f, "store {} {} by incarnation {incarnation}", Run(*page, *pages), InWords(*epoch))
            }
            Message::Stored { page, pages, epoch, incarnation } => {
                write!(f, "stored {} {} by incarnation {incarnation}", Run(*page, *pages), InWords(*epoch))
            }
            Message::Leases { incarnation, entries } => {
                write!(f, "leases of incarnation {incarnation}: {}", entries.len())
            }
            Message::Taken { incarnation } => write!(f, "taken, incarnation {incarnation}"),
            Message::Report { state, .. } => write!(f, "report: {}", Lower(state)),
            Message::Locate => f.write_str("locate"),
            Message::Placed { request, placement, .. } => {
                let what = if *request == 0 { "call" } else { "placed" };
                write!(f, "{what}: home is s{} in incarnation {}", placement.home.0, placement.incarnation)?;
                placement.hand_to.map_or(Ok(()), |to| write!(f, ", hand over to s{}", to.0))
            }
        }
    }
}

/// The derived debug text in lower case.
struct Lower<T>(T);

impl<T: fmt::Debug> fmt::Display for Lower<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Into<'a, 'b>(&'a mut fmt::Formatter<'b>);
        impl fmt::Write for Into<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                text.chars().try_for_each(|letter| fmt::Write::write_char(self.0, letter.to_ascii_lowercase()))
            }
        }
        fmt::Write::write_fmt(&mut Into(f), format_args!("{:?}", self.0))
    }
}
