/* Tables for exceptions that were made by hand: what each instruction says, what is not understood, what is damaged. */
#include "unit.h"

#include <string.h>
#include <sys/mman.h>

#include "observe/unwind.h"

#if defined(__aarch64__)
enum { FP = 29, SP = 31, RA = 30 };
#else
enum { FP = 6, SP = 7, RA = 16 };
#endif
enum { BX = 3, OTHER = 5 };

/* The module: tables in the last bytes before memory that can't be read. Functions begin behind it. */
enum { PAGE = 4096, FIRST = 0x4000, FIRST_BYTES = 0x100, SECOND = 0x5000, SECOND_BYTES = 0x80, MOST = 2048 };
static unsigned char *pages, tables[MOST];
static size_t tables_bytes;

static void put(uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) tables[tables_bytes++] = (unsigned char)(value >> (8 * i));
}
static void put_all(const unsigned char *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) put(from[i], 1);
}
static void patch(size_t at, uint32_t value) { memcpy(tables + at, &value, sizeof value); }

/* What most functions have in common: the frame ends 8 bytes above the stack pointer, below its end is the return
 * address. */
static const unsigned char initial[] = {0x0c, SP, 8, 0x80 | RA, 1};

struct common {
    const char *augmentation; /* "zR" unless it is said */
    unsigned char version, encoding;
    const unsigned char *bytes; /* of the augmentation; the encoding alone unless they are said */
    size_t bytes_count;
};

static size_t put_common(struct common common) {
    const char *augmentation = common.augmentation == NULL ? "zR" : common.augmentation;
    unsigned char encoding = common.encoding == 0 ? 0x1b : common.encoding;
    size_t at = tables_bytes;
    put(0, 4);
    put(0, 4);
    put(common.version == 0 ? 1 : common.version, 1);
    put_all((const unsigned char *)augmentation, strlen(augmentation) + 1);
    put(1, 1);    /* step of code */
    put(0x78, 1); /* of data: -8 */
    put(RA, 1);
    if (augmentation[0] == 'z') put(common.bytes == NULL ? 1 : common.bytes_count, 1);
    if (augmentation[0] == 'z')
        put_all(common.bytes == NULL ? &encoding : common.bytes, common.bytes == NULL ? 1 : common.bytes_count);
    put_all(initial, sizeof initial);
    patch(at, (uint32_t)(tables_bytes - at - 4));
    return at;
}

static size_t put_function(size_t common_at, uint32_t bytes, size_t pointer_bytes, bool has_augmentation,
                           const unsigned char *code, size_t count) {
    size_t at = tables_bytes;
    put(0, 4);
    put(at + 4 - common_at, 4);
    put(0, pointer_bytes);
    put(bytes, pointer_bytes);
    if (has_augmentation) put(0, 1);
    put_all(code, count);
    patch(at, (uint32_t)(tables_bytes - at - 4));
    return at;
}

/* Two functions; the first one has the instructions. */
static void make_of(struct common common, size_t pointer_bytes, const unsigned char *code, size_t count) {
    tables_bytes = 0;
    put(0x3b031b01, 4);
    put(0, 4);
    put(2, 4);
    put(FIRST, 4), put(0, 4);
    put(SECOND, 4), put(0, 4);
    size_t common_at = put_common(common);
    bool has_augmentation = common.augmentation == NULL || common.augmentation[0] == 'z';
    patch(16, (uint32_t)put_function(common_at, FIRST_BYTES, pointer_bytes, has_augmentation, code, count));
    patch(24, (uint32_t)put_function(common_at, SECOND_BYTES, pointer_bytes, has_augmentation, NULL, 0));
}

static uintptr_t head(void) { return (uintptr_t)pages + PAGE - tables_bytes; }

static struct hak_unwind_rule rule_of(uint32_t distance) {
    memcpy((void *)head(), tables, tables_bytes);
    struct hak_os_module module = {(uintptr_t)pages, (uintptr_t)pages + PAGE, head()};
    return hak_unwind_rule_in(&module, head() + distance);
}

static void expect(uint32_t distance, enum hak_unwind_kind kind, int64_t words, int64_t caller, int64_t frame) {
    struct hak_unwind_rule rule = rule_of(distance);
    assert_int_equal(rule.kind, kind);
    if (kind == HAK_UNWIND_UNKNOWN || kind == HAK_UNWIND_END) return;
    assert_int_equal(rule.words, words);
    assert_int_equal(rule.caller_words, caller);
    assert_int_equal(rule.frame_words, frame);
}

#define MAKE(...)                                                                                                      \
    do {                                                                                                               \
        const unsigned char code[] = {__VA_ARGS__};                                                                    \
        make_of((struct common){0}, 4, code, sizeof code);                                                             \
    } while (0)
#define SAYS(at, kind, words, caller, frame) expect(FIRST + (at), HAK_UNWIND_##kind, words, caller, frame)
#define ENDS(...)                                                                                                      \
    do {                                                                                                               \
        MAKE(__VA_ARGS__);                                                                                             \
        SAYS(0, END, 0, 0, 0);                                                                                         \
    } while (0)

static int set_up(void **state) {
    (void)state;
    pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED || mprotect(pages + PAGE, PAGE, PROT_NONE) != 0;
}

/* As compilers write it: push of the frame pointer, then it holds, then it is taken off. */
static void a_function(void **state) {
    set_up(state);
    MAKE(0x41, 0x0e, 16, 0x80 | FP, 2, 0x43, 0x0d, FP, 0x02, 0x40, 0x0c, SP, 8, 0xc0 | FP);
    SAYS(0, BY_STACK, 1, -1, 0);
    SAYS(1, BY_STACK, 2, -1, -2);
    SAYS(3, BY_STACK, 2, -1, -2);
    SAYS(4, BY_FRAME, 2, -1, -2);
    SAYS(0x43, BY_FRAME, 2, -1, -2);
    SAYS(0x44, BY_STACK, 1, -1, 0);
    SAYS(FIRST_BYTES - 1, BY_STACK, 1, -1, 0);
}

static void which_function(void **state) {
    set_up(state);
    MAKE(0x0e, 64);
    expect(FIRST - 1, HAK_UNWIND_UNKNOWN, 0, 0, 0);
    expect(FIRST, HAK_UNWIND_BY_STACK, 8, -1, 0);
    expect(FIRST + FIRST_BYTES, HAK_UNWIND_UNKNOWN, 0, 0, 0);
    expect(SECOND - 1, HAK_UNWIND_UNKNOWN, 0, 0, 0);
    expect(SECOND, HAK_UNWIND_BY_STACK, 1, -1, 0);
    expect(SECOND + SECOND_BYTES - 1, HAK_UNWIND_BY_STACK, 1, -1, 0);
    expect(SECOND + SECOND_BYTES, HAK_UNWIND_UNKNOWN, 0, 0, 0);
}

static void instructions(void **state) {
    set_up(state);
    MAKE(0x03, 0x10, 0x00, 0x0e, 24, 0x04, 0x10, 0, 0, 0, 0x0e, 32);
    SAYS(0x0f, BY_STACK, 1, -1, 0);
    SAYS(0x10, BY_STACK, 3, -1, 0);
    SAYS(0x20, BY_STACK, 4, -1, 0);
    MAKE(0x0e, 16, 0x0a, 0x0e, 24, 0x80 | FP, 2, 0x41, 0x0b); /* remember, restore */
    SAYS(0, BY_STACK, 3, -1, -2);
    SAYS(1, BY_STACK, 2, -1, 0);
    MAKE(0x05, FP, 3, 0x41, 0x06, FP); /* extended */
    SAYS(0, BY_STACK, 1, -1, -3);
    SAYS(1, BY_STACK, 1, -1, 0);
    MAKE(0x11, FP, 3, 0x12, SP, 0x78, 0x41, 0x13, 0x70); /* signed, in steps of data */
    SAYS(0, BY_STACK, 8, -1, -3);
    SAYS(1, BY_STACK, 16, -1, -3);
    MAKE(0x80 | FP, 2, 0x41, 0x08, FP); /* the same value */
    SAYS(0, BY_STACK, 1, -1, -2);
    SAYS(1, BY_STACK, 1, -1, 0);
    MAKE(0x00, 0x2c, 0x2d, 0x2e, 0x81, 0x02, 0x80 | BX, 5, 0x07, OTHER, 0x09, OTHER, BX, 0x14, OTHER, 1, 0x15, OTHER, 1,
         0x16, OTHER, 2, 0x70, 0x00, 0x0e, 0x80, 0x80, 0x04); /* of other registers; nothing; a large number */
    SAYS(0, BY_STACK, 8192, -1, 0);
    MAKE(0x80 | RA, 3);
    SAYS(0, BY_STACK, 1, -3, 0);
}

/* What functions have that align their stack: the end of the frame is said in a word below the frame pointer. */
static void aligned(void **state) {
    set_up(state);
    MAKE(0x10, FP, 2, 0x70 + FP, 0, 0x0f, 3, 0x70 + FP, 0x70, 0x06);
    SAYS(0, AT_FRAME, -2, -1, 0);
    ENDS(0x0f, 3, 0x70 + FP, 0x70, 0x06);                         /* and the frame pointer is not saved */
    ENDS(0x10, FP, 2, 0x70 + FP, 0);                              /* or nothing is said */
    ENDS(0x10, FP, 2, 0x70 + FP, 8, 0x0f, 3, 0x70 + FP, 0x70, 6); /* elsewhere */
    ENDS(0x10, FP, 2, 0x70 + BX, 0, 0x0f, 3, 0x70 + FP, 0x70, 6);
    ENDS(0x10, FP, 2, 0x70 + FP, 0, 0x0f, 3, 0x70 + BX, 0x70, 6);
    ENDS(0x10, FP, 2, 0x70 + FP, 0, 0x0f, 2, 0x70 + FP, 0x70);
    ENDS(0x10, FP, 2, 0x70 + FP, 0, 0x0f, 4, 0x70 + FP, 0x70, 6, 6);
    ENDS(0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22); /* of a table of jumps */
}

static void what_ends_a_stack(void **state) {
    set_up(state);
    ENDS(0x07, RA);                                                              /* there is no caller */
    ENDS(0xc0 | RA, 0x08, RA);                                                   /* in its register */
    ENDS(0x0d, BX);                                                              /* by a register that isn't followed */
    ENDS(0x0e, 12);                                                              /* no words */
    ENDS(0x80 | FP, 0xff, 0x7f, 0x0e, 0x84, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01); /* too far */
    ENDS(0x80 | RA, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f);
    ENDS(0x0b); /* nothing was remembered */
    ENDS(0x0a, 0x0a, 0x0a, 0x0a, 0x0a);
    ENDS(0x01, 0, 0, 0, 0); /* not understood */
    ENDS(0x3f, 0);
    ENDS(0x0e, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01); /* a number without end */
    ENDS(0x0e);                                                                         /* cut off */
}

#define MAKE_OF(pointer_bytes, ...) make_of((struct common){__VA_ARGS__}, pointer_bytes, NULL, 0)

static void what_functions_share(void **state) {
    set_up(state);
    static const unsigned char all[] = {0x9b, 1, 2, 3, 4, 0x1b, 0x1b}, unsized[] = {0x1b, 0x01, 1}, many[] = {0x1b, 0};
    MAKE_OF(4, .augmentation = "zPLR", .bytes = all, .bytes_count = sizeof all);
    SAYS(0, BY_STACK, 1, -1, 0);
    MAKE_OF(4, .augmentation = "zRB", .bytes = many, .bytes_count = 2);
    SAYS(0, BY_STACK, 1, -1, 0);
    MAKE_OF(8, .encoding = 0x1c);
    SAYS(0, BY_STACK, 1, -1, 0);
    MAKE_OF(2, .encoding = 0x02);
    SAYS(0, BY_STACK, 1, -1, 0);
    MAKE_OF(8, .augmentation = "");
    SAYS(0, BY_STACK, 1, -1, 0);
    MAKE_OF(4, .version = 3);
    SAYS(0, BY_STACK, 1, -1, 0);
    MAKE_OF(4, .version = 4);
    SAYS(0, END, 0, 0, 0);
    MAKE_OF(4, .augmentation = "zRS"); /* a signal's frame */
    SAYS(0, END, 0, 0, 0);
    MAKE_OF(4, .augmentation = "zRP", .bytes = unsized, .bytes_count = sizeof unsized);
    SAYS(0, END, 0, 0, 0);
    MAKE_OF(4, .encoding = 0x01);
    SAYS(0, END, 0, 0, 0);
    MAKE_OF(4, .augmentation = "zRX");
    SAYS(0, END, 0, 0, 0);
    MAKE_OF(8, .augmentation = "eh");
    SAYS(0, END, 0, 0, 0);
}

static void another_head(void **state) {
    set_up(state);
    for (size_t i = 0; i < 4; i++) {
        MAKE(0);
        tables[i] ^= 0x10;
        SAYS(0, UNKNOWN, 0, 0, 0);
    }
    MAKE(0);
    patch(8, 0);
    SAYS(0, UNKNOWN, 0, 0, 0);
    patch(8, UINT32_MAX);
    SAYS(0, UNKNOWN, 0, 0, 0);
    MAKE(0);
    patch(16, 0x70000000); /* the description is not in the module */
    SAYS(0, END, 0, 0, 0);
}

/* Whatever bytes there are, and wherever they end: an answer comes, and nothing is touched that isn't the module's. */
static void damaged(void **state) {
    set_up(state);
    enum { ROUNDS = 30000 };
    uint64_t random = 1;
    uint32_t kinds[HAK_UNWIND_AT_FRAME + 1] = {0};
    for (uint32_t round = 0; round < ROUNDS; round++) {
        MAKE(0x41, 0x0e, 16, 0x80 | FP, 2, 0x0a, 0x43, 0x0d, FP, 0x10, FP, 2, 0x70 + FP, 0, 0x0f, 3, 0x70 + FP, 0x70,
             0x06, 0x02, 0x40, 0x0b, 0x16, OTHER, 2, 0x70, 0x00, 0x2e, 0x81, 0x02, 0xc0 | FP);
        for (uint64_t i = unit_random(&random) % 6; i > 0; i--) {
            size_t at = unit_random(&random) % tables_bytes;
            tables[at] = unit_random(&random) % 2 == 0 ? (unsigned char)(tables[at] ^ 1u << unit_random(&random) % 8)
                                                       : (unsigned char)unit_random(&random);
        }
        size_t missing = unit_random(&random) % 4 == 0 ? unit_random(&random) % tables_bytes : 0;
        memcpy((void *)head(), tables, tables_bytes);
        struct hak_os_module module = {head(), (uintptr_t)pages + PAGE - missing, head()};
        struct hak_unwind_rule rule = hak_unwind_rule_in(&module, head() + FIRST + unit_random(&random) % 0x60);
        assert_true(rule.kind <= HAK_UNWIND_AT_FRAME);
        kinds[rule.kind]++;
    }
    for (uint32_t i = 0; i <= HAK_UNWIND_AT_FRAME; i++) assert_true(kinds[i] > 0);
    /* What the module is said to have, and the kernel does not let be read. */
    MAKE(0);
    memcpy((void *)head(), tables, tables_bytes);
    struct hak_os_module module = {(uintptr_t)pages, (uintptr_t)pages + 2 * PAGE, (uintptr_t)pages + PAGE - 10};
    memcpy((void *)module.frame_table, tables, 4);
    assert_int_equal(hak_unwind_rule_in(&module, module.frame_table + FIRST).kind, HAK_UNWIND_UNKNOWN);
    module.frame_table = (uintptr_t)pages + PAGE;
    assert_int_equal(hak_unwind_rule_in(&module, module.frame_table + FIRST).kind, HAK_UNWIND_UNKNOWN);
}

UNIT_MAIN(cmocka_unit_test(a_function), cmocka_unit_test(which_function), cmocka_unit_test(instructions),
          cmocka_unit_test(aligned), cmocka_unit_test(what_ends_a_stack), cmocka_unit_test(what_functions_share),
          cmocka_unit_test(another_head), cmocka_unit_test(damaged))
