/* From a trace to steps: what each thread of a replay has to do, in the recorded order.
 *
 * Owns the reading of trace.h's format. Steps lie in bench_map memory; what is needed on the way is given back. A file
 * that is no sound trace ends the program with one line.
 */
#ifndef BENCH_STEPS_H
#define BENCH_STEPS_H

#include "bench.h"
#include "trace.h"

#include <stdbool.h>
#include <sys/stat.h>

/* Kinds of steps are those of events, except TURN, and these: */
enum { BENCH_PASS = TRACE_REALLOCATED + 1, BENCH_WAIT, BENCH_LOOK, BENCH_END };

/* Of a realloc, REALLOC has the old size and the next step, REALLOCATED, the new one. REALLOCATED alone is
 * realloc(NULL, bytes). FREE has the block's size. PASS gives the turn to thread `slot`, WAIT waits for it. LOOK looks
 * at the process's memory. */
struct bench_step {
    uint64_t bytes;
    uint32_t slot; /* where the block's address is; used again when the block is gone */
    uint8_t kind;
    uint8_t shift; /* ALIGNED: to 1 << shift */
};

struct bench_steps {
    struct bench_step **of_thread; /* each ended by END; thread 0 has the turn at first, and gets it in the end */
    struct bench_step *closing;    /* frees what is alive then */
    uint32_t thread_count;
    size_t slot_count;
    uint64_t operation_count; /* of all threads */
    uint64_t turn_count;
    uint64_t live_peak_bytes; /* as asked for */
    uint64_t checksum;        /* of the trace */
};

/* Memory for the time of reading, zero; resident as far as it is used. */
static inline void *bench_scratch(size_t count, size_t bytes_each) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *memory = mmap(NULL, count * bytes_each + 1, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) {
        bench_fail("no memory to read the trace");
    }
    return memory;
}

static inline void bench_drop(void *scratch, size_t count, size_t bytes_each) {
    munmap(scratch, count * bytes_each + 1);
}

/* ---- The file ---------------------------------------------------------------------------------------------------- */

struct bench_trace {
    const char *path;
    const struct trace_header *header;
    const struct trace_chunk *chunks;
    uint32_t chunk_count;
    uint32_t thread_count;
    uint32_t *first_chunks; /* by thread: index + 1; 0: none */
    uint32_t *next_chunks;  /* by chunk, of the same thread */
};

static inline struct bench_trace bench_trace_open(const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0) {
        bench_refuse("%s: %s", path, strerror(errno));
    }
    size_t bytes = (size_t)status.st_size;
    const struct trace_header *header = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (header == MAP_FAILED || bytes < sizeof *header || memcmp(header->magic, TRACE_MAGIC, sizeof header->magic)) {
        bench_refuse("%s: not a trace, or a packed one", path);
    }
    if (header->version != TRACE_VERSION) {
        bench_refuse("%s: a trace of format %" PRIu32 ", not %d", path, header->version, TRACE_VERSION);
    }
    if (header->checksum != trace_header_checksum(header)) {
        bench_refuse("%s: its header is damaged, or it was not completed", path);
    }
    struct bench_trace trace = {.path = path, .header = header};
    trace.chunks = (const struct trace_chunk *)(const void *)(header + 1);
    trace.chunk_count = header->chunk_count;
    trace.thread_count = header->thread_count;
    if (bytes != (trace.chunk_count + (size_t)1) * TRACE_CHUNK_BYTES) {
        bench_refuse("%s: cut short", path);
    }
    if (trace.chunk_count == 0 || trace.thread_count == 0) {
        bench_refuse("%s: a trace of nothing", path);
    }
    return trace;
}

/* Links each thread's chunks. */
static inline uint64_t bench_trace_link(struct bench_trace *trace) {
    uint64_t checksum = trace->header->checksum;
    uint32_t *last_chunks = bench_scratch(trace->thread_count, sizeof *last_chunks);
    trace->first_chunks = bench_scratch(trace->thread_count, sizeof *trace->first_chunks);
    trace->next_chunks = bench_scratch(trace->chunk_count, sizeof *trace->next_chunks);
    for (uint32_t i = 0; i < trace->chunk_count; i++) {
        const struct trace_chunk *chunk = &trace->chunks[i];
        if (chunk->checksum != trace_chunk_checksum(chunk) || chunk->thread >= trace->thread_count ||
            trace_chunk_bytes(chunk) > TRACE_PAYLOAD_BYTES) {
            bench_refuse("%s: chunk %" PRIu32 " is damaged", trace->path, i + 1);
        }
        checksum = bench_fold(checksum, chunk->checksum);
        uint32_t last = last_chunks[chunk->thread];
        *(last ? &trace->next_chunks[last - 1] : &trace->first_chunks[chunk->thread]) = i + 1;
        last_chunks[chunk->thread] = i + 1;
    }
    bench_drop(last_chunks, trace->thread_count, sizeof *last_chunks);
    return checksum;
}

static inline void bench_trace_close(struct bench_trace *trace) {
    bench_drop(trace->first_chunks, trace->thread_count, sizeof *trace->first_chunks);
    bench_drop(trace->next_chunks, trace->chunk_count, sizeof *trace->next_chunks);
    munmap((void *)(uintptr_t)trace->header, (trace->chunk_count + (size_t)1) * TRACE_CHUNK_BYTES);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

/* A thread's place in the trace. */
struct bench_reader {
    uint32_t next_chunk; /* index + 1; 0: none */
    const unsigned char *place;
    const unsigned char *end;
    uint64_t ticket;
    uint64_t name;
    enum trace_kind kind; /* of the event that was read last, with its operand and its name or ticket */
    uint64_t operand;
    uint64_t reallocating_name; /* between REALLOC and REALLOCATED */
    uint32_t reallocating_slot; /* slot + 1; 0: none, or one that nobody knows */
};

static inline uint64_t bench_read_integer(const struct bench_trace *trace, struct bench_reader *reader) {
    uint64_t value = 0;
    for (unsigned shift = 0; reader->place < reader->end && shift < 64; shift += 7) {
        unsigned char byte = *reader->place++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            return value;
        }
    }
    bench_refuse("%s: an event that makes no sense", trace->path);
}

static inline bool bench_read_event(const struct bench_trace *trace, struct bench_reader *reader) {
    while (reader->place == reader->end) {
        if (!reader->next_chunk) {
            return false;
        }
        const struct trace_chunk *chunk = &trace->chunks[reader->next_chunk - 1];
        reader->place = chunk->payload;
        reader->end = chunk->payload + trace_chunk_bytes(chunk);
        reader->ticket = chunk->ticket;
        reader->name = 0;
        reader->next_chunk = trace->next_chunks[reader->next_chunk - 1];
    }
    uint64_t first = bench_read_integer(trace, reader);
    uint64_t second = bench_read_integer(trace, reader);
    reader->kind = first & ((1 << TRACE_KIND_BITS) - 1);
    reader->operand = first >> TRACE_KIND_BITS;
    if (reader->kind < TRACE_TURN) {
        bench_refuse("%s: an event of no known kind", trace->path);
    }
    if (reader->kind == TRACE_TURN) {
        reader->ticket += second;
    } else {
        reader->name = trace_unzigzag(reader->name, second);
    }
    return true;
}

/* Readers of all threads, each at its first turn. */
static inline struct bench_reader *bench_readers(const struct bench_trace *trace) {
    struct bench_reader *readers = bench_scratch(trace->thread_count, sizeof *readers);
    for (uint32_t thread = 0; thread < trace->thread_count; thread++) {
        readers[thread].next_chunk = trace->first_chunks[thread];
        if (bench_read_event(trace, &readers[thread]) && readers[thread].kind != TRACE_TURN) {
            bench_refuse("%s: thread %" PRIu32 " begins without a turn", trace->path, thread);
        }
    }
    return readers;
}

/* Who has which turn. */
struct bench_turns {
    uint32_t *owners;    /* by ticket: thread + 1; 0: nobody, a thread that died before its turn was recorded */
    size_t ticket_limit; /* tickets are below: no more turns can be in the file */
    size_t name_count;   /* at most so many names are used */
};

static inline struct bench_turns bench_turns_find(const struct bench_trace *trace) {
    struct bench_turns turns = {.ticket_limit = trace->chunk_count * (size_t)TRACE_PAYLOAD_BYTES + 1};
    turns.owners = bench_scratch(turns.ticket_limit, sizeof *turns.owners);
    struct bench_reader *readers = bench_readers(trace);
    for (uint32_t thread = 0; thread < trace->thread_count; thread++) {
        struct bench_reader *reader = &readers[thread];
        bool is_event = reader->kind != 0;
        for (; is_event; is_event = bench_read_event(trace, reader)) {
            if (reader->kind != TRACE_TURN) {
                turns.name_count++;
            } else if (reader->ticket >= turns.ticket_limit || turns.owners[reader->ticket]) {
                bench_refuse("%s: turn %" PRIu64 " makes no sense", trace->path, reader->ticket);
            } else {
                turns.owners[reader->ticket] = thread + 1;
            }
        }
    }
    bench_drop(readers, trace->thread_count, sizeof *readers);
    return turns;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

/* Open addressing. A name stays when its block is gone: it will come again. */
struct bench_named {
    uint64_t name; /* 0: a free place */
    uint32_t slot; /* slot + 1; 0: the name's block is gone */
};

/* Goes through the turns and adds steps. It does so twice: where there are no arrays yet, steps are counted only. */
struct bench_builder {
    struct bench_steps *steps;
    size_t *step_counts; /* by thread, then of the closing steps */
    uint32_t thread;     /* whose turn it is */
    struct bench_named *names;
    size_t name_limit;    /* a power of two */
    uint64_t *slot_bytes; /* of the block in it; 0 when it is gone */
    uint32_t *free_slots; /* the latest on top */
    size_t free_count;
    uint64_t live_bytes;
};

static inline void bench_add(struct bench_builder *builder, unsigned kind, size_t slot, uint64_t bytes,
                             uint64_t shift) {
    size_t index = builder->step_counts[builder->thread]++;
    struct bench_step *steps = builder->steps->of_thread[builder->thread];
    if (steps) {
        steps[index] = (struct bench_step){bytes, (uint32_t)slot, (uint8_t)kind, (uint8_t)shift};
    }
}

static inline void bench_give_turn(struct bench_builder *builder, uint32_t thread) {
    if (thread != builder->thread) {
        bench_add(builder, BENCH_PASS, thread, 0, 0);
        builder->steps->turn_count++;
        builder->thread = thread;
        if (builder->step_counts[thread] || thread == 0) { /* else PASS starts it */
            bench_add(builder, BENCH_WAIT, 0, 0, 0);
        }
    }
}

static inline void bench_resize(struct bench_builder *builder, size_t slot, uint64_t bytes) {
    builder->live_bytes += bytes - builder->slot_bytes[slot];
    builder->slot_bytes[slot] = bytes;
    if (builder->live_bytes > builder->steps->live_peak_bytes) {
        builder->steps->live_peak_bytes = builder->live_bytes;
    }
}

static inline void bench_end_block(struct bench_builder *builder, size_t slot) {
    bench_add(builder, TRACE_FREE, slot, builder->slot_bytes[slot], 0);
    bench_resize(builder, slot, 0);
    builder->free_slots[builder->free_count++] = (uint32_t)slot;
    builder->steps->operation_count++;
}

static inline struct bench_named *bench_find_name(struct bench_builder *builder, uint64_t name) {
    size_t place = (size_t)bench_mix(name) & (builder->name_limit - 1);
    while (builder->names[place].name != 0 && builder->names[place].name != name) {
        place = (place + 1) & (builder->name_limit - 1);
    }
    builder->names[place].name = name;
    return &builder->names[place];
}

/* The name's place, free for a block: one that still has the name was freed where nobody saw it. */
static inline struct bench_named *bench_claim_name(struct bench_builder *builder, uint64_t name) {
    struct bench_named *named = bench_find_name(builder, name);
    if (named->slot) {
        bench_end_block(builder, named->slot - 1);
    }
    return named;
}

static inline void bench_begin_block(struct bench_builder *builder, const struct bench_reader *reader) {
    bool is_aligned = reader->kind == TRACE_ALIGNED;
    uint64_t bytes = is_aligned ? reader->operand >> TRACE_SHIFT_BITS : reader->operand;
    uint64_t shift = is_aligned ? reader->operand & ((1 << TRACE_SHIFT_BITS) - 1) : 0;
    struct bench_named *named = bench_claim_name(builder, reader->name);
    size_t slot = builder->free_count ? builder->free_slots[--builder->free_count] : builder->steps->slot_count++;
    named->slot = (uint32_t)slot + 1;
    bench_resize(builder, slot, bytes);
    bench_add(builder, reader->kind, slot, bytes, shift);
    builder->steps->operation_count++;
}

static inline void bench_end_realloc(struct bench_builder *builder, struct bench_reader *reader) {
    size_t slot = reader->reallocating_slot - (size_t)1;
    if (reader->name == 0) {
        bench_find_name(builder, reader->reallocating_name)->slot = reader->reallocating_slot;
    } else {
        bench_claim_name(builder, reader->name)->slot = reader->reallocating_slot;
        bench_add(builder, TRACE_REALLOC, slot, builder->slot_bytes[slot], 0);
        bench_add(builder, TRACE_REALLOCATED, slot, reader->operand, 0);
        bench_resize(builder, slot, reader->operand);
        builder->steps->operation_count++;
    }
    reader->reallocating_slot = 0;
}

/* What is freed but was never seen is passed over. */
static inline void bench_add_event(struct bench_builder *builder, struct bench_reader *reader) {
    if (reader->kind == TRACE_FREE || reader->kind == TRACE_REALLOC) {
        struct bench_named *named = bench_find_name(builder, reader->name);
        uint32_t slot = named->slot;
        named->slot = 0;
        if (reader->kind == TRACE_REALLOC) {
            reader->reallocating_name = reader->name;
            reader->reallocating_slot = slot;
        } else if (slot) {
            bench_end_block(builder, slot - 1);
        }
    } else if (reader->kind == TRACE_REALLOCATED && reader->reallocating_slot) {
        bench_end_realloc(builder, reader);
    } else if (reader->name) {
        bench_begin_block(builder, reader);
    }
}

static inline void bench_add_closing(struct bench_builder *builder) {
    builder->thread = builder->steps->thread_count;
    uint64_t operation_count = builder->steps->operation_count;
    bool *is_free = bench_scratch(builder->steps->slot_count, sizeof *is_free);
    for (size_t i = 0; i < builder->free_count; i++) {
        is_free[builder->free_slots[i]] = true;
    }
    for (size_t slot = 0; slot < builder->steps->slot_count; slot++) {
        if (!is_free[slot]) {
            bench_end_block(builder, slot);
        }
    }
    bench_drop(is_free, builder->steps->slot_count, sizeof *is_free);
    builder->steps->operation_count = operation_count;
}

static inline void bench_build(const struct bench_trace *trace, const struct bench_turns *turns, uint64_t look_every,
                               struct bench_steps *steps, size_t *step_counts) {
    struct bench_builder builder = {.steps = steps, .step_counts = step_counts, .name_limit = 2};
    while (builder.name_limit < 2 * turns->name_count) {
        builder.name_limit *= 2;
    }
    builder.names = bench_scratch(builder.name_limit, sizeof *builder.names);
    builder.slot_bytes = bench_scratch(turns->name_count, sizeof *builder.slot_bytes);
    builder.free_slots = bench_scratch(turns->name_count, sizeof *builder.free_slots);
    struct bench_reader *readers = bench_readers(trace);
    memset(step_counts, 0, (steps->thread_count + (size_t)1) * sizeof *step_counts);
    steps->operation_count = steps->turn_count = steps->slot_count = 0;
    uint64_t event_count = 0;
    for (size_t ticket = 0; ticket < turns->ticket_limit; ticket++) {
        if (turns->owners[ticket]) {
            bench_give_turn(&builder, turns->owners[ticket] - 1);
            struct bench_reader *reader = &readers[builder.thread];
            while (bench_read_event(trace, reader) && reader->kind != TRACE_TURN) {
                bench_add_event(&builder, reader);
                if (look_every && ++event_count % look_every == 0) {
                    bench_add(&builder, BENCH_LOOK, 0, 0, 0);
                }
            }
        }
    }
    bench_give_turn(&builder, 0);
    bench_add_closing(&builder);
    for (builder.thread = 0; builder.thread <= steps->thread_count; builder.thread++) {
        bench_add(&builder, BENCH_END, 0, 0, 0);
    }
    bench_drop(readers, trace->thread_count, sizeof *readers);
    bench_drop(builder.free_slots, turns->name_count, sizeof *builder.free_slots);
    bench_drop(builder.slot_bytes, turns->name_count, sizeof *builder.slot_bytes);
    bench_drop(builder.names, builder.name_limit, sizeof *builder.names);
}

/* With a LOOK after every so many events, or with 0 none. */
static inline struct bench_steps bench_steps_of(const char *path, uint64_t look_every) {
    struct bench_trace trace = bench_trace_open(path);
    struct bench_steps steps = {.checksum = bench_trace_link(&trace), .thread_count = trace.thread_count};
    struct bench_turns turns = bench_turns_find(&trace);
    size_t program_count = steps.thread_count + (size_t)1;
    size_t *step_counts = bench_scratch(program_count, sizeof *step_counts);
    steps.of_thread = bench_map(program_count, sizeof *steps.of_thread);
    bench_build(&trace, &turns, look_every, &steps, step_counts);
    for (size_t i = 0; i < program_count; i++) {
        steps.of_thread[i] = bench_map(step_counts[i], sizeof *steps.of_thread[i]);
    }
    bench_build(&trace, &turns, look_every, &steps, step_counts);
    steps.closing = steps.of_thread[steps.thread_count];
    bench_drop(step_counts, program_count, sizeof *step_counts);
    bench_drop(turns.owners, turns.ticket_limit, sizeof *turns.owners);
    bench_trace_close(&trace);
    return steps;
}

#endif
