#include "observe/crash.h"

#include <string.h>
#include <unistd.h>

#include "observe/address.h"
#include "observe/profile.h"
#include "observe/python.h"
#include "os/inspect.h"
#include "os/os.h"
#include "os/signals.h"
#include "region/guard.h"

enum {
    MOST_FRAMES = 32,
    MOST_GUESSES = 16,
    MOST_BLOCKS = 4,
    SCAN_BYTES = 32 << 10, /* of the stack, for guesses */
    CHUNK_WORDS = 32,
    MOST_PYTHON = 32, /* functions */
    MODULE_BYTES = 100,
    MOST_CODE = 512,             /* mappings that can be executed */
    NEAR_STACK_BYTES = 64 << 10, /* further away from the stack pointer, a function would need a very large frame */
    MOST_WAITS = 250,
    WAIT_US = 20000,
};

struct stack_frame {
    uintptr_t address, base; /* `base`: where the module begins; 0: unknown */
    bool is_guess;
    char module[MODULE_BYTES]; /* the end of its path */
};

struct code_range {
    uintptr_t start, end;
};

/* What the report is made of. One thread makes it, so none of it needs to be on its stack. */
static struct {
    const struct hak_os_signal *arrived;
    struct stack_frame frames[MOST_FRAMES];
    struct code_range code[MOST_CODE];
    uint32_t frame_count, guess_count, code_count;
    uintptr_t subject;                      /* the address that the report is about; 0: none */
    char subject_mapping[MODULE_BYTES + 8]; /* rights and name of what is mapped there; empty: nothing */
    bool subject_is_accessible, knows_mappings;
    uintptr_t blocks[MOST_BLOCKS]; /* that the report has named */
    uint32_t block_count;
    char text[12 << 10]; /* as long as the longest line of JSON */
} crash;

/* Ids of the process that makes a report, and of the one whose report is made: a forked child starts with its
 * parent's. */
static HAK_ATOMIC(uint32_t) reporter, reported;

static struct hak_text begin_text(void) { return hak_text_in(crash.text, sizeof crash.text); }

/* Names of files, threads and functions are as their makers like: none of them moves a terminal's cursor. */
static void end_text(const struct hak_text *text) {
    for (char *at = text->start; at < text->start + text->length; at++)
        if (((unsigned char)*at < ' ' && *at != '\n') || *at == 127) *at = '?';
    hak_os_write(STDERR_FILENO, text->start, text->length);
}

/* ---- Mappings ---------------------------------------------------------------------------------------------------- */

static bool note_mapping(const struct hak_os_mapping *mapping, void *context) {
    (void)context;
    if (mapping->rights[2] == 'x' && crash.code_count < MOST_CODE)
        crash.code[crash.code_count++] = (struct code_range){mapping->start, mapping->end};
    if (crash.subject - mapping->start < mapping->end - mapping->start) {
        struct hak_text what = hak_text_in(crash.subject_mapping, sizeof crash.subject_mapping);
        hak_text_add(&what, "%s %s", mapping->rights,
                     mapping->name[0] == '\0' ? "memory without a name" : mapping->name);
        crash.subject_is_accessible = strncmp(mapping->rights, "---", 3) != 0;
    }
    return true;
}

static bool is_code(uintptr_t address) {
    for (uint32_t i = 0; i < crash.code_count; i++)
        if (address - crash.code[i].start < crash.code[i].end - crash.code[i].start) return true;
    return false;
}

/* Where the file begins whose mappings are being visited. */
struct module_start {
    uintptr_t base;
    char name[MODULE_BYTES];
};

/* The end of a name, which tells more than its beginning. */
static void copy_name(char copy[MODULE_BYTES], const char *name) {
    size_t length = strlen(name);
    if (length >= MODULE_BYTES) name += length - (MODULE_BYTES - 1);
    memcpy(copy, name, strlen(name) + 1);
}

static bool name_frames(const struct hak_os_mapping *mapping, void *context) {
    struct module_start *module = context;
    char name[MODULE_BYTES];
    copy_name(name, mapping->name);
    if (mapping->offset == 0 || strcmp(name, module->name) != 0) {
        memcpy(module->name, name, sizeof name);
        module->base = mapping->start - mapping->offset;
    }
    for (uint32_t i = 0; i < crash.frame_count; i++) {
        struct stack_frame *frame = &crash.frames[i];
        if (name[0] == '\0' || frame->address - mapping->start >= mapping->end - mapping->start) continue;
        memcpy(frame->module, name, sizeof name);
        frame->base = module->base;
    }
    return true;
}

/* ---- The stack --------------------------------------------------------------------------------------------------- */

static void add_frame(uintptr_t address, bool is_guess) {
    if (crash.frame_count == MOST_FRAMES || (is_guess && crash.guess_count == MOST_GUESSES)) return;
    struct stack_frame *frame = &crash.frames[crash.frame_count++];
    frame->address = address;
    frame->base = 0;
    frame->is_guess = is_guess;
    frame->module[0] = '\0';
    crash.guess_count += is_guess;
}

static bool is_return_address(uintptr_t word) { return is_code(word) && hak_os_follows_call(word); }

/* A chain of frame records: a record is the address of the next one, which lies above, and a return address. */
struct chain {
    uintptr_t at; /* of the next record; 0: at the end */
    uintptr_t next;
};

static void end_record(struct chain *chain) {
    chain->at = chain->next > chain->at && chain->next % sizeof(uintptr_t) == 0 ? chain->next : 0;
}

static void look_at_word(struct chain *chain, uintptr_t place, uintptr_t word) {
    uintptr_t address = hak_os_strip_address(word);
    if (place == chain->at) chain->next = word;
    bool is_record = place == chain->at + sizeof word;
    if (is_return_address(address)) add_frame(address, !is_record);
    else if (is_record) chain->next = 0;
    if (is_record) end_record(chain);
}

/* Looks at the stack from its pointer on. It begins in the middle of nowhere where it has overflowed: then some pages
 * higher. */
static void scan_stack(struct chain *chain) {
    uintptr_t words[CHUNK_WORDS], place = hak_align_up(crash.arrived->stack, sizeof(uintptr_t));
    uintptr_t end = place + SCAN_BYTES;
    bool has_begun = false;
    while (place < end && crash.frame_count < MOST_FRAMES) {
        size_t bytes = sizeof words - place % sizeof words; /* in one page */
        if (!hak_os_read_memory(place, words, bytes)) {
            if (has_begun) return;
            place = hak_align_up(place + 1, hak_os_page_bytes());
            continue;
        }
        has_begun = true;
        for (size_t i = 0; i < bytes / sizeof words[0]; i++) look_at_word(chain, place + i * sizeof words[0], words[i]);
        place += bytes;
    }
}

/* The records that lie beyond what was looked at word by word. */
static void follow_chain(struct chain *chain) {
    uintptr_t record[2];
    while (chain->at != 0 && crash.frame_count < MOST_FRAMES && hak_os_read_memory(chain->at, record, sizeof record)) {
        look_at_word(chain, chain->at, record[0]);
        look_at_word(chain, chain->at + sizeof record[0], record[1]);
    }
}

static void collect_frames(void) {
    struct chain chain = {.at = crash.arrived->frame % sizeof(uintptr_t) == 0 ? crash.arrived->frame : 0, .next = 0};
    if (chain.at < crash.arrived->stack) chain.at = 0; /* a register like any other, in code without frame pointers */
    add_frame(crash.arrived->instruction, false);
    scan_stack(&chain);
    follow_chain(&chain);
}

static void add_frames(struct hak_text *text) {
    struct module_start module = {.base = 0, .name = ""};
    hak_os_for_each_mapping(name_frames, &module);
    for (uint32_t i = 0; i < crash.frame_count; i++) {
        const struct stack_frame *frame = &crash.frames[i];
        hak_text_add(text, "hakmem:   %c %p", frame->is_guess ? '?' : ' ', (void *)frame->address);
        if (frame->module[0] != '\0')
            hak_text_add(text, " %s+0x%lx", frame->module, (unsigned long)(frame->address - frame->base));
        hak_text_add(text, "\n");
    }
}

static void say_stack(void) {
    struct hak_text text = begin_text();
    hak_text_add(&text, "hakmem: stack, innermost first; ? only looks like a return address:\n");
    collect_frames();
    add_frames(&text);
    end_text(&text);
}

static void say_python_function(const char *function, uint32_t line) {
    struct hak_text text = begin_text();
    const char *tab = strchr(function, '\t');
    hak_text_add(&text, "hakmem:   python: ");
    for (const char *at = function; at < tab; at++) hak_text_add(&text, "%c", *at);
    hak_text_add(&text, " (%s:%u)\n", tab + 1, line);
    end_text(&text);
}

/* Functions of a Python program that the thread is in. */
static void say_python(void) {
    struct hak_python_walk walk = hak_python_begin();
    struct hak_python_frame frame;
    struct hak_text text = begin_text();
    hak_text_add(&text, "hakmem:   no functions of Python: ");
    bool is_refused = hak_python_add_refusal(&text);
    hak_text_add(&text, "\n");
    if (is_refused) end_text(&text);
    for (uint32_t i = 0; i < MOST_PYTHON && hak_python_next(&walk, &frame); i++)
        say_python_function(frame.text, frame.line);
}

/* ---- The address ------------------------------------------------------------------------------------------------- */

static void say_signal(void) {
    const struct hak_os_signal *arrived = crash.arrived;
    struct hak_text text = begin_text();
    char name[HAK_THREAD_NAME_BYTES];
    int thread = (int)hak_os_thread_id(), process = hak_os_process_id();
    hak_os_thread_name(thread, name);
    hak_text_add(&text, "hakmem: %s", arrived->name);
    if (arrived->cause == HAK_SIGNAL_ACCESS) hak_text_add(&text, " at %p", (void *)arrived->address);
    else if (arrived->cause == HAK_SIGNAL_NOWHERE) hak_text_add(&text, " at an address that no memory can have");
    else if (arrived->sender != process) hak_text_add(&text, " from process %d", arrived->sender);
    hak_text_add(&text, " in thread %d", thread);
    if (name[0] != '\0') hak_text_add(&text, " (%s)", name);
    hak_text_add(&text, " of process %d\n", process);
    end_text(&text);
}

static bool is_near_stack(uintptr_t address) {
    return address + NEAR_STACK_BYTES - crash.arrived->stack < 2 * (uintptr_t)NEAR_STACK_BYTES;
}

static void note_block(const struct hak_address *found) {
    if (found->start == 0 || crash.block_count == MOST_BLOCKS) return;
    for (uint32_t i = 0; i < crash.block_count; i++)
        if (crash.blocks[i] == found->start) return;
    crash.blocks[crash.block_count++] = found->start;
}

/* A write after free is found when the block is in nobody's hands: on its way to its next owner, or to its slab. */
static bool is_between_owners(const struct hak_address *found) {
    return crash.arrived->cause != HAK_SIGNAL_ACCESS && hak_os_complaint_kind() == HAK_MISUSE_FREED_WRITE &&
           found->kind == HAK_ADDRESS_LIVE;
}

static void add_subject(struct hak_text *text) {
    struct hak_address found = hak_address_find(crash.subject);
    if (is_between_owners(&found)) found.kind = HAK_ADDRESS_FREE;
    note_block(&found);
    hak_text_add(text, "hakmem: %p is ", (void *)crash.subject);
    hak_address_describe(&found, crash.subject, text);
    if (found.kind == HAK_ADDRESS_FOREIGN && crash.knows_mappings)
        hak_text_add(text, "%s%s", crash.subject_mapping[0] == '\0' ? ", and not mapped" : ": ", crash.subject_mapping);
    if (found.kind == HAK_ADDRESS_FOREIGN && is_near_stack(crash.subject) && !crash.subject_is_accessible)
        hak_text_add(text, ", where the stack pointer is: the stack has overflowed");
    hak_text_add(text, "\n");
}

/* True when a register before this one has the same value. */
static bool is_repeated(uint32_t index, uintptr_t value) {
    const char *name;
    uintptr_t other;
    for (uint32_t i = 0; i < index && hak_os_register(crash.arrived, i, &name, &other); i++)
        if (other == value) return true;
    return false;
}

/* Registers that point into blocks: the one that was freed too early is there more often than where the access
 * failed. */
static void add_registers(struct hak_text *text) {
    const char *name;
    uintptr_t value;
    for (uint32_t i = 0; hak_os_register(crash.arrived, i, &name, &value); i++) {
        struct hak_address found = hak_address_find(value);
        if (found.start == 0 || value == crash.subject || is_repeated(i, value)) continue;
        note_block(&found);
        hak_text_add(text, "hakmem: %s = %p, ", name, (void *)value);
        hak_address_describe(&found, value, text);
        hak_text_add(text, "\n");
    }
}

static void say_addresses(void) {
    struct hak_text text = begin_text();
    bool has_subject = crash.arrived->cause == HAK_SIGNAL_ACCESS;
    crash.subject = has_subject ? crash.arrived->address : hak_os_complaint();
    crash.subject_mapping[0] = '\0';
    crash.subject_is_accessible = false;
    crash.frame_count = crash.guess_count = crash.code_count = crash.block_count = 0;
    crash.knows_mappings = hak_os_for_each_mapping(note_mapping, NULL);
    if (has_subject || crash.subject != 0) add_subject(&text);
    if (crash.arrived->cause != HAK_SIGNAL_SENT) add_registers(&text);
    end_text(&text);
}

/* Where the blocks were allocated, as far as the heap profile has sampled them. */
static void say_origins(void) {
    for (uint32_t i = 0; i < crash.block_count; i++) {
        struct hak_text text = begin_text();
        struct hak_profile_origin origin;
        if (!hak_profile_find((const void *)crash.blocks[i], &origin)) continue;
        hak_text_add(&text, "hakmem: %p was allocated%s, %lu bytes, from:\n", (void *)crash.blocks[i],
                     origin.is_freed ? " and freed" : "", (unsigned long)origin.size);
        crash.frame_count = 0;
        for (uint64_t k = 0; k < origin.depth && (is_code(origin.addresses[k]) || !crash.knows_mappings); k++)
            add_frame(origin.addresses[k], false);
        add_frames(&text);
        end_text(&text);
        for (uint64_t k = 0; k < origin.depth; k++)
            if (hak_profile_is_python(origin.addresses[k]))
                say_python_function(hak_profile_python_function(origin.addresses[k]),
                                    hak_profile_python_line(origin.addresses[k]));
    }
}

/* ---- Blocks between guards --------------------------------------------------------------------------------------- */

static bool crash_reports_all; /* set before signals are caught, or by the thread that reads the settings */

/* What happened, for programs that read it. */
static const char *name_guard_error(const struct hak_guard *guard) {
    uintptr_t start = hak_atomic_load(&guard->start, relaxed);
    if (crash.arrived->cause != HAK_SIGNAL_ACCESS) {
        static const char *const names[] = {
            [HAK_MISUSE_DOUBLE_FREE] = "double-free",         [HAK_MISUSE_FOREIGN_POINTER] = "invalid-free",
            [HAK_MISUSE_FREED_BLOCK] = "use-after-free",      [HAK_MISUSE_INTERIOR_POINTER] = "invalid-free",
            [HAK_MISUSE_FREED_WRITE] = "use-after-free",      [HAK_MISUSE_WRONG_SIZE] = "wrong-size",
            [HAK_MISUSE_WRONG_ALIGNMENT] = "wrong-alignment", [HAK_MISUSE_OVERFLOW] = "overflow-found-late",
            [HAK_MISUSE_UNDERFLOW] = "underflow-found-late",  [HAK_MISUSE_MISMATCH] = "mismatch",
        };
        return names[hak_os_complaint_kind()];
    }
    if (crash.subject < start) return "underflow";
    if (crash.subject - start >= hak_atomic_load(&guard->bytes, relaxed)) return "overflow";
    return "use-after-free";
}

static void load_trace(const struct hak_guard_trace *trace) {
    uint32_t depth = hak_atomic_load(&trace->depth, relaxed);
    crash.frame_count = crash.guess_count = 0;
    for (uint32_t i = 0; i < depth && i < HAK_GUARD_FRAMES; i++) {
        uintptr_t address = hak_atomic_load(&trace->addresses[i], relaxed);
        if (crash.knows_mappings && !is_code(address)) break;
        add_frame(address, false);
    }
}

static void say_trace(const struct hak_guard *guard, const struct hak_guard_trace *trace, const char *what) {
    struct hak_text text = begin_text();
    hak_text_add(&text, "hakmem: %p was %s by thread %u, from:\n", (void *)hak_atomic_load(&guard->start, relaxed),
                 what, hak_atomic_load(&trace->thread_id, relaxed));
    load_trace(trace);
    add_frames(&text);
    end_text(&text);
}

/* A name of the file system's, in a string of JSON. */
static void add_plain(struct hak_text *text, const char *name) {
    for (; *name != '\0'; name++) hak_text_add(text, "%c", *name < ' ' || *name == '"' || *name == '\\' ? '?' : *name);
}

static void add_json_frames(struct hak_text *text) {
    struct module_start module = {.base = 0, .name = ""};
    const char *separator = "";
    hak_os_for_each_mapping(name_frames, &module);
    hak_text_add(text, "[");
    for (uint32_t i = 0; i < crash.frame_count; i++) {
        const struct stack_frame *frame = &crash.frames[i];
        hak_text_add(text, "%s\"%s%p", separator, frame->is_guess ? "? " : "", (void *)frame->address);
        if (frame->module[0] != '\0') {
            hak_text_add(text, " ");
            add_plain(text, frame->module);
            hak_text_add(text, "+0x%lx", (unsigned long)(frame->address - frame->base));
        }
        hak_text_add(text, "\"");
        separator = ", ";
    }
    hak_text_add(text, "]");
}

static void add_json_trace(struct hak_text *text, const char *name, const struct hak_guard_trace *trace) {
    hak_text_add(text, ", \"%s\": {\"thread\": %u, \"stack\": ", name, hak_atomic_load(&trace->thread_id, relaxed));
    load_trace(trace);
    add_json_frames(text);
    hak_text_add(text, "}");
}

/* One line, by one write: others write there, too. */
static void say_guard_json(const struct hak_guard *guard, bool is_freed) {
    uintptr_t start = hak_atomic_load(&guard->start, relaxed);
    bool is_access = crash.arrived->cause == HAK_SIGNAL_ACCESS;
    uintptr_t at = is_access ? crash.subject : crash.subject + (uintptr_t)hak_os_complaint_offset();
    struct hak_text text = begin_text();
    hak_text_add(&text,
                 "{\"hakmem\": \"guard\", \"error\": \"%s\", \"process\": %d, \"thread\": %u, \"address\": \"%p\", "
                 "\"block\": \"%p\", \"size\": %u, \"offset\": %s%lu, \"is_freed\": %s, \"stack\": ",
                 name_guard_error(guard), hak_os_process_id(), hak_os_thread_id(), (void *)crash.subject, (void *)start,
                 hak_atomic_load(&guard->bytes, relaxed), at < start ? "-" : "",
                 (unsigned long)(at < start ? start - at : at - start), is_freed ? "true" : "false");
    crash.frame_count = crash.guess_count = 0;
    collect_frames();
    add_json_frames(&text);
    add_json_trace(&text, "allocated", &guard->allocated);
    if (is_freed) add_json_trace(&text, "freed", &guard->freed);
    hak_text_add(&text, "}\n");
    end_text(&text);
}

static void say_guard(void) {
    const struct hak_guard *guard = hak_guard_near(crash.subject);
    if (guard == NULL) return;
    bool is_freed = hak_atomic_load(&guard->state, relaxed) != HAK_GUARD_LIVE;
    say_trace(guard, &guard->allocated, "allocated");
    if (is_freed) say_trace(guard, &guard->freed, "freed");
    say_guard_json(guard, is_freed);
}

/* ---- One report a process ---------------------------------------------------------------------------------------- */

/* True for the thread that is to make the report. Others wait until it is made, or the wait is too long. */
static bool begin_report(uint32_t process) {
    uint32_t other = hak_atomic_load(&reporter, relaxed), done = hak_atomic_load(&reported, relaxed);
    if (other != process && hak_atomic_cas(&reporter, &other, process, relaxed, relaxed)) return true;
    for (uint32_t i = 0; i < MOST_WAITS && hak_atomic_load(&reported, relaxed) != process; i++)
        hak_os_wait(&reported, done, WAIT_US);
    return false;
}

/* False when there is nothing to report, or there is a report already. */
static HAK_COLD bool report(const struct hak_os_signal *arrived) {
    uint32_t process = (uint32_t)hak_os_process_id();
    uintptr_t subject = arrived->cause == HAK_SIGNAL_ACCESS ? arrived->address : hak_os_complaint();
    if (!crash_reports_all && !hak_guard_covers(subject)) return false;
    if (!begin_report(process)) return false;
    crash.arrived = arrived;
    say_signal();
    say_addresses();
    say_stack();
    say_python();
    say_origins();
    say_guard();
    hak_atomic_store(&reported, process, relaxed);
    return true;
}

static void catch_once(void) {
    static HAK_ATOMIC(bool) is_caught;
    if (!hak_atomic_exchange(&is_caught, true, relaxed)) hak_os_catch_crashes(report);
}

void hak_crash_install(void) {
    crash_reports_all = true;
    hak_python_look_for();
    catch_once();
}

void hak_crash_install_for_guards(void) { catch_once(); }

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

void hak_crash_enter_thread(struct hak_heap *heap) {
    if (heap->signal_stack == NULL) heap->signal_stack = hak_os_make_signal_stack();
    if (heap->signal_stack != NULL) hak_os_set_signal_stack(heap->signal_stack);
}

void hak_crash_leave_thread(struct hak_heap *heap) {
    if (heap->signal_stack != NULL) hak_os_unset_signal_stack(heap->signal_stack);
}
