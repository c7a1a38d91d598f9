/* hakmem: a general-purpose malloc for Linux.
 *
 * Link with libhakmem.so, libhakmem.a or hakmem.o and the standard names (malloc, free, operator new, ...) are hakmem's
 * already; nothing in this header is needed for that. It declares the same operations under hak_* names, which always
 * mean hakmem, whatever else is linked, and what the standard interface has no words for.
 *
 * Every function may be called from any thread at any time. None may be called from a signal handler, except where it
 * says so. Sizes are in bytes. Blocks are aligned to 16 bytes at least.
 */
#ifndef HAKMEM_HAKMEM_H
#define HAKMEM_HAKMEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAK_VERSION_MAJOR 0
#define HAK_VERSION_MINOR 2
#define HAK_VERSION_PATCH 0

#ifndef HAK_API
#define HAK_API __attribute__((visibility("default")))
#endif

/* ---- Version --------------------------------------------------------------------------------------------------- */

/* The version of the library that runs, as "MAJOR.MINOR.PATCH". A static string. */
HAK_API const char *hak_version(void);

/* ---- Blocks ---------------------------------------------------------------------------------------------------- */

/* As in C23 and POSIX, with glibc's answers where these leave a choice:
 *   - a size of 0 gives a unique block, to be freed like any other;
 *   - failure gives NULL and errno = ENOMEM (EINVAL for an alignment that is no power of two); the old block of a
 *     failed hak_realloc stays valid;
 *   - hak_realloc(p, 0) frees p and returns NULL;
 *   - hak_free keeps errno. */
HAK_API void *hak_malloc(size_t size) __attribute__((malloc, alloc_size(1)));
HAK_API void hak_free(void *block);
HAK_API void *hak_calloc(size_t count, size_t size) __attribute__((malloc, alloc_size(1, 2)));
HAK_API void *hak_realloc(void *block, size_t size) __attribute__((alloc_size(2)));
HAK_API void *hak_reallocarray(void *block, size_t count, size_t size) __attribute__((alloc_size(2, 3)));
HAK_API void *hak_aligned_alloc(size_t alignment, size_t size) __attribute__((malloc, alloc_align(1), alloc_size(2)));
HAK_API void *hak_memalign(size_t alignment, size_t size) __attribute__((malloc, alloc_align(1), alloc_size(2)));
HAK_API void *hak_valloc(size_t size) __attribute__((malloc, alloc_size(1)));
HAK_API void *hak_pvalloc(size_t size) __attribute__((malloc));

/* Returns 0, EINVAL or ENOMEM; *block is written on success only, errno never. */
HAK_API int hak_posix_memalign(void **block, size_t alignment, size_t size);

/* The bytes of the block that may be used, all of them writable: at least what was asked for, and in the secure build
 * (libhakmem-secure.so) exactly that. 0 for NULL. It stays the same until the block is resized or freed, and
 * hak_realloc to a larger size keeps all of these bytes. Where a compiler checks sizes (_FORTIFY_SOURCE), it ends a
 * program that writes more than was asked for: hak_alloc_at_least takes all bytes from the start. */
HAK_API size_t hak_malloc_usable_size(void *block);

/* A size to ask for instead of `size`, which costs nothing more: a block of `size` bytes has at least so many usable
 * ones. It may have more, as sizes above 1 KiB share wider blocks in a small heap; hak_alloc_at_least tells how many.
 * `size` itself where no block can be so large. */
HAK_API size_t hak_malloc_good_size(size_t size);

/* As hak_malloc; on success *usable is what hak_malloc_usable_size says of the block, else it is not written. `usable`
 * must not be NULL. The block may be freed with any size from `size` to *usable. */
HAK_API void *hak_alloc_at_least(size_t size, size_t *usable) __attribute__((malloc));

/* Free with the size (and alignment) that was asked for. */
HAK_API void hak_free_sized(void *block, size_t size);
HAK_API void hak_free_aligned_sized(void *block, size_t alignment, size_t size);

/* jemalloc's functions with flags, of hakmem's blocks: what any function above gives, these take, and the other way
 * round. Flags are added up; the values are jemalloc's. MALLOCX_TCACHE(n) and MALLOCX_ARENA(n) of its header are
 * accepted, and mean nothing. */
#define HAK_MALLOCX_LG_ALIGN(log2) ((int)(log2)) /* aligned to 2^log2 bytes; 0..63 */
#define HAK_MALLOCX_ZERO 0x40                    /* all usable bytes that are new are zero */
#define HAK_MALLOCX_TCACHE_NONE 0x100 /* past the thread's front cache and the heap profile, see hak_should_move */

/* The least usable size that a block of hak_mallocx(size, flags) has; it may have more. 0 where none can be so
 * large. */
HAK_API size_t hak_nallocx(size_t size, int flags);

/* NULL and errno = ENOMEM on failure. */
HAK_API void *hak_mallocx(size_t size, int flags) __attribute__((malloc, alloc_size(1)));

/* As hak_realloc, with the flags: the block is at a multiple of the alignment afterwards, and with HAK_MALLOCX_ZERO the
 * bytes behind its former usable size are zero. hak_rallocx(NULL, ...) is hak_mallocx; 0 bytes are 1. */
HAK_API void *hak_rallocx(void *block, size_t size, int flags) __attribute__((alloc_size(2)));

/* Would resize the block where it is, from `size` to `size` + `extra` bytes. hakmem leaves it as it is. Returns the
 * block's usable size. */
HAK_API size_t hak_xallocx(void *block, size_t size, size_t extra, int flags);

/* hak_malloc_usable_size. */
HAK_API size_t hak_sallocx(const void *block, int flags);

/* hak_free and hak_free_sized. `size` is from what was asked for to the usable size. */
HAK_API void hak_dallocx(void *block, int flags);
HAK_API void hak_sdallocx(void *block, size_t size, int flags);

/* ---- Questions and requests ------------------------------------------------------------------------------------ */

/* 1 when the address lies in memory that hakmem manages, else 0. For an address in a live block it is 1. Where a
 * block was freed it may be either, and it may be 1 where somebody else has mapped memory in a place that hakmem gave
 * up. Takes no lock: a signal handler may call it. */
HAK_API int hak_owns(const void *address);

/* 1 when moving a live block would help memory to go back to the kernel, else 0. For programs that can move their
 * blocks, as redis does when it defragments. Blocks of up to 32768 bytes lie in slabs: 64 to 256 KiB, cut into blocks
 * of one size. The answer is 1 when, as far as can be seen at this moment,
 *   - an eighth of the blocks of the block's slab, or more, are free;
 *   - those in use are no more than in the mean of such slabs, and an eighth of that: of slabs with blocks of the same
 *     size that are neither full nor empty, counted one in each call of this function, round and round;
 *   - no thread is about to take its next blocks from the slab; and
 *   - another slab with free blocks of that size lies at a lower address.
 * Free blocks in the caches of threads count as in use. Move the block, with its usable size, past the thread's cache:
 * then the new one comes from that other slab, and the old one goes back to its own. By way of the cache the next block
 * would come to where this one was.
 *
 *     if (hak_should_move(block)) {
 *         size_t size = hak_malloc_usable_size(block);
 *         void *moved = hak_mallocx(size, HAK_MALLOCX_TCACHE_NONE);
 *         if (moved != NULL) {
 *             memcpy(moved, block, size);
 *             hak_dallocx(block, HAK_MALLOCX_TCACHE_NONE);
 *         }
 *     }
 *
 * While nothing else allocates, each move goes down, and a program that asks for all its blocks again and again comes
 * to an end. Takes no lock, and writes to no slab. 0 for NULL, and for what is no block of hakmem's. */
HAK_API int hak_should_move(const void *block);

/* Looks at all blocks, live ones too, but not at those between guards, if this is the secure build,
 * libhakmem-secure.so: whether something was written behind the end of one, or into a freed one that waits. The first
 * that isn't whole ends the program, by a line that names it. Other threads must not allocate or free meanwhile, nor,
 * in a child of fork, at the moment of the fork. Returns 0, or ENOTSUP where the library is another build. */
HAK_API int hak_heap_check(void);

/* Gives every free page back to the kernel, also holes inside slabs that are in use, and what other threads have in
 * their front caches, whether they run or sleep, up to one block per size. Returns the bytes given back. */
HAK_API size_t hak_purge(void);

/* Fills the calling thread's front cache for blocks of up to max_size bytes, so that its first allocations don't
 * wait for the shared pool. Touches none of the blocks' memory. Returns the number of blocks now ready; 0 when there is
 * no memory, or the thread has no front cache (it is ending). */
HAK_API size_t hak_thread_prewarm(size_t max_size);

/* The state of the heap, at one moment per figure: figures of a heap in motion need not add up exactly.
 * At rest, live + cached + free bytes, without the large ones, are what the slabs hold. */
struct hak_statistics {
    uint64_t live_blocks;   /* blocks handed out and not freed */
    uint64_t live_bytes;    /* their usable sizes; in the secure build with what lies behind these */
    uint64_t cached_blocks; /* free blocks in the front caches of threads */
    uint64_t cached_bytes;
    uint64_t free_bytes;   /* free blocks inside slabs, resident or not */
    uint64_t large_blocks; /* blocks with page runs or mappings of their own; also counted in live_* */
    uint64_t large_bytes;
    uint64_t slabs;              /* slabs that belong to a size class */
    uint64_t super_slabs;        /* SuperSlabs made so far */
    uint64_t mapped_bytes;       /* address space that is mapped for heap, tables and large objects */
    uint64_t committed_bytes;    /* of it, SuperSlabs, and mappings in use or kept */
    uint64_t purged_bytes;       /* given back to the kernel so far; twice what was purged, and then unmapped */
    uint64_t metadata_bytes;     /* of tables, and of heaps, 256 KiB each; resident as far as they are used */
    uint64_t remote_frees;       /* blocks freed into slabs that the freeing thread did not hold, so far */
    uint64_t system_calls;       /* memory system calls so far */
    uint64_t heaps;              /* thread heaps that exist, in use or waiting for a thread */
    uint64_t memory_limit_bytes; /* of the control group that is nearest to its limit, as last seen; 0 for none */
    uint64_t tight_count;        /* times that memory has become tight: next to no room below that limit */
};

/* Fills *stats. size is sizeof(struct hak_statistics) as the caller knows it; no more is written, and what an older
 * library does not know is 0. Returns 0, or EINVAL when stats is NULL. */
HAK_API int hak_stats(struct hak_statistics *stats, size_t size);

/* ---- Heap profile ---------------------------------------------------------------------------------------------- */

/* Switches the heap profile on (HAKMEM_HEAP_PROFILE does so at the start): from now on allocations are sampled, one
 * every `interval` bytes on average; 524288 is a good choice. What was recorded before stays. Returns 0, EINVAL for an
 * interval of 0, or ENOMEM. */
HAK_API int hak_profile_start(size_t interval);

/* Switches it off. Blocks that were sampled stay known, until they are freed. */
HAK_API void hak_profile_stop(void);

/* Writes what was recorded so far to a file, as text that `hakmem profile` reads. Returns 0, an error of opening the
 * file, EINVAL when path is NULL, ENODATA when the profile was never on, or EIO when not all could be written. */
HAK_API int hak_profile_save(const char *path);

#ifdef __cplusplus
}
#endif

#endif
