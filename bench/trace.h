/* The format of a trace: what a program asked of its allocator, thread by thread, and in which order the threads did.
 *
 * Written by lab/native/record.c while the program runs, completed by lab/hakmem/trace.py, replayed by bench_replay.c;
 * docs/traces.md is the reader's guide. Integers are little-endian. A file is a header and then chunks, each of
 * TRACE_CHUNK_BYTES. A chunk belongs to one thread, and a thread's chunks follow each other in the order of the file.
 * Each begins to code anew, so that a trace can be read as far as it goes, wherever the program ended.
 *
 * A chunk holds events, each two variable-length integers (7 bits a byte, lowest first): an operand << 3 | kind, and
 * a name.
 *
 *     TURN                        0; the second integer is a ticket: what follows comes after all lower ones
 *     MALLOC, CALLOC              size; a block was returned
 *     ALIGNED                     size << 6 | shift; the same, aligned to 1 << shift bytes
 *     FREE                        0
 *     REALLOC                     0; begins: the name is free again, the block is not yet
 *     REALLOCATED                 size; ends the thread's REALLOC, or, without one, is realloc(NULL, size)'s;
 *                                 with name 0 it failed, and the block keeps the name it had
 *
 * T1  A name is a number other than 0 that no two living blocks share: its address divided by 8 in a recording.
 * T2  Tickets rise within a thread, and no two threads share one: sorted by ticket, turns are one sequence of events.
 * T3  In this sequence a block is freed after it was returned, and its name returns after it was freed, in whatever
 *     threads.
 *
 * Names and tickets are coded as differences: a name to the one before it in the chunk (0 at first), in zigzag form
 * (the sign is the lowest bit); a ticket to the one before it, at first to that of the chunk.
 */
#ifndef TRACE_H
#define TRACE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_MAGIC "haktrace"

enum {
    TRACE_VERSION = 1,
    TRACE_CHUNK_BYTES = 4096,
    TRACE_INTEGER_BYTES_MAX = 10,
    TRACE_EVENT_BYTES_MAX = 2 * TRACE_INTEGER_BYTES_MAX,
    TRACE_KIND_BITS = 3,
    TRACE_SHIFT_BITS = 6,
    TRACE_BYTES_BITS = 16,
};

enum trace_kind {
    TRACE_TURN = 1,
    TRACE_MALLOC,
    TRACE_CALLOC,
    TRACE_ALIGNED,
    TRACE_FREE,
    TRACE_REALLOC,
    TRACE_REALLOCATED,
};

/* Why a trace ends before the program did. */
enum trace_flag {
    TRACE_FULL = 1,      /* the file reached its limit, or, together with one of these: */
    TRACE_FILE_SIZE = 2, /* the process may write no larger file (RLIMIT_FSIZE) */
    TRACE_NO_ROOM = 4,   /* the disk had no more room */
};

/* Fills a chunk. The recorder changes counts and flags as it goes; whoever completes the file adds the checksum. */
struct trace_header {
    char magic[8];
    uint32_t checksum; /* of all that follows in the header; 0: the recording was not completed */
    uint32_t version;
    uint32_t pid;
    _Atomic uint32_t flags;
    _Atomic uint32_t
        chunk_count; /* before the count of threads: whoever reads this first finds all threads of the chunks */
    _Atomic uint32_t thread_count;
    char command[TRACE_CHUNK_BYTES - 32]; /* its words, each ended by a zero byte, as far as they fit */
};

enum { TRACE_PAYLOAD_BYTES = TRACE_CHUNK_BYTES - 20 };

struct trace_chunk {
    uint32_t checksum;       /* of all that follows in the chunk; 0: the thread has not filled it */
    uint32_t thread;         /* from 0, in the order in which threads were first seen */
    uint64_t ticket;         /* of the turn in which the chunk begins; 0: before any */
    _Atomic uint32_t filled; /* events, without turns, << TRACE_BYTES_BITS | bytes of the payload */
    unsigned char payload[TRACE_PAYLOAD_BYTES];
};

_Static_assert(sizeof(struct trace_header) == TRACE_CHUNK_BYTES && sizeof(struct trace_chunk) == TRACE_CHUNK_BYTES &&
                   offsetof(struct trace_chunk, payload) == TRACE_CHUNK_BYTES - TRACE_PAYLOAD_BYTES,
               "the header and a chunk are of one size, without gaps");

static inline uint32_t trace_chunk_bytes(const struct trace_chunk *chunk) {
    return chunk->filled & ((1U << TRACE_BYTES_BITS) - 1);
}

/* Adler-32, never 0. At most a chunk: its sums need no reduction on the way. */
static inline uint32_t trace_checksum(const void *memory, size_t bytes) {
    const unsigned char *byte = memory;
    uint32_t low = 1;
    uint32_t high = 0;
    for (size_t i = 0; i < bytes; i++) {
        low += byte[i];
        high += low;
    }
    uint32_t sum = high % 65521 << 16 | low % 65521;
    return sum ? sum : 1;
}

static inline uint32_t trace_header_checksum(const struct trace_header *header) {
    return trace_checksum(&header->version, sizeof *header - offsetof(struct trace_header, version));
}

static inline uint32_t trace_chunk_checksum(const struct trace_chunk *chunk) {
    return trace_checksum(&chunk->thread, sizeof *chunk - offsetof(struct trace_chunk, thread));
}

static inline uint64_t trace_zigzag(uint64_t from, uint64_t to) {
    uint64_t difference = to - from;
    return difference << 1 ^ (0 - (difference >> 63));
}

static inline uint64_t trace_unzigzag(uint64_t from, uint64_t code) { return from + (code >> 1 ^ (0 - (code & 1))); }

/* Returns the place after it. */
static inline unsigned char *trace_put(unsigned char *place, uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
        *place++ = (unsigned char)(value | 0x80);
    }
    *place++ = (unsigned char)value;
    return place;
}

#endif
