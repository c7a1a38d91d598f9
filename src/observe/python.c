#include "observe/python.h"

#include <string.h>

#include "base/atomic.h"
#include "observe/unwind.h"
#include "os/libc.h"
#include "os/modules.h"

/* Offsets, as the headers of each version have them. */
struct hak_python_layout {
    uint16_t version;                                   /* as in 0x030b */
    uint16_t loop;                                      /* of PyThreadState: which call of the loop; 0: it has none */
    uint16_t innermost;                                 /* of that, or of PyThreadState */
    uint16_t code, caller, instruction, is_root, owner; /* of _PyInterpreterFrame; no `is_root`: 0 */
    uint16_t first_line, instructions;                  /* of PyCodeObject */
    uint16_t ascii_bytes, other_bytes;                  /* of a string's head, which its characters follow */
};

static const struct hak_python_layout layouts[] = {
    {0x030b, 56, 8, 32, 48, 56, 68, 69, 72, 184, 48, 72},
    {0x030c, 56, 0, 0, 8, 56, 0, 70, 68, 192, 40, 56},
    {0x030d, 0, 72, 0, 8, 56, 0, 70, 68, 200, 40, 56},
};

/* The same in all of them. */
enum {
    OBJECT_TYPE = 8,
    OBJECT_SIZE = 16,
    CODE_FILE = 112,
    CODE_NAME = 128,
    CODE_LINES = 136,
    STRING_STATE = 32,
    BYTES_HEAD = 32,
    OWNED_BY_C = 3, /* a frame that stands for a call of the loop, from 3.12 on */
    UNIT_BYTES = 2, /* of code */
};

enum {
    MOST_STEPS = 512,
    LEAST_PAGE_BYTES = 4096,     /* of any processor: a division by what isn't known takes its time */
    LONGEST_NAME = 160,          /* of the text of a frame */
    MOST_LINES_BYTES = 16 << 20, /* of a table of lines */
    SELF_DESCRIBING = 0x030d,    /* from this version on, _PyRuntime begins with a description */
    FREE_THREADED_WORD = 2,      /* in that */
};

const struct hak_python_layout *hak_python_layout_of(unsigned long version) {
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (layouts[i].version == version >> 16) return &layouts[i];
    return NULL;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

HAK_UNCHECKED static uint64_t load_bytes(uintptr_t at, size_t bytes) {
    typedef uint64_t word __attribute__((aligned(1), may_alias));
    uint64_t value = 0;
    if (bytes == sizeof value) return *(const word *)at;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)((const unsigned char *)at)[i] << (8 * i);
    return value;
}

/* Up to a word. What can't be read is 0, and the walk has failed from then on. */
static uint64_t read_bytes(struct hak_python_walk *walk, uintptr_t at, size_t bytes) {
    uint64_t spread = at / LEAST_PAGE_BYTES * UINT64_C(0x9E3779B97F4A7C15);
    uintptr_t *page = &walk->pages[spread >> 32 & (HAK_PYTHON_PAGES - 1)];
    if (walk->has_failed || !hak_unwind_can_read(page, at, bytes)) {
        walk->has_failed = true;
        return 0;
    }
    return load_bytes(at, bytes);
}

/* The same of strings and tables, which are read from front to end: eight of them lie in one page. */
static uint64_t read_byte(struct hak_python_walk *walk, uintptr_t at) {
    uintptr_t eight = at & ~(uintptr_t)7;
    if (walk->eight_at != eight) {
        walk->eight_at = eight;
        walk->eight = read_bytes(walk, eight, 8);
    }
    return walk->eight >> at % 8 * 8 & 0xff;
}

static uint64_t read_character(struct hak_python_walk *walk, uintptr_t from, uint64_t index, uint32_t width) {
    return width == 1 ? read_byte(walk, from + index) : read_bytes(walk, from + index * width, width);
}

static uintptr_t read_pointer(struct hak_python_walk *walk, uintptr_t at) {
    return (uintptr_t)read_bytes(walk, at, sizeof(uintptr_t));
}

static bool is_of_type(struct hak_python_walk *walk, uintptr_t object, uintptr_t type) {
    return read_pointer(walk, object + OBJECT_TYPE) == type && !walk->has_failed;
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* In UTF-8. A character that has no place there, or controls a terminal, becomes a question mark. */
static size_t encode(uint64_t character, char bytes[4]) {
    static const unsigned char firsts[] = {0, 0x00, 0xc0, 0xe0, 0xf0};
    bool is_plain = character >= 0x20 && character - 0x7f > 0x9f - 0x7f && character - 0xd800 > 0xdfff - 0xd800;
    if (!is_plain || character > 0x10ffff) character = '?';
    size_t count = character < 0x80 ? 1 : character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    for (size_t i = count - 1; i > 0; i--, character >>= 6) bytes[i] = (char)(0x80 | (character & 0x3f));
    bytes[0] = (char)(firsts[count] | character);
    return count;
}

/* The first character from which on all have room. */
static uint64_t first_with_room(struct hak_python_walk *walk, uintptr_t from, uint64_t length, uint32_t width,
                                uint64_t room) {
    char bytes[4];
    for (; length > 0 && !walk->has_failed; length--) {
        size_t count = encode(read_character(walk, from, length - 1, width), bytes);
        if (count > room) break;
        room -= count;
    }
    return length;
}

/* Appends the characters of a string, as many as have room before `end`: the last ones, or the first. False when it is
 * none. */
static bool add_string(struct hak_python_walk *walk, uintptr_t string, bool is_cut_in_front, char **at,
                       const char *end) {
    if (!is_of_type(walk, string, walk->python->string_type)) return false;
    uint64_t length = read_bytes(walk, string + OBJECT_SIZE, 8), state = read_bytes(walk, string + STRING_STATE, 4),
             room = (uint64_t)(end - *at);
    uint32_t width = state >> 2 & 7, is_compact = state >> 5 & 1, is_ascii = state >> 6 & 1;
    if (!is_compact || (width != 1 && width != 2 && width != 4)) return false;
    const struct hak_python_layout *layout = walk->python->layout;
    uintptr_t from = string + (is_ascii ? layout->ascii_bytes : layout->other_bytes);
    bool may_be_cut = is_cut_in_front && length > room / 4; /* a character has up to 4 bytes */
    for (uint64_t i = may_be_cut ? first_with_room(walk, from, length, width, room) : 0; i < length; i++) {
        char bytes[4];
        size_t count = encode(read_character(walk, from, i, width), bytes);
        if (walk->has_failed || count > (size_t)(end - *at)) break;
        for (size_t k = 0; k < count; k++) *(*at)++ = bytes[k];
    }
    return !walk->has_failed;
}

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

/* Six bits a byte, the lowest first. */
static uint64_t fetch_number(struct hak_python_walk *walk, uintptr_t *at) {
    uint64_t value = 0, byte;
    uint32_t shift = 0;
    do {
        byte = read_byte(walk, (*at)++);
        value |= (byte & 0x3f) << shift;
        shift += 6;
    } while ((byte & 0x40) != 0 && shift < 60);
    return value;
}

/* How many lines further an entry of this form leads; goes to its end. */
static int64_t fetch_step(struct hak_python_walk *walk, uintptr_t *at, uint32_t form) {
    enum { ON_THE_LINE = 10, WITHOUT_COLUMN = 13, IN_FULL = 14, WITHOUT_LINE = 15 };
    if (form < ON_THE_LINE || form == WITHOUT_LINE) {
        *at += form < ON_THE_LINE;
        return 0;
    }
    if (form < WITHOUT_COLUMN) {
        *at += 2;
        return form - ON_THE_LINE;
    }
    uint64_t step = fetch_number(walk, at);
    for (uint32_t i = 0; form == IN_FULL && i < 3; i++) fetch_number(walk, at); /* its end, and columns */
    return (step & 1) != 0 ? -(int64_t)(step >> 1) : (int64_t)(step >> 1);
}

/* By the table of lines (co_linetable): an entry for some units of code each, one after the other. */
static uint32_t line_at(struct hak_python_walk *walk, uintptr_t code, uintptr_t instruction) {
    const struct hak_python_layout *layout = walk->python->layout;
    uintptr_t table = read_pointer(walk, code + CODE_LINES), at = table + BYTES_HEAD,
              offset = instruction - (code + layout->instructions);
    int64_t first = (int64_t)read_bytes(walk, code + layout->first_line, 4), line = first;
    uint64_t size = read_bytes(walk, table + OBJECT_SIZE, 8);
    if (!is_of_type(walk, table, walk->python->bytes_type) || size > MOST_LINES_BYTES) return (uint32_t)first;
    for (uintptr_t end = at + size; at < end && !walk->has_failed;) {
        uint64_t head = read_byte(walk, at++), bytes = UNIT_BYTES * ((head & 7) + 1);
        line += fetch_step(walk, &at, head >> 3 & 15);
        if (offset < bytes) return (uint32_t)line;
        offset -= bytes;
    }
    return (uint32_t)first; /* before its first instruction */
}

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

static uint64_t mix_fact(uint64_t identity, uint64_t fact) {
    identity = (identity ^ fact) * UINT64_C(0x9E3779B97F4A7C15);
    return identity ^ identity >> 32;
}

/* Where a string is, how long it is, and the first and the last of its characters: another one in its place has others,
 * or is as good. */
static uint64_t mix_text(struct hak_python_walk *walk, uint64_t identity, uintptr_t string) {
    uint64_t length = read_bytes(walk, string + OBJECT_SIZE, 8);
    uintptr_t first = string + walk->python->layout->ascii_bytes;
    identity = mix_fact(mix_fact(identity, string), length);
    if (length < 8) return mix_fact(identity, length == 0 ? 0 : read_bytes(walk, first, length));
    return mix_fact(mix_fact(identity, read_bytes(walk, first, 8)), read_bytes(walk, first + length - 8, 8));
}

static uint64_t identify(struct hak_python_walk *walk, uintptr_t code, uintptr_t instruction) {
    uint64_t identity = mix_fact(mix_fact(1, code), instruction);
    identity = mix_text(walk, identity, read_pointer(walk, code + CODE_NAME));
    identity = mix_text(walk, identity, read_pointer(walk, code + CODE_FILE));
    identity = mix_fact(identity, read_pointer(walk, code + CODE_LINES));
    return mix_fact(identity, read_bytes(walk, code + walk->python->layout->first_line, 4));
}

bool hak_python_describe(struct hak_python_walk *walk, struct hak_python_frame *frame) {
    char *at = frame->text;
    uintptr_t name = read_pointer(walk, frame->code + CODE_NAME), file = read_pointer(walk, frame->code + CODE_FILE);
    bool has_name = add_string(walk, name, false, &at, frame->text + LONGEST_NAME);
    *at++ = '\t';
    bool has_file = has_name && add_string(walk, file, true, &at, frame->text + sizeof frame->text - 1);
    *at = '\0';
    if (has_file) frame->line = line_at(walk, frame->code, frame->at);
    if (!has_file || walk->has_failed) walk->frame = 0;
    return has_file && !walk->has_failed;
}

/* What a call of the loop begins with is either marked (3.11), or a frame of its interpreter. */
bool hak_python_step(struct hak_python_walk *walk, struct hak_python_frame *frame) {
    while (walk->frame != 0 && walk->steps++ < MOST_STEPS) {
        const struct hak_python_layout *layout = walk->python->layout;
        uintptr_t at = walk->frame, code = read_pointer(walk, at + layout->code),
                  instruction = read_pointer(walk, at + layout->instruction);
        bool is_root = layout->is_root != 0 && read_bytes(walk, at + layout->is_root, 1) != 0,
             stands_for_call = layout->is_root == 0 && read_bytes(walk, at + layout->owner, 1) == OWNED_BY_C;
        walk->frame = read_pointer(walk, at + layout->caller);
        if (stands_for_call) {
            walk->is_innermost = true;
            continue;
        }
        frame->is_innermost = walk->is_innermost;
        walk->is_innermost = is_root;
        frame->code = code;
        frame->at = instruction;
        bool is_code = is_of_type(walk, code, walk->python->code_type);
        if (is_code) frame->identity = identify(walk, code, instruction);
        if (is_code && !walk->has_failed) return true;
        break;
    }
    walk->frame = 0;
    return false;
}

bool hak_python_next(struct hak_python_walk *walk, struct hak_python_frame *frame) {
    return hak_python_step(walk, frame) && hak_python_describe(walk, frame);
}

struct hak_python_walk hak_python_begin_at(const struct hak_python *python, uintptr_t thread_state) {
    struct hak_python_walk walk = {.python = python, .is_innermost = true, .eight_at = 1};
    const struct hak_python_layout *layout = python->layout;
    uintptr_t holder = layout->loop == 0 ? thread_state : read_pointer(&walk, thread_state + layout->loop);
    walk.frame = read_pointer(&walk, holder + layout->innermost);
    return walk;
}

/* ---- The interpreter of this process ----------------------------------------------------------------------------- */

/* Of who looks for it, and const once `python_is_known`. */
static struct {
    struct hak_python python;
    struct hak_os_module module;     /* all that follows is in there: another one's may be unloaded */
    const unsigned long *version_at; /* NULL: it doesn't say */
    unsigned long version;           /* 0 then */
    bool is_free_threaded;
    void *(*state_of_thread)(void);
    int (*is_ending)(void);
} interpreter;
static HAK_ATOMIC(bool) python_is_looked_for, python_is_known;

static void *if_of_interpreter(void *exported) {
    const struct hak_os_module *module = &interpreter.module;
    return (uintptr_t)exported - module->start < module->end - module->start ? exported : NULL;
}

static void read_version(void) {
    interpreter.version_at = if_of_interpreter(hak_os_find_any("Py_Version"));
    interpreter.version = interpreter.version_at == NULL ? 0 : *interpreter.version_at;
    bool is_new = interpreter.version >> 16 >= SELF_DESCRIBING;
    const uint64_t *runtime = is_new ? if_of_interpreter(hak_os_find_any("_PyRuntime")) : NULL;
    void *is_ending = if_of_interpreter(hak_os_find_in_libraries(is_new ? "Py_IsFinalizing" : "_Py_IsFinalizing"));
    memcpy(&interpreter.is_ending, &is_ending, sizeof is_ending);
    interpreter.python.layout = is_ending == NULL ? NULL : hak_python_layout_of(interpreter.version);
    interpreter.is_free_threaded = runtime != NULL && runtime[FREE_THREADED_WORD] != 0;
}

void hak_python_look_for(void) {
    if (hak_atomic_exchange(&python_is_looked_for, true, relaxed)) return;
    interpreter.python.code_type = (uintptr_t)hak_os_find_any("PyCode_Type");
    interpreter.python.string_type = (uintptr_t)hak_os_find_any("PyUnicode_Type");
    interpreter.python.bytes_type = (uintptr_t)hak_os_find_any("PyBytes_Type");
    void *state_of_thread = hak_os_find_in_libraries("PyGILState_GetThisThreadState");
    if (state_of_thread == NULL || !hak_os_module_of((uintptr_t)state_of_thread, &interpreter.module)) return;
    memcpy(&interpreter.state_of_thread, &state_of_thread, sizeof state_of_thread);
    read_version();
    /* Release pairs with hak_python_is_there. */
    hak_atomic_store(&python_is_known, true, release);
}

/* Acquire pairs with hak_python_look_for: all of it can be read. */
bool hak_python_is_there(void) { return hak_atomic_load(&python_is_known, acquire); }

bool hak_python_add_refusal(struct hak_text *text) {
    if (!hak_python_is_there()) return false;
    unsigned long major = interpreter.version >> 24, minor = interpreter.version >> 16 & 0xff;
    bool is_known = interpreter.python.layout != NULL;
    if (interpreter.version == 0) hak_text_add(text, "Python is older than 3.11");
    else if (!is_known) hak_text_add(text, "Python %lu.%lu is none of 3.11 to 3.13", major, minor);
    else if (interpreter.is_free_threaded) hak_text_add(text, "Python %lu.%lu is free-threaded", major, minor);
    return !is_known || interpreter.is_free_threaded;
}

/* What has been unloaded is not called, nor what was loaded in its place. */
static bool is_loaded(void) {
    const struct hak_os_module *was = &interpreter.module;
    struct hak_os_module now;
    return hak_os_module_of((uintptr_t)interpreter.state_of_thread, &now) && now.start == was->start &&
           now.end == was->end && now.frame_table == was->frame_table && *interpreter.version_at == interpreter.version;
}

struct hak_python_walk hak_python_begin(void) {
    if (!hak_python_is_there() || interpreter.python.layout == NULL || interpreter.is_free_threaded || !is_loaded() ||
        interpreter.is_ending())
        return (struct hak_python_walk){.frame = 0};
    return hak_python_begin_at(&interpreter.python, (uintptr_t)interpreter.state_of_thread());
}
