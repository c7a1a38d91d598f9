//! The heap profile: who allocates. `hakmem profile --read FILE` makes a flame graph of what [`save`] writes.

use core::ffi::CStr;

extern "C" {
    fn hak_profile_start(interval: usize) -> i32;
    fn hak_profile_stop();
    fn hak_profile_save(path: *const i8) -> i32;
}

/// An error of the operating system, as `errno` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

fn result(error: i32) -> Result<(), Errno> {
    if error == 0 {
        Ok(())
    } else {
        Err(Errno(error))
    }
}

/// From now on one allocation is sampled every `interval` bytes on average; 524288 is a good choice. What was recorded
/// before stays.
pub fn start(interval: usize) -> Result<(), Errno> {
    // SAFETY: may be called at any time.
    result(unsafe { hak_profile_start(interval) })
}

/// Blocks that were sampled stay known, until they are freed.
pub fn stop() {
    // SAFETY: may be called at any time.
    unsafe { hak_profile_stop() }
}

/// Writes what was recorded so far to a file.
pub fn save(path: &CStr) -> Result<(), Errno> {
    // SAFETY: the path ends with a zero, and is only read.
    result(unsafe { hak_profile_save(path.as_ptr().cast()) })
}
