//! Converts a Rust result to its C form: a negative status, and a message that is kept for the calling thread.
//!
//! Promises: a panic becomes `TRELLIS_ERROR_INTERNAL` here and goes no further, because unwinding through C is
//! undefined.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::status;

/// An error, for a program and for a person.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: c_int,
    sentence: String,
}

impl Failure {
    pub(crate) fn new(status: c_int, sentence: impl ToString) -> Failure {
        debug_assert!(status < 0, "a failure has a negative status");
        Failure { status, sentence: sentence.to_string() }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
    static LAST_STATUS: Cell<c_int> = const { Cell::new(status::OK) };
}

/// Runs the body of a function of the header.
pub(crate) fn answer(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    let failure = match outcome {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(status::INTERNAL, internal_sentence(&*panic)),
    };
    remember(&failure);
    failure.status
}

/// Runs the body of a function that returns a value; on failure returns `otherwise` and keeps the message.
pub(crate) fn answer_or<T>(otherwise: T, body: impl FnOnce() -> Result<T, Failure>) -> T {
    let mut value = otherwise;
    answer(|| {
        value = body()?;
        Ok(status::OK)
    });
    value
}

/// Runs the body of a function that cannot report a failure.
pub(crate) fn value_or<T>(otherwise: T, body: impl FnOnce() -> Option<T>) -> T {
    catch_unwind(AssertUnwindSafe(body)).ok().flatten().unwrap_or(otherwise)
}

/// The message of the calling thread; empty if there is none, and never null.
pub(crate) fn last_sentence() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The code of the calling thread's last failure.
pub(crate) fn last_status() -> c_int {
    LAST_STATUS.get()
}

/// A C string as text.
///
/// # Safety
/// `text` is null or points to a string that ends with a NUL and lives for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::new(status::ARGUMENT, format!("{name} is NULL; give a text")));
    }
    // SAFETY: not null, and otherwise the caller's promise.
    unsafe { CStr::from_ptr(text) }
        .to_str()
        .map_err(|_| Failure::new(status::ARGUMENT, format!("{name} is not UTF-8 text; give it as UTF-8")))
}

/// The variable of the C caller for a result.
///
/// # Safety
/// `place` is null or valid for writing for `'a`, and nothing else uses it meanwhile.
pub(crate) unsafe fn place<'a, T>(place: *mut T, name: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { place.as_mut() }
        .ok_or_else(|| Failure::new(status::ARGUMENT, format!("{name} is NULL; give the address of a variable")))
}

fn remember(failure: &Failure) {
    let sentence = CString::new(failure.sentence.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no storage for a message any more, and nothing reads it.
    let _ = LAST.try_with(|last| last.replace(sentence));
    LAST_STATUS.set(failure.status);
}

fn internal_sentence(panic: &(dyn Any + Send)) -> String {
    let what = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    format!("a promise inside Trellis was broken: {what}; please report this sentence")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence() -> String {
        // SAFETY: the pointer is never null and valid until the next failure of this thread.
        unsafe { CStr::from_ptr(last_sentence()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_and_a_sentence() {
        assert_eq!(answer(|| panic!("page {} has two owners", 7)), status::INTERNAL);
        assert!(sentence().contains("page 7 has two owners"), "{}", sentence());
    }

    #[test]
    fn a_sentence_stays_until_the_next_failure_and_belongs_to_its_thread() {
        assert_eq!(answer(|| Err(Failure::new(status::STATE, "first\0half"))), status::STATE);
        assert_eq!(answer(|| Ok(3)), 3);
        assert_eq!(sentence(), "first half");
        std::thread::spawn(|| assert_eq!(sentence(), "")).join().unwrap();
    }

    #[test]
    fn null_and_broken_text_are_refused_by_name() {
        // SAFETY: null is allowed, and the other text ends with a NUL.
        unsafe {
            assert!(text(std::ptr::null(), "key").unwrap_err().sentence.starts_with("key is NULL"));
            assert!(text(c"\xff".as_ptr(), "value").unwrap_err().sentence.contains("UTF-8"));
        }
    }
}
