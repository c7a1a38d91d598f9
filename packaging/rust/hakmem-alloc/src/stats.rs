//! What the heap holds.

use core::mem;

/// The state of the heap, at one moment per figure: figures of a heap in motion need not add up exactly.
#[repr(C)]
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Blocks handed out and not freed.
    pub live_blocks: u64,
    /// Their usable sizes.
    pub live_bytes: u64,
    /// Free blocks in the front caches of threads.
    pub cached_blocks: u64,
    /// Their bytes.
    pub cached_bytes: u64,
    /// Free blocks inside slabs.
    pub free_bytes: u64,
    /// Blocks with page runs or mappings of their own; also counted in live_*.
    pub large_blocks: u64,
    /// Their bytes.
    pub large_bytes: u64,
    /// Slabs that belong to a size class.
    pub slabs: u64,
    /// SuperSlabs made so far.
    pub super_slabs: u64,
    /// Address space that is mapped for heap, tables and large objects.
    pub mapped_bytes: u64,
    /// Of it, SuperSlabs, and mappings in use or kept.
    pub committed_bytes: u64,
    /// Given back to the kernel so far, in total.
    pub purged_bytes: u64,
    /// Of tables, and of heaps, 256 KiB each; resident as far as they are used.
    pub metadata_bytes: u64,
    /// Blocks freed into slabs that the freeing thread did not hold, so far.
    pub remote_frees: u64,
    /// Memory system calls so far.
    pub system_calls: u64,
    /// Thread heaps that exist, in use or waiting for a thread.
    pub heaps: u64,
    /// Of the control group that is nearest to its limit, as last seen; 0 for none.
    pub memory_limit_bytes: u64,
    /// Times that memory has become tight: next to no room below that limit.
    pub tight_count: u64,
}

extern "C" {
    fn hak_stats(stats: *mut Statistics, size: usize) -> i32;
}

/// The statistics of this moment.
pub fn statistics() -> Statistics {
    let mut found = Statistics::default();
    // SAFETY: no more than the size is written.
    unsafe { hak_stats(&mut found, mem::size_of::<Statistics>()) };
    found
}
