#include "observe/unwind.h"

#include "base/bits.h"
#include "os/os.h"

/* Numbers of registers, as in the tables. */
#if defined(__aarch64__)
enum { FRAME_POINTER = 29, STACK_POINTER = 31 };
#else
enum { FRAME_POINTER = 6, STACK_POINTER = 7 }; /* x86-64 */
#endif

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

bool hak_unwind_can_read(uintptr_t *page, uintptr_t at, size_t bytes) {
    uintptr_t first = hak_align_down(at, hak_os_page_bytes()),
              last = hak_align_down(at + bytes - 1, hak_os_page_bytes());
    if (at + bytes < at || first == 0) return false;
    if (first != *page && !hak_os_is_readable((const void *)first)) return false;
    if (last != first && !hak_os_is_readable((const void *)last)) return false;
    *page = last;
    return true;
}

/* A place in the tables of a module. What can't be read is 0, and the reader has failed from then on. */
struct table_reader {
    uintptr_t at, end;
    uintptr_t module_start, page;
    bool has_failed;
};

static struct table_reader reader_at(const struct hak_os_module *module, uintptr_t at) {
    return (struct table_reader){.at = at, .end = module->end, .module_start = module->start};
}

static uint64_t fetch(struct table_reader *reader, size_t bytes) {
    uint64_t value = 0;
    if (reader->at < reader->module_start || reader->at > reader->end || reader->end - reader->at < bytes ||
        !hak_unwind_can_read(&reader->page, reader->at, bytes))
        reader->has_failed = true;
    for (size_t i = 0; i < bytes && !reader->has_failed; i++)
        value |= (uint64_t)((const unsigned char *)reader->at)[i] << (8 * i);
    reader->at += bytes;
    return value;
}

static int32_t fetch_signed_32(struct table_reader *reader) {
    return (int32_t)(uint32_t)fetch(reader, sizeof(int32_t));
}

static void skip_bytes(struct table_reader *reader, uint64_t bytes) {
    if (reader->at > reader->end || bytes > reader->end - reader->at) reader->has_failed = true;
    else reader->at += bytes;
}

/* LEB128: seven bits a byte, the lowest first. */
static uint64_t fetch_leb(struct table_reader *reader, bool is_signed) {
    uint64_t value = 0, byte;
    uint32_t shift = 0;
    do {
        byte = fetch(reader, 1);
        if (shift >= 64) reader->has_failed = true;
        else value |= (byte & 0x7f) << shift;
        shift += 7;
    } while ((byte & 0x80) != 0 && !reader->has_failed);
    if (is_signed && (byte & 0x40) != 0 && shift < 64) value |= UINT64_MAX << shift;
    return value;
}

static uint64_t fetch_unsigned(struct table_reader *reader) { return fetch_leb(reader, false); }
static int64_t fetch_signed(struct table_reader *reader) { return (int64_t)fetch_leb(reader, true); }

/* ---- Descriptions of functions ----------------------------------------------------------------------------------- */

/* How pointers are written: the low four bits of an encoding. */
enum { FORM_POINTER = 0x0, FORM_2 = 0x2, FORM_4 = 0x3, FORM_8 = 0x4, FORM_SIGN = 0x8, FORM_MASK = 0xf };

/* 0: of no fixed size, or not known. */
static size_t pointer_bytes(uint64_t encoding) {
    uint64_t form = encoding & FORM_MASK & ~(uint64_t)FORM_SIGN;
    return form == FORM_POINTER || form == FORM_8 ? 8 : form == FORM_4 ? 4 : form == FORM_2 ? 2 : 0;
}

/* What the descriptions of several functions have in common (CIE). */
struct common {
    uint64_t code_step;
    int64_t data_step;
    uint64_t return_register;
    size_t pointer_bytes;
    bool has_augmentation, is_signal_frame;
};

/* The letters tell what lies in the augmentation's bytes, in their order. */
static bool take_augmentation(struct table_reader *letters, struct table_reader *bytes, struct common *common) {
    for (char letter; (letter = (char)fetch(letters, 1)) != '\0';) {
        uint64_t encoding;
        switch (letter) {
        case 'R': common->pointer_bytes = pointer_bytes(fetch(bytes, 1)); break;
        case 'P': /* the function that handles exceptions */
            encoding = fetch(bytes, 1);
            if (pointer_bytes(encoding) == 0) return false;
            skip_bytes(bytes, pointer_bytes(encoding));
            break;
        case 'L': fetch(bytes, 1); break;
        case 'S': common->is_signal_frame = true; break;
        case 'B': /* with which key return addresses are signed, on aarch64 */ break;
        default: return false;
        }
    }
    return common->pointer_bytes != 0;
}

/* A record begins with its length; the reader's end becomes the record's. */
static bool open_record(struct table_reader *reader) {
    uint64_t length = fetch(reader, sizeof(uint32_t));
    if (reader->has_failed || length == 0 || length > reader->end - reader->at) return false;
    reader->end = reader->at + length;
    return true;
}

/* Leaves the reader at the instructions. */
static bool take_common(struct table_reader *reader, struct common *common) {
    *common = (struct common){.pointer_bytes = 8};
    if (!open_record(reader) || fetch(reader, sizeof(uint32_t)) != 0) return false;
    uint64_t version = fetch(reader, 1);
    struct table_reader letters = *reader;
    common->has_augmentation = fetch(&letters, 1) == 'z';
    if (!common->has_augmentation) letters = *reader;
    while (!reader->has_failed && fetch(reader, 1) != '\0') {
    }
    common->code_step = fetch_unsigned(reader);
    common->data_step = fetch_signed(reader);
    common->return_register = version == 1 ? fetch(reader, 1) : fetch_unsigned(reader);
    struct table_reader bytes = *reader;
    if (common->has_augmentation) {
        uint64_t length = fetch_unsigned(reader);
        bytes = *reader;
        skip_bytes(reader, length);
    }
    bool is_understood = (version == 1 || version == 3) && take_augmentation(&letters, &bytes, common);
    return is_understood && !letters.has_failed && !bytes.has_failed && !reader->has_failed;
}

/* ---- The machine ------------------------------------------------------------------------------------------------- */

/* Where a register of the caller's is. */
struct saved {
    enum { KEPT, IN_FRAME, AT_FRAME_POINTER, NOWHERE } where;
    int64_t offset; /* IN_FRAME: bytes from the end of the frame */
};

enum { CALLER, FRAME, SAVED_COUNT }; /* the registers that are followed: the return address, the frame pointer */

struct state {
    enum { UNSUPPORTED, REGISTER, WORD_AT_FRAME_POINTER } way; /* to the end of the frame */
    uint64_t base;
    int64_t offset;
    struct saved saved[SAVED_COUNT];
};

enum { REMEMBERED = 4 };

struct machine {
    struct state now, initial, remembered[REMEMBERED];
    uint32_t remembered_count;
    const struct common *common;
    uint64_t location, wanted; /* bytes from the function's beginning */
};

static void save(struct machine *machine, uint64_t number, struct saved saved) {
    if (number == machine->common->return_register) machine->now.saved[CALLER] = saved;
    if (number == FRAME_POINTER) machine->now.saved[FRAME] = saved;
}

static void save_in_frame(struct machine *machine, uint64_t number, int64_t steps) {
    int64_t offset;
    bool is_too_large = __builtin_mul_overflow(steps, machine->common->data_step, &offset);
    save(machine, number, (struct saved){is_too_large ? NOWHERE : IN_FRAME, offset});
}

static void restore(struct machine *machine, uint64_t number) {
    if (number == machine->common->return_register) machine->now.saved[CALLER] = machine->initial.saved[CALLER];
    if (number == FRAME_POINTER) machine->now.saved[FRAME] = machine->initial.saved[FRAME];
}

static void define(struct machine *machine, uint64_t base, int64_t offset) {
    machine->now.way = REGISTER;
    machine->now.base = base;
    machine->now.offset = offset;
}

static void define_by_steps(struct machine *machine, uint64_t base, int64_t steps) {
    int64_t offset;
    bool is_too_large = __builtin_mul_overflow(steps, machine->common->data_step, &offset);
    define(machine, base, offset);
    if (is_too_large) machine->now.way = UNSUPPORTED;
}

/* Expressions are understood that functions have which align their stack: a frame pointer and an offset. Returns what
 * is behind them in `more`, 0 for nothing. */
static bool take_from_frame_pointer(struct table_reader *reader, int64_t *offset, uint64_t *more) {
    enum { FIRST_BASE = 0x70 };
    uint64_t length = fetch_unsigned(reader);
    struct table_reader inside = *reader;
    skip_bytes(reader, length);
    if (reader->has_failed) return false;
    inside.end = reader->at;
    bool is_it = fetch(&inside, 1) == FIRST_BASE + FRAME_POINTER;
    *offset = fetch_signed(&inside);
    *more = inside.at < inside.end ? fetch(&inside, 1) : 0;
    return is_it && !inside.has_failed && inside.at == inside.end;
}

static void define_by_expression(struct machine *machine, struct table_reader *reader) {
    enum { DEREFERENCE = 0x06 };
    uint64_t more;
    bool is_known = take_from_frame_pointer(reader, &machine->now.offset, &more) && more == DEREFERENCE;
    machine->now.way = is_known ? WORD_AT_FRAME_POINTER : UNSUPPORTED;
}

static void save_by_expression(struct machine *machine, struct table_reader *reader) {
    int64_t offset;
    uint64_t number = fetch_unsigned(reader), more;
    bool is_known = take_from_frame_pointer(reader, &offset, &more) && more == 0 && offset == 0;
    save(machine, number, (struct saved){is_known ? AT_FRAME_POINTER : NOWHERE, 0});
}

static bool remember(struct machine *machine) {
    if (machine->remembered_count == REMEMBERED) return false;
    machine->remembered[machine->remembered_count++] = machine->now;
    return true;
}

static bool recall(struct machine *machine) {
    if (machine->remembered_count == 0) return false;
    machine->now = machine->remembered[--machine->remembered_count];
    return true;
}

/* False when the instruction is for code behind what is wanted. */
static bool advance(struct machine *machine, uint64_t steps) {
    machine->location += steps * machine->common->code_step;
    return machine->location <= machine->wanted;
}

/* Instructions (DW_CFA_*). Three have a number in their low six bits. */
enum {
    ADVANCE = 0x40,
    OFFSET = 0x80,
    RESTORE = 0xc0,
    NOP = 0x00,
    ADVANCE_1 = 0x02,
    ADVANCE_2 = 0x03,
    ADVANCE_4 = 0x04,
    OFFSET_EXTENDED = 0x05,
    RESTORE_EXTENDED = 0x06,
    UNDEFINED = 0x07,
    SAME_VALUE = 0x08,
    IN_REGISTER = 0x09,
    REMEMBER = 0x0a,
    RECALL = 0x0b,
    DEFINE = 0x0c,
    DEFINE_REGISTER = 0x0d,
    DEFINE_OFFSET = 0x0e,
    DEFINE_EXPRESSION = 0x0f,
    EXPRESSION = 0x10,
    OFFSET_EXTENDED_SIGNED = 0x11,
    DEFINE_SIGNED = 0x12,
    DEFINE_OFFSET_SIGNED = 0x13,
    VALUE_OFFSET = 0x14,
    VALUE_OFFSET_SIGNED = 0x15,
    VALUE_EXPRESSION = 0x16,
    SIGNS_WITH_PLACE = 0x2c, /* aarch64: the return address is signed from here on; signatures are taken off anyway */
    SIGNS = 0x2d,
    ARGUMENTS_BYTES = 0x2e
};

enum outcome { GOES_ON, IS_THERE, IS_UNKNOWN };

static enum outcome outcome_of(bool goes_on) { return goes_on ? GOES_ON : IS_THERE; }
static enum outcome understood(bool is) { return is ? GOES_ON : IS_UNKNOWN; }

static enum outcome execute(struct machine *machine, struct table_reader *reader) {
    static const struct saved is_kept = {KEPT, 0}, is_nowhere = {NOWHERE, 0};
    uint64_t code = fetch(reader, 1), low = code & 0x3f, number;
    switch (code & 0xc0) {
    case ADVANCE: return outcome_of(advance(machine, low));
    case OFFSET: save_in_frame(machine, low, (int64_t)fetch_unsigned(reader)); return GOES_ON;
    case RESTORE: restore(machine, low); return GOES_ON;
    default: break;
    }
    switch (code) {
    case NOP:
    case SIGNS_WITH_PLACE:
    case SIGNS: return GOES_ON;
    case ADVANCE_1: return outcome_of(advance(machine, fetch(reader, 1)));
    case ADVANCE_2: return outcome_of(advance(machine, fetch(reader, 2)));
    case ADVANCE_4: return outcome_of(advance(machine, fetch(reader, 4)));
    case REMEMBER: return understood(remember(machine));
    case RECALL: return understood(recall(machine));
    case ARGUMENTS_BYTES: fetch_unsigned(reader); return GOES_ON;
    case DEFINE_REGISTER: machine->now.base = fetch_unsigned(reader); return GOES_ON;
    case DEFINE_OFFSET: machine->now.offset = (int64_t)fetch_unsigned(reader); return GOES_ON;
    case DEFINE_OFFSET_SIGNED: define_by_steps(machine, machine->now.base, fetch_signed(reader)); return GOES_ON;
    case DEFINE_EXPRESSION: define_by_expression(machine, reader); return GOES_ON;
    case EXPRESSION: save_by_expression(machine, reader); return GOES_ON;
    default: break;
    }
    number = fetch_unsigned(reader);
    switch (code) {
    case OFFSET_EXTENDED: save_in_frame(machine, number, (int64_t)fetch_unsigned(reader)); return GOES_ON;
    case OFFSET_EXTENDED_SIGNED: save_in_frame(machine, number, fetch_signed(reader)); return GOES_ON;
    case RESTORE_EXTENDED: restore(machine, number); return GOES_ON;
    case SAME_VALUE: save(machine, number, is_kept); return GOES_ON;
    case DEFINE: define(machine, number, (int64_t)fetch_unsigned(reader)); return GOES_ON;
    case DEFINE_SIGNED: define_by_steps(machine, number, fetch_signed(reader)); return GOES_ON;
    case UNDEFINED: save(machine, number, is_nowhere); return GOES_ON;
    case IN_REGISTER:
    case VALUE_OFFSET:
    case VALUE_OFFSET_SIGNED: save(machine, number, is_nowhere); return fetch_leb(reader, true), GOES_ON;
    case VALUE_EXPRESSION:
        save(machine, number, is_nowhere);
        return skip_bytes(reader, fetch_unsigned(reader)), GOES_ON;
    default: return IS_UNKNOWN;
    }
}

/* False when there was something that is not understood. */
static bool run(struct machine *machine, struct table_reader *reader) {
    enum outcome outcome = GOES_ON;
    while (outcome == GOES_ON && !reader->has_failed && reader->at < reader->end) outcome = execute(machine, reader);
    return outcome != IS_UNKNOWN && !reader->has_failed;
}

/* ---- Rules ------------------------------------------------------------------------------------------------------- */

/* False when they are no words, or more than a rule has room for. */
static bool to_words(int64_t bytes, int64_t *words) {
    enum { MOST = (1 << 19) - 1 };
    *words = bytes / 8;
    return bytes % 8 == 0 && *words <= MOST && *words >= -MOST;
}

static struct hak_unwind_rule rule_of(const struct state *state) {
    static const struct hak_unwind_rule end = {.kind = HAK_UNWIND_END};
    const struct saved *caller = &state->saved[CALLER], *frame = &state->saved[FRAME];
    bool is_at_frame = state->way == WORD_AT_FRAME_POINTER;
    int64_t words, caller_words, frame_words = 0;
    if (caller->where != IN_FRAME || !to_words(caller->offset, &caller_words)) return end;
    if (state->way == UNSUPPORTED || !to_words(state->offset, &words)) return end;
    if (frame->where == IN_FRAME && !to_words(frame->offset, &frame_words)) return end;
    if (is_at_frame != (frame->where == AT_FRAME_POINTER)) return end;
    if (!is_at_frame && state->base != STACK_POINTER && state->base != FRAME_POINTER) return end;
    enum hak_unwind_kind kind = is_at_frame                    ? HAK_UNWIND_AT_FRAME
                                : state->base == STACK_POINTER ? HAK_UNWIND_BY_STACK
                                                               : HAK_UNWIND_BY_FRAME;
    return (struct hak_unwind_rule){kind, words, caller_words, frame_words};
}

/* What the description of a function (FDE) says of the address that lies `wanted` bytes behind its beginning. */
static struct hak_unwind_rule rule_in_description(const struct hak_os_module *module, uintptr_t description,
                                                  uint64_t wanted) {
    static const struct hak_unwind_rule unknown = {.kind = HAK_UNWIND_UNKNOWN}, end = {.kind = HAK_UNWIND_END};
    struct table_reader reader = reader_at(module, description);
    struct common common;
    if (!open_record(&reader)) return end;
    uintptr_t common_at = reader.at;
    common_at -= fetch(&reader, sizeof(uint32_t));
    struct table_reader common_reader = reader_at(module, common_at);
    if (!take_common(&common_reader, &common) || common.is_signal_frame) return end;
    fetch(&reader, common.pointer_bytes); /* its beginning, which the caller knows */
    if (fetch(&reader, common.pointer_bytes) <= wanted) return reader.has_failed ? end : unknown;
    if (common.has_augmentation) skip_bytes(&reader, fetch_unsigned(&reader));
    struct machine machine = {.common = &common, .wanted = wanted};
    if (!run(&machine, &common_reader)) return end;
    machine.initial = machine.now;
    return run(&machine, &reader) ? rule_of(&machine.now) : end;
}

/* The table is sorted: pairs of where a function begins and where its description is, as distances from the head. */
struct hak_unwind_rule hak_unwind_rule_in(const struct hak_os_module *module, uintptr_t code) {
    static const struct hak_unwind_rule unknown = {.kind = HAK_UNWIND_UNKNOWN};
    enum { VERSION_AND_ENCODINGS = 0x3b031b01, HEAD_BYTES = 12, PAIR_BYTES = 8 };
    uintptr_t head = module->frame_table;
    struct table_reader reader = reader_at(module, head);
    if (fetch(&reader, 4) != VERSION_AND_ENCODINGS) return unknown;
    skip_bytes(&reader, 4); /* where .eh_frame is */
    uint64_t low = 0, high = fetch(&reader, 4);
    if (reader.has_failed || high > (module->end - reader.at) / PAIR_BYTES) return unknown;
    int64_t wanted = (int64_t)(code - head);
    while (low < high) { /* what is below `low` begins at or before the code, what is from `high` on behind it */
        uint64_t middle = low + (high - low) / 2;
        reader.at = head + HEAD_BYTES + middle * PAIR_BYTES;
        if (fetch_signed_32(&reader) <= wanted) low = middle + 1;
        else high = middle;
    }
    if (low == 0) return unknown;
    reader.at = head + HEAD_BYTES + (low - 1) * PAIR_BYTES;
    int64_t begin = fetch_signed_32(&reader), description = fetch_signed_32(&reader);
    if (reader.has_failed) return unknown;
    return rule_in_description(module, head + (uintptr_t)description, (uint64_t)(wanted - begin));
}

struct hak_unwind_rule hak_unwind_rule_at(uintptr_t code) {
    static const struct hak_unwind_rule unknown = {.kind = HAK_UNWIND_UNKNOWN};
    struct hak_os_module module;
    return hak_os_module_of(code, &module) && module.frame_table != 0 ? hak_unwind_rule_in(&module, code) : unknown;
}
