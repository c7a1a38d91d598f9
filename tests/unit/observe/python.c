/* Frames of a Python interpreter that were made by hand: names, lines, calls of the loop; what is damaged; and which
 * interpreters are none of those that are known. tests/programs/python_frames.py has real ones. */
#include "unit.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "observe/python.h"
#include "os/modules.h"

/* ---- Objects of an interpreter ----------------------------------------------------------------------------------- */

/* What this program exports, as an interpreter does. */
char PyCode_Type, PyUnicode_Type, PyBytes_Type;
unsigned long Py_Version;
uint64_t _PyRuntime[4]; /* NOLINT(bugprone-reserved-identifier) */
static void *thread_state;
static int is_ending;
void *PyGILState_GetThisThreadState(void);
void *PyGILState_GetThisThreadState(void) { return thread_state; }
int Py_IsFinalizing(void);
int Py_IsFinalizing(void) { return is_ending; }

/* By the headers of each version: has_loop: 3.11 and 3.12 keep the innermost frame in a record of the loop's call. */
struct version {
    unsigned long hex;
    uint32_t loop, innermost, code, caller, is_root, owner, first_line, instructions, ascii_bytes, other_bytes;
};
static const struct version versions[] = {
    {0x030b02f0, 56, 8, 32, 48, 68, 69, 72, 184, 48, 72},
    {0x030c01f0, 56, 0, 0, 8, 0, 70, 68, 192, 40, 56},
    {0x030d00f0, 0, 72, 0, 8, 0, 70, 68, 200, 40, 56},
};
enum { VERSIONS = sizeof versions / sizeof versions[0], INSTRUCTION = 56 };

/* Objects lie one after the other, up to memory that can't be read. */
enum { PAGE = 4096, IMAGE_BYTES = 8 * PAGE };
static unsigned char *image;
static size_t used;
static const struct version *made_for;
static struct hak_python python;

static int begin_image(void **state) {
    (void)state;
    image = mmap(NULL, IMAGE_BYTES + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(image, MAP_FAILED);
    return mprotect(image + IMAGE_BYTES, PAGE, PROT_NONE);
}

static void begin_version(const struct version *version) {
    memset(image, 0, IMAGE_BYTES);
    used = 0;
    made_for = version;
    python = (struct hak_python){hak_python_layout_of(version->hex), (uintptr_t)&PyCode_Type,
                                 (uintptr_t)&PyUnicode_Type, (uintptr_t)&PyBytes_Type};
    assert_non_null(python.layout);
}

static unsigned char *take(size_t bytes) {
    unsigned char *taken = image + used;
    used += (bytes + 15) / 16 * 16;
    assert_true(used <= IMAGE_BYTES);
    return taken;
}

static void put(unsigned char *object, size_t at, uint64_t value, size_t bytes) { memcpy(object + at, &value, bytes); }
static void put_pointer(unsigned char *object, size_t at, const void *pointer) {
    put(object, at, (uintptr_t)pointer, sizeof pointer);
}

static unsigned char *make_object(const void *type, size_t length, size_t bytes) {
    unsigned char *object = take(bytes);
    put_pointer(object, 8, type);
    put(object, 16, length, 8);
    return object;
}

static unsigned char *make_wide(const void *characters, size_t length, uint32_t width, bool is_ascii) {
    size_t head = is_ascii ? made_for->ascii_bytes : made_for->other_bytes;
    unsigned char *string = make_object(&PyUnicode_Type, length, head + (length + 1) * width);
    put(string, 32, width << 2 | 1U << 5 | (uint32_t)is_ascii << 6, 4);
    memcpy(string + head, characters, length * width);
    return string;
}

static unsigned char *make_string(const char *text) { return make_wide(text, strlen(text), 1, true); }

static unsigned char *make_bytes(const void *bytes, size_t count) {
    unsigned char *object = make_object(&PyBytes_Type, count, 32 + count + 1);
    memcpy(object + 32, bytes, count);
    return object;
}

/* Lines 203, 205 (two units), 105 (three units: an entry of each form that says so), from line 200 on. */
enum { FIRST_LINE = 200, UNITS = 6 };
static const unsigned char some_lines[] = {
    0x80 | 13 << 3 | 0, 6,                         /* 3 lines on, no columns */
    0x80 | 12 << 3 | 1, 1,    2,                   /* 2 lines on, with columns */
    0x80 | 14 << 3 | 0, 0x49, 3, 5, 0x46, 1, 0x3f, /* 100 lines back, in full */
    0x80 | 4 << 3 | 0,  0x12,                      /* the same line */
    0x80 | 15 << 3 | 0,                            /* of no line */
};

static unsigned char *make_code(unsigned char *name, unsigned char *file) {
    unsigned char *code = make_object(&PyCode_Type, 0, made_for->instructions + 2 * UNITS);
    put_pointer(code, 112, file);
    put_pointer(code, 128, name);
    put_pointer(code, 136, make_bytes(some_lines, sizeof some_lines));
    put(code, made_for->first_line, FIRST_LINE, 4);
    return code;
}

static unsigned char *make_frame(unsigned char *code, int unit, unsigned char *caller) {
    unsigned char *frame = take(96);
    put_pointer(frame, made_for->code, code);
    put_pointer(frame, made_for->caller, caller);
    put_pointer(frame, INSTRUCTION, code + made_for->instructions + 2 * unit);
    return frame;
}

/* The call of the loop that runs this frame, and the next ones to be made. Its caller is C. */
static unsigned char *begin_loop(unsigned char *frame) {
    enum { OWNED_BY_C = 3 };
    if (made_for->is_root != 0) {
        put(frame, made_for->is_root, 1, 1);
        return frame;
    }
    unsigned char *record = take(96), *caller;
    memcpy(&caller, frame + made_for->caller, sizeof caller);
    put(record, made_for->owner, OWNED_BY_C, 1);
    put_pointer(record, made_for->caller, caller);
    put_pointer(frame, made_for->caller, record);
    return frame;
}

static unsigned char *make_thread(unsigned char *frame) {
    unsigned char *thread = take(160), *holder = thread;
    if (made_for->loop != 0) put_pointer(thread, made_for->loop, holder = take(32));
    put_pointer(holder, made_for->innermost, frame);
    return thread;
}

/* ---- What is told ------------------------------------------------------------------------------------------------ */

static struct hak_python_frame told;

static struct hak_python_walk walk_of(const void *thread) { return hak_python_begin_at(&python, (uintptr_t)thread); }

static void expect(struct hak_python_walk *walk, const char *text, uint32_t line, bool is_innermost) {
    assert_true(hak_python_next(walk, &told));
    assert_string_equal(told.text, text);
    assert_int_equal(told.line, line);
    assert_int_equal(told.is_innermost, is_innermost);
}

static void functions_lines_and_calls_of_the_loop(void **state) {
    (void)state;
    for (size_t i = 0; i < VERSIONS; i++) {
        begin_version(&versions[i]);
        unsigned char *file = make_string("/srv/a.py"), *main_code = make_code(make_string("<module>"), file),
                      *code = make_code(make_string("A.f"), file);
        unsigned char *outermost = begin_loop(make_frame(main_code, 0, NULL));
        unsigned char *middle = begin_loop(make_frame(code, 2, outermost)), *inner = make_frame(code, 3, middle);
        struct hak_python_walk walk = walk_of(make_thread(inner));
        expect(&walk, "A.f\t/srv/a.py", 105, true);
        expect(&walk, "A.f\t/srv/a.py", 205, false);
        expect(&walk, "<module>\t/srv/a.py", 203, true);
        assert_false(hak_python_next(&walk, &told));
        assert_false(hak_python_next(&walk, &told));
    }
}

static void each_instruction_has_its_line(void **state) {
    static const uint32_t lines[] = {FIRST_LINE, 203, 205, 205, 105, 105, 105, FIRST_LINE};
    (void)state;
    for (size_t i = 0; i < VERSIONS; i++) {
        begin_version(&versions[i]);
        unsigned char *code = make_code(make_string("f"), make_string("a.py"));
        for (int unit = -1; unit <= UNITS; unit++) {
            struct hak_python_walk walk = walk_of(make_thread(make_frame(code, unit, NULL)));
            expect(&walk, "f\ta.py", lines[unit + 1], true);
        }
    }
}

static uint64_t identity_of(unsigned char *code, int unit) {
    struct hak_python_walk walk = walk_of(make_thread(make_frame(code, unit, NULL)));
    assert_true(hak_python_step(&walk, &told));
    return told.identity;
}

/* What has been described once is known again by its identity: of each place in each function another one, also where
 * a function has come into being in the place of another. */
static void each_place_has_its_identity(void **state) {
    (void)state;
    for (size_t i = 0; i < VERSIONS; i++) {
        begin_version(&versions[i]);
        unsigned char *file = make_string("/srv/a.py"), *name = make_string("a_long_name_of_a_function"),
                      *code = make_code(name, file), *other = make_code(name, file);
        uint64_t known = identity_of(code, 2);
        assert_true(known == identity_of(code, 2));
        assert_true(known != identity_of(code, 3) && known != identity_of(other, 2));
        unsigned char *text = name + versions[i].ascii_bytes;
        text[0] = 'b';
        assert_true(known != identity_of(code, 2));
        text[0] = 'a';
        text[24] = 'm';
        assert_true(known != identity_of(code, 2));
        text[24] = 'n';
        assert_true(known == identity_of(code, 2));
    }
}

static void names_in_any_script(void **state) {
    static const unsigned char latin[] = {'n', 0xe9, '\n', 0x85, 0x7f};
    static const uint16_t others[] = {0x4e2d, 0xd800, 'x'};
    static const uint32_t wide[] = {0x1f40d, 0x110000, 'y'};
    (void)state;
    for (size_t i = 0; i < VERSIONS; i++) {
        begin_version(&versions[i]);
        unsigned char *code = make_code(make_wide(latin, 5, 1, false), make_wide(others, 3, 2, false));
        unsigned char *other = make_code(make_string(""), make_wide(wide, 3, 4, false));
        struct hak_python_walk walk = walk_of(make_thread(make_frame(code, 0, make_frame(other, 0, NULL))));
        expect(&walk, "n\xc3\xa9???\t\xe4\xb8\xad?x", 203, true);
        expect(&walk, "\t\xf0\x9f\x90\x8d?y", 203, false);
    }
}

static void long_names_are_cut_at_their_end_and_paths_at_their_beginning(void **state) {
    enum { LONG = 1000, NAME_BYTES = 160 };
    char name[LONG + 1], expected[HAK_PYTHON_TEXT_BYTES];
    (void)state;
    for (size_t i = 0; i < LONG; i++) name[i] = (char)('a' + i % 26);
    name[LONG] = '\0';
    begin_version(&versions[0]);
    unsigned char *string = make_string(name);
    size_t rest = HAK_PYTHON_TEXT_BYTES - 1 - NAME_BYTES - 1;
    snprintf(expected, sizeof expected, "%.160s\t%s", name, name + LONG - rest);
    struct hak_python_walk walk = walk_of(make_thread(make_frame(make_code(string, string), 0, NULL)));
    expect(&walk, expected, 203, true);

    uint32_t snakes[LONG];
    for (size_t i = 0; i < LONG; i++) snakes[i] = i < LONG - 1 ? 0x1f40d : 'y';
    begin_version(&versions[0]);
    string = make_wide(snakes, LONG, 4, false);
    walk = walk_of(make_thread(make_frame(make_code(string, string), 0, NULL)));
    assert_true(hak_python_next(&walk, &told));
    assert_int_equal(strchr(told.text, '\t') - told.text, NAME_BYTES);
    assert_int_equal(strlen(told.text), NAME_BYTES + 1 + (rest - 1) / 4 * 4 + 1);
    assert_string_equal(told.text + strlen(told.text) - 5, "\xf0\x9f\x90\x8dy");

    begin_version(&versions[0]); /* one whose characters would have room, if they took a byte each */
    unsigned char *path = make_wide(snakes + LONG - rest / 2, rest / 2, 4, false);
    walk = walk_of(make_thread(make_frame(make_code(make_string("f"), path), 0, NULL)));
    assert_true(hak_python_next(&walk, &told));
    assert_string_equal(told.text + strlen(told.text) - 5, "\xf0\x9f\x90\x8dy");
}

/* ---- What is damaged --------------------------------------------------------------------------------------------- */

static uint32_t count_frames(struct hak_python_walk walk) {
    uint32_t count = 0;
    while (hak_python_next(&walk, &told)) count++;
    return count;
}

static void a_circle_ends(void **state) {
    (void)state;
    for (size_t i = 0; i < VERSIONS; i++) {
        begin_version(&versions[i]);
        unsigned char *code = make_code(make_string("f"), make_string("a.py")), *frame = make_frame(code, 0, NULL);
        put_pointer(frame, made_for->caller, begin_loop(make_frame(code, 0, frame)));
        assert_in_range(count_frames(walk_of(make_thread(frame))), 100, 1000);
    }
}

/* Each pointer in turn leads nowhere, to memory that can't be read, or to its very end, or to an object of another
 * type: the frames up to there are told, and no more. */
static void pointers_that_lead_astray(void **state) {
    (void)state;
    for (size_t i = 0; i < VERSIONS; i++) {
        begin_version(&versions[i]);
        unsigned char *good = make_code(make_string("f"), make_string("a.py")), *number = make_object(image, 5, 64);
        unsigned char *bad = make_code(make_string("g"), make_string("b.py")), *frame = make_frame(bad, 0, NULL);
        unsigned char *thread = make_thread(make_frame(good, 0, frame));
        const struct {
            unsigned char *object;
            size_t at;
        } pointers[] = {{frame, made_for->code}, {bad, 112}, {bad, 128}};
        const void *astray[] = {NULL,
                                (void *)8,
                                image + IMAGE_BYTES,
                                image + IMAGE_BYTES - 4,
                                image + IMAGE_BYTES - 17,
                                (void *)UINTPTR_MAX,
                                (void *)((uintptr_t)1 << 63),
                                number};
        assert_int_equal(count_frames(walk_of(thread)), 2);
        for (size_t k = 0; k < sizeof pointers / sizeof pointers[0]; k++)
            for (size_t n = 0; n < sizeof astray / sizeof astray[0]; n++) {
                unsigned char saved[8];
                memcpy(saved, pointers[k].object + pointers[k].at, sizeof saved);
                put_pointer(pointers[k].object, pointers[k].at, astray[n]);
                assert_int_equal(count_frames(walk_of(thread)), 1);
                memcpy(pointers[k].object + pointers[k].at, saved, sizeof saved);
            }
        for (size_t n = 0; n < sizeof astray / sizeof astray[0] - 1; n++) {
            assert_int_equal(count_frames(walk_of(astray[n])), 0);
            assert_int_equal(count_frames(walk_of(make_thread((void *)(uintptr_t)astray[n]))), 0);
        }
        assert_int_equal(count_frames(walk_of(thread)), 2);
    }
}

/* They look like it in all but their type. */
static void objects_of_other_types(void **state) {
    (void)state;
    for (size_t i = 0; i < VERSIONS; i++) {
        begin_version(&versions[i]);
        unsigned char *name = make_string("f"), *file = make_string("a.py"), *code = make_code(name, file), *lines;
        unsigned char *thread = make_thread(make_frame(code, 0, NULL)), *objects[] = {name, file, code};
        const void *types[] = {&PyUnicode_Type, &PyUnicode_Type, &PyCode_Type};
        for (size_t k = 0; k < 3; k++) {
            put_pointer(objects[k], 8, &PyBytes_Type);
            assert_int_equal(count_frames(walk_of(thread)), 0);
            put_pointer(objects[k], 8, types[k]);
        }
        memcpy(&lines, code + 136, sizeof lines);
        put_pointer(lines, 8, &PyCode_Type);
        struct hak_python_walk walk = walk_of(thread);
        expect(&walk, "f\ta.py", FIRST_LINE, true);
    }
}

static void lengths_that_are_wrong(void **state) {
    (void)state;
    begin_version(&versions[2]);
    unsigned char *name = make_string("f"), *code = make_code(name, make_string("a.py"));
    unsigned char *thread = make_thread(make_frame(code, 4, NULL)), *lines;
    memcpy(&lines, code + 136, sizeof lines);
    put(lines, 16, UINT64_MAX, 8);
    struct hak_python_walk walk = walk_of(thread);
    expect(&walk, "f\ta.py", FIRST_LINE, true);
    put(lines, 16, 3, 8); /* ends in an entry */
    walk = walk_of(thread);
    expect(&walk, "f\ta.py", FIRST_LINE, true);
    put(name, 16, UINT64_MAX, 8);
    memset(image + used, 'x', IMAGE_BYTES - used);
    walk = walk_of(thread);
    assert_true(hak_python_next(&walk, &told));
    put(name, 32, 7 << 2 | 1 << 5, 4); /* characters of 7 bytes */
    assert_int_equal(count_frames(walk_of(thread)), 0);
    put(name, 32, 1 << 2, 4); /* characters are elsewhere */
    assert_int_equal(count_frames(walk_of(thread)), 0);
}

/* Any bytes of the image are others: whatever is told ends, and nothing is read that can't be. */
static void random_damage(void **state) {
    enum { ROUNDS = 20000 };
    static unsigned char whole[IMAGE_BYTES];
    uint64_t random = 1;
    (void)state;
    for (size_t i = 0; i < VERSIONS; i++) {
        begin_version(&versions[i]);
        used = IMAGE_BYTES - 3 * PAGE / 2; /* what follows ends where nothing can be read */
        unsigned char *code = make_code(make_string("f"), make_string("a.py")), *frame = NULL;
        for (int k = 0; k < 30; k++)
            frame = k % 5 == 0 ? begin_loop(make_frame(code, k % 4, frame)) : make_frame(code, 1, frame);
        unsigned char *thread = make_thread(frame);
        size_t first = IMAGE_BYTES - 3 * PAGE / 2, bytes = used - first;
        memcpy(whole, image, IMAGE_BYTES);
        for (int round = 0; round < ROUNDS; round++) {
            memcpy(image + first, whole + first, bytes);
            for (int k = 0; k < 4; k++) {
                size_t at = first + unit_random(&random) % bytes;
                bool is_pointer = unit_random(&random) % 2 == 0;
                if (is_pointer) put_pointer(image, at / 8 * 8, image + IMAGE_BYTES - unit_random(&random) % PAGE);
                else image[at] = (unsigned char)unit_random(&random);
            }
            assert_in_range(count_frames(walk_of(thread)), 0, 1000);
        }
    }
}

/* ---- Which interpreter ------------------------------------------------------------------------------------------- */

static void expect_refusal(const char *expected) {
    char buffer[200];
    struct hak_text text = hak_text_in(buffer, sizeof buffer);
    assert_int_equal(hak_python_add_refusal(&text), expected[0] != '\0');
    assert_string_equal(text.start, expected);
}

static uint32_t count_own_frames(void) { return count_frames(hak_python_begin()); }

static void begin_own(unsigned long version) {
    hak_os_modules_begin();
    begin_version(&versions[2]);
    thread_state = make_thread(make_frame(make_code(make_string("f"), make_string("a.py")), 0, NULL));
    Py_Version = version;
}

static void an_interpreter_that_is_known(void **state) {
    (void)state;
    begin_own(versions[2].hex);
    assert_int_equal(count_own_frames(), 0); /* nobody has looked for it */
    expect_refusal("");
    hak_python_look_for();
    assert_int_equal(count_own_frames(), 1);
    expect_refusal("");
    is_ending = 1;
    assert_int_equal(count_own_frames(), 0);
    is_ending = 0;
    thread_state = NULL; /* of a thread that runs no Python */
    assert_int_equal(count_own_frames(), 0);
}

static void interpreters_that_are_not(void **state) {
    (void)state;
    begin_own(0x030e00f0);
    hak_python_look_for();
    assert_int_equal(count_own_frames(), 0);
    expect_refusal("Python 3.14 is none of 3.11 to 3.13");
}

static void an_old_interpreter(void **state) {
    (void)state;
    begin_own(0);
    hak_python_look_for();
    assert_int_equal(count_own_frames(), 0);
    expect_refusal("Python is older than 3.11");
}

static void a_free_threaded_interpreter(void **state) {
    (void)state;
    begin_own(versions[2].hex);
    _PyRuntime[2] = 1;
    hak_python_look_for();
    assert_int_equal(count_own_frames(), 0);
    expect_refusal("Python 3.13 is free-threaded");
}

UNIT_MAIN(cmocka_unit_test_setup(functions_lines_and_calls_of_the_loop, begin_image),
          cmocka_unit_test_setup(each_instruction_has_its_line, begin_image),
          cmocka_unit_test_setup(each_place_has_its_identity, begin_image),
          cmocka_unit_test_setup(names_in_any_script, begin_image),
          cmocka_unit_test_setup(long_names_are_cut_at_their_end_and_paths_at_their_beginning, begin_image),
          cmocka_unit_test_setup(a_circle_ends, begin_image),
          cmocka_unit_test_setup(pointers_that_lead_astray, begin_image),
          cmocka_unit_test_setup(objects_of_other_types, begin_image),
          cmocka_unit_test_setup(lengths_that_are_wrong, begin_image),
          cmocka_unit_test_setup(random_damage, begin_image),
          cmocka_unit_test_setup(an_interpreter_that_is_known, begin_image),
          cmocka_unit_test_setup(interpreters_that_are_not, begin_image),
          cmocka_unit_test_setup(an_old_interpreter, begin_image),
          cmocka_unit_test_setup(a_free_threaded_interpreter, begin_image))
