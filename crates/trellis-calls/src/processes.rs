//! Programs that are started: the kernel reads their names, arguments and environment.
//!
//! Promises: the new program gets the strings that the old one passed. It must never be used by a forked child, which
//! has no region.

use std::ffi::{c_char, c_int, c_void};

use libc::{posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::arguments::{Argument, In, Out, Text, given};
use crate::buffer::Buffer;
use crate::shared;

/// A list of strings that ends with a null pointer.
struct Strings {
    list: Buffer,
    texts: Buffer,
}

impl Strings {
    /// A private copy, if the list or one of its strings is shared.
    ///
    /// # Safety
    /// A list as execve(2) accepts it.
    unsafe fn of(list: *const *const c_char) -> Option<Strings> {
        if !shared::is_any() || list.is_null() {
            return None;
        }
        // SAFETY: the caller's promise: the list ends with a null pointer, each string with a zero byte.
        unsafe {
            let (mut count, mut bytes, mut any) = (0, 0, false);
            while !(*list.add(count)).is_null() {
                let text = *list.add(count);
                bytes += libc::strlen(text) + 1;
                any |= shared::overlaps(text, 1);
                count += 1;
            }
            if !any && !shared::overlaps(list, (count + 1) * size_of::<*const c_char>()) {
                return None;
            }
            let mut copy = Strings {
                list: Buffer::copied(list.cast::<c_void>(), (count + 1) * size_of::<*const c_char>()),
                texts: Buffer::of(bytes),
            };
            let mut at: *mut c_char = copy.texts.at();
            if !copy.list.is_there() || !copy.texts.is_there() {
                return None;
            }
            for place in 0..count {
                let text = *list.add(place);
                let length = libc::strlen(text) + 1;
                at.copy_from_nonoverlapping(text, length);
                at = at.add(length);
            }
            Some(copy)
        }
    }

    /// The list for the call. The strings must not move from now on.
    fn list(&mut self) -> *const *const c_char {
        let (list, mut text): (*mut *const c_char, *const c_char) = (self.list.at(), self.texts.at());
        let mut place = list;
        // SAFETY: the copies made by `of`, one string for each entry.
        unsafe {
            while !(*place).is_null() {
                place.write(text);
                text = text.add(libc::strlen(text) + 1);
                place = place.add(1);
            }
        }
        list
    }
}

type Spawn = unsafe extern "C" fn(
    Out<c_int>,
    Text,
    In<posix_spawn_file_actions_t>,
    In<posix_spawnattr_t>,
    *const *const c_char,
    *const *const c_char,
) -> c_int;

/// `posix_spawn` and `posix_spawnp`.
#[inline(never)]
pub(crate) fn spawn(
    real: Spawn,
    process: Out<c_int>,
    path: Text,
    actions: In<posix_spawn_file_actions_t>,
    attributes: In<posix_spawnattr_t>,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: as the program calls it, with private copies of what the kernel reads.
    unsafe {
        let (mut process_private, mut path_private) = (process.stand_in(), path.stand_in());
        let (mut actions_private, mut attributes_private) = (actions.stand_in(), attributes.stand_in());
        let (mut arguments_private, mut environment_private) = (Strings::of(arguments), Strings::of(environment));
        let arguments = arguments_private.as_mut().map_or(arguments, Strings::list);
        let environment = environment_private.as_mut().map_or(environment, Strings::list);
        let answer = real(
            process.given(&mut process_private),
            path.given(&mut path_private),
            actions.given(&mut actions_private),
            attributes.given(&mut attributes_private),
            arguments,
            environment,
        );
        if answer == 0 {
            process.finish(&mut process_private);
        }
        answer
    }
}

/// `execve` and its like.
#[inline(never)]
pub(crate) fn execute(
    path: Text,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    call: impl FnOnce(Text, *const *const c_char, *const *const c_char) -> c_int,
) -> c_int {
    given(path, |path| {
        // SAFETY: lists as the program calls it with.
        let (mut arguments_private, mut environment_private) =
            unsafe { (Strings::of(arguments), Strings::of(environment)) };
        let arguments = arguments_private.as_mut().map_or(arguments, Strings::list);
        call(path, arguments, environment_private.as_mut().map_or(environment, Strings::list))
    })
}
