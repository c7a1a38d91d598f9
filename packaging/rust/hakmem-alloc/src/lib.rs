//! hakmem, a general-purpose `malloc` for Linux, as the global allocator:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: hakmem_alloc::Hakmem = hakmem_alloc::Hakmem;
//!
//! fn main() {
//!     let block = Box::new(1);
//!     assert!(hakmem_alloc::owns(&*block));
//! }
//! ```
//!
//! Settings are environment variables of the program: `HAKMEM_HELP=1` lists them. C code that the program links keeps
//! libc's `malloc`.
#![no_std]

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;
use core::ptr;

/// Every block has this alignment at least.
const ALIGNMENT: usize = 16;

extern "C" {
    fn hak_malloc(size: usize) -> *mut c_void;
    fn hak_calloc(count: usize, size: usize) -> *mut c_void;
    fn hak_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn hak_aligned_alloc(alignment: usize, size: usize) -> *mut c_void;
    fn hak_free(block: *mut c_void);
    fn hak_malloc_usable_size(block: *mut c_void) -> usize;
    fn hak_owns(address: *const c_void) -> i32;
    fn hak_purge() -> usize;
    fn hak_thread_prewarm(max_size: usize) -> usize;
}

/// The allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hakmem;

// SAFETY: hakmem's functions unwind nowhere, and give blocks of the size and alignment asked for, or null. The caller
// of `GlobalAlloc` never asks for 0 bytes, for which `hak_realloc` would free the block.
unsafe impl GlobalAlloc for Hakmem {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNMENT {
            hak_malloc(layout.size()).cast()
        } else {
            hak_aligned_alloc(layout.align(), layout.size()).cast()
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNMENT {
            return hak_calloc(1, layout.size()).cast();
        }
        let block = self.alloc(layout);
        if !block.is_null() {
            ptr::write_bytes(block, 0, layout.size());
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        hak_free(block.cast());
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if layout.align() <= ALIGNMENT {
            return hak_realloc(block.cast(), new_size).cast();
        }
        let moved = hak_aligned_alloc(layout.align(), new_size).cast::<u8>();
        if !moved.is_null() {
            ptr::copy_nonoverlapping(block, moved, layout.size().min(new_size));
            hak_free(block.cast());
        }
        moved
    }
}

/// Whether the address lies in memory that hakmem manages; for one in a live block it does.
pub fn owns<T: ?Sized>(address: *const T) -> bool {
    // SAFETY: any address may be asked about; nothing is read there.
    unsafe { hak_owns(address.cast()) == 1 }
}

/// The bytes of a block that may be used: at least what was asked for.
///
/// # Safety
///
/// `block` is one that [`Hakmem`] gave and that was not freed, or null.
pub unsafe fn usable_size(block: *mut u8) -> usize {
    hak_malloc_usable_size(block.cast())
}

/// Gives all free memory back to the kernel, also what other threads have cached. Returns the bytes given back.
pub fn purge() -> usize {
    // SAFETY: may be called at any time.
    unsafe { hak_purge() }
}

/// Fills this thread's cache for blocks of up to `max_size` bytes. Returns the number of blocks now ready.
pub fn prewarm(max_size: usize) -> usize {
    // SAFETY: may be called at any time.
    unsafe { hak_thread_prewarm(max_size) }
}

#[cfg(feature = "profile")]
pub mod profile;
#[cfg(feature = "stats")]
mod stats;
#[cfg(feature = "stats")]
pub use stats::{statistics, Statistics};
