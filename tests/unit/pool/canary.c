/* pool/canary.h: what a block's last word says, and what is found by it. */
#include "misuse.h"
#include "pool_fixture.h"

#include <string.h>

#include "pool/canary.h"

enum { USABLE = 56, BLOCK = USABLE + sizeof(uint64_t), LONGEST = 240, LOOKED_AT = 1100 };

static _Alignas(HAK_ALIGNMENT) unsigned char block[LOOKED_AT];

static void hand_out(void *from) { hak_canary_hand_out(block, USABLE, USABLE, *(const uint32_t *)from); }
static void take_back(void *from) { hak_canary_take_back(block, USABLE, *(const uint32_t *)from); }
static bool is_free(const void *of, size_t usable, const char *function) {
    size_t had;
    return !hak_canary_is_live(of, usable, &had, function);
}
static void ask(void *nothing) {
    (void)nothing;
    is_free(block, USABLE, "realloc");
}

static void begin(uint32_t from) {
    memset(block, 0, sizeof block);
    hand_out(&from);
}

static void expect_misuse(const struct fake_report *report, enum hak_misuse_kind kind, const char *function,
                          size_t offset) {
    unit_expect_misuse(report, kind, function, block, offset, USABLE);
}

/* Of a life from malloc to free nothing is left. */
static void a_life(void **state) {
    (void)state;
    hak_canary_begin();
    begin(HAK_FROM_NEW);
    assert_false(is_free(block, USABLE, "realloc"));
    memset(block, 'a', USABLE);
    hak_canary_take_back(block, USABLE, HAK_FROM_NEW);
    assert_true(is_free(block, USABLE, "realloc"));
    for (size_t i = 0; i < BLOCK; i++) assert_int_equal(block[i], 0);
    hak_canary_look(block, USABLE);
}

/* Each byte behind the end, and which was the first to change. */
static void overflow(void **state) {
    (void)state;
    uint32_t from = HAK_FROM_MALLOC;
    for (size_t i = USABLE; i < BLOCK; i++) {
        begin(from);
        block[i] ^= 2;
        expect_misuse(fake_os_catch(take_back, &from), HAK_MISUSE_OVERFLOW, "free", i - USABLE);
        expect_misuse(fake_os_catch(ask, NULL), HAK_MISUSE_OVERFLOW, "realloc", i - USABLE);
    }
    for (int letter = 0; letter < 128; letter++) {
        begin(from);
        block[USABLE] = (unsigned char)letter;
        expect_misuse(fake_os_catch(take_back, &from), HAK_MISUSE_OVERFLOW, "free", 0);
    }
}

/* ---- Slack ------------------------------------------------------------------------------------------------------- */

static size_t room, asked; /* of a block of LONGEST bytes, at most */

static void begin_asked(size_t usable_bytes, size_t size, uint32_t from) {
    memset(block, 0, sizeof block);
    room = usable_bytes, asked = size;
    hak_canary_hand_out(block, room, asked, from);
}
static void free_asked(void *from) { hak_canary_take_back(block, room, *(const uint32_t *)from); }
static void ask_asked(void *nothing) {
    (void)nothing;
    is_free(block, room, "realloc");
}
static void resize_asked(void *size) { hak_canary_resize(block, room, *(const size_t *)size, "realloc"); }

static void expect_overflow(const struct fake_report *report, const char *function, size_t offset) {
    unit_expect_misuse(report, HAK_MISUSE_OVERFLOW, function, block, offset, asked);
}

/* Whatever was asked for, the canary tells it; 16 bytes behind it are looked at, and the canary, of each room. */
static void slack_of_each_length(void **state) {
    (void)state;
    uint32_t from = HAK_FROM_NEW_ARRAY;
    for (size_t usable_bytes = 8; usable_bytes < LONGEST; usable_bytes += 16) {
        for (size_t size = 0; size <= usable_bytes; size++) {
            begin_asked(usable_bytes, size, from);
            assert_int_equal(hak_canary_asked(block, room), size);
            size_t filled_end = room - size < 16 ? room : size + 16;
            for (size_t i = size; i < filled_end; i++) assert_true(block[i] >= 0x80);
            for (size_t i = filled_end; i < room; i++) assert_int_equal(block[i], 0); /* untouched */
            memset(block, 'a', size);
            assert_false(is_free(block, room, "realloc"));
            for (size_t other = 0; other <= room; other++)
                assert_true(hak_canary_may_be_asked(block, room, other) == (other == size));
            for (size_t i = size; i < filled_end; i++) {
                block[i] ^= 4;
                expect_overflow(fake_os_catch(ask_asked, NULL), "realloc", i - size);
                expect_overflow(fake_os_catch(free_asked, &from), "delete[]", i - size);
                block[i] ^= 4;
            }
            free_asked(&from);
            for (size_t i = 0; i < LONGEST; i++) assert_int_equal(block[i], 0);
            assert_true(hak_canary_may_be_asked(block, room, 0)); /* what is free was not asked for */
        }
    }
}

/* Where the canary has been written to, too: where what it tells is left, and one of its secret bytes; or four of these.
 * Then what is told is the first byte behind the block's end that was written. */
static void through_the_slack(void **state) {
    (void)state;
    enum { TOLD = USABLE + 5, ORIGIN = BLOCK - 1 };
    uint32_t from = HAK_FROM_MALLOC;
    for (size_t size = USABLE - 30; size <= USABLE; size++) {
        for (size_t first = size; first < BLOCK; first++) {
            unsigned hit = 0;
            begin_asked(USABLE, size, from);
            for (size_t last = first; last < BLOCK; last++) {
                block[last] ^= 0x55;
                hit += last >= USABLE && last < TOLD;
                size_t seen = first < size + 16 || first >= USABLE ? first : USABLE;
                if (last < seen) continue; /* nobody looks there */
                bool tells = hit <= 1 || (hit < 5 && (last < TOLD || first >= ORIGIN));
                asked = tells ? size : USABLE;
                expect_overflow(fake_os_catch(ask_asked, NULL), "realloc", tells ? seen - size : 0);
                expect_overflow(fake_os_catch(free_asked, &from), "free", tells ? seen - size : 0);
            }
        }
    }
}

/* What a block gets when it is resized where it is is zero, and what it loses is slack. */
static void resized(void **state) {
    (void)state;
    uint32_t from = HAK_FROM_NEW;
    for (size_t size = 0; size <= USABLE; size++) {
        for (size_t other = 0; other <= USABLE; other++) {
            begin_asked(USABLE, size, from);
            memset(block, 'a', size);
            resize_asked(&other);
            assert_int_equal(hak_canary_asked(block, USABLE), other);
            for (size_t i = 0; i < other; i++) assert_int_equal(block[i], i < size ? 'a' : 0);
            memset(block, 'b', other);
            free_asked(&from);
            for (size_t i = 0; i < BLOCK; i++) assert_int_equal(block[i], 0);
        }
    }
    size_t other = 30;
    begin_asked(USABLE, 20, from);
    block[23] = 'a';
    expect_overflow(fake_os_catch(resize_asked, &other), "realloc", 3);
    begin_asked(USABLE, 20, from);
    free_asked(&from);
    expect_misuse(fake_os_catch(resize_asked, &other), HAK_MISUSE_FREED_BLOCK, "realloc", 0);
}

/* Of all of its room a fresh block keeps what was asked for, and its origin; the rest is slack. */
static void shortened(void **state) {
    (void)state;
    uint32_t from = HAK_FROM_NEW;
    for (size_t size = 0; size <= USABLE; size++) {
        begin_asked(USABLE, USABLE, from);
        hak_canary_shorten(block, USABLE, size);
        size_t had, filled_end = USABLE - size < 16 ? USABLE : size + 16;
        assert_true(hak_canary_is_live(block, USABLE, &had, "realloc"));
        assert_int_equal(had, size);
        for (size_t i = 0; i < USABLE; i++) assert_true(i < size || i >= filled_end ? block[i] == 0 : block[i] >= 0x80);
        free_asked(&from);
    }
}

/* A block that is found to be from another call has the size that was asked for. */
static void from_another_call(void **state) {
    (void)state;
    uint32_t from = HAK_FROM_NEW, by_free = HAK_FROM_MALLOC;
    begin_asked(USABLE, 41, HAK_FROM_MALLOC);
    hak_canary_change(block, USABLE, from);
    assert_int_equal(hak_canary_asked(block, USABLE), 41);
    unit_expect_misuse(fake_os_catch(free_asked, &by_free), HAK_MISUSE_MISMATCH, "free", block, HAK_FROM_NEW, 41);
    free_asked(&from);
    block[USABLE] = 1;
    assert_int_equal(hak_canary_asked(block, USABLE), USABLE);
}

/* The byte before a block is the last one of its neighbour's canary, and tells what that is from: no value of it is taken
 * for a block of another origin. */
static void underflow_of_the_next(void **state) {
    (void)state;
    static uint32_t origins[] = {HAK_FROM_MALLOC, HAK_FROM_NEW, HAK_FROM_NEW_ARRAY, HAK_FROM_NEW | 6 << HAK_FROM_BITS};
    for (size_t i = 0; i < sizeof origins / sizeof *origins; i++) {
        for (int value = 0; value < 256; value++) {
            begin(origins[i]);
            if (block[BLOCK - 1] == value) continue;
            block[BLOCK - 1] = (unsigned char)value;
            expect_misuse(fake_os_catch(take_back, &origins[i]), HAK_MISUSE_OVERFLOW, hak_canary_freed_by(origins[i]),
                          sizeof(uint64_t) - 1);
        }
    }
}

/* Each byte of a free block, its last word among them. */
static void write_after_free(void **state) {
    (void)state;
    uint32_t from = HAK_FROM_MALLOC;
    for (size_t i = 0; i < BLOCK; i++) {
        memset(block, 0, sizeof block);
        block[i] = 1;
        expect_misuse(fake_os_catch(hand_out, &from), HAK_MISUSE_FREED_WRITE, "free", i);
    }
}

static size_t whole;
static void look(void *nothing) {
    (void)nothing;
    hak_canary_look(block, whole - sizeof(uint64_t));
}

/* Of each length, however it is taken apart. */
static void each_byte(void **state) {
    (void)state;
    for (whole = HAK_ALIGNMENT; whole <= LOOKED_AT; whole += HAK_ALIGNMENT) {
        memset(block, 0, sizeof block);
        look(NULL);
        for (size_t i = 0; i < whole; i++) {
            block[i] = 1;
            unit_expect_misuse(fake_os_catch(look, NULL), HAK_MISUSE_FREED_WRITE, "free", block, i,
                               whole - sizeof(uint64_t));
            block[i] = 0;
        }
    }
}

static void misuse_of_calls(void **state) {
    (void)state;
    uint32_t by_free = HAK_FROM_MALLOC, by_delete = HAK_FROM_NEW, by_delete_array = HAK_FROM_NEW_ARRAY,
             by_aligned = hak_from_aligned(HAK_FROM_NEW, 64);
    begin(HAK_FROM_MALLOC);
    expect_misuse(fake_os_catch(take_back, &by_delete), HAK_MISUSE_MISMATCH, "delete", HAK_FROM_MALLOC);
    expect_misuse(fake_os_catch(take_back, &by_delete_array), HAK_MISUSE_MISMATCH, "delete[]", HAK_FROM_MALLOC);
    hak_canary_change(block, USABLE, by_aligned);
    expect_misuse(fake_os_catch(take_back, &by_free), HAK_MISUSE_MISMATCH, "free", by_aligned);
    expect_misuse(fake_os_catch(take_back, &by_delete), HAK_MISUSE_MISMATCH, "delete", by_aligned);
    by_delete = hak_from_aligned(HAK_FROM_NEW, 32);
    expect_misuse(fake_os_catch(take_back, &by_delete), HAK_MISUSE_MISMATCH, "delete", by_aligned);
    by_delete_array = hak_from_aligned(HAK_FROM_NEW_ARRAY, 64);
    expect_misuse(fake_os_catch(take_back, &by_delete_array), HAK_MISUSE_MISMATCH, "delete[]", by_aligned);
    take_back(&by_aligned);
    expect_misuse(fake_os_catch(take_back, &by_aligned), HAK_MISUSE_DOUBLE_FREE, "delete", 0);
}

/* ---- Behind large objects ---------------------------------------------------------------------------------------- */

static _Alignas(HAK_ALIGNMENT) unsigned char object[200];
static size_t usable, slack;

static void fill(size_t usable_bytes, size_t slack_bytes) {
    memset(object, 'a', sizeof object);
    usable = usable_bytes, slack = slack_bytes;
    hak_canary_fill(object, usable, slack);
}
static void look_behind(void *nothing) {
    (void)nothing;
    hak_canary_look_behind(object, usable, slack, "realloc");
}

/* Of each length, from each address on: no byte is a letter or zero, each is looked at, and none beside them is
 * touched. */
static void behind_large(void **state) {
    (void)state;
    hak_canary_begin();
    for (size_t first = 64; first < 80; first++) {
        for (size_t count = sizeof(uint64_t) + (16 - first % 8) % 8; first + count < 150; count += 8) {
            fill(first, count);
            for (size_t i = 0; i < sizeof object; i++) {
                bool is_filled = i >= first && i < first + count;
                assert_true(is_filled ? object[i] >= 0x80 : object[i] == 'a');
            }
            look_behind(NULL);
            for (size_t i = first; i < first + count; i++) {
                fill(first, count);
                object[i] ^= 1;
                const struct fake_report *report = fake_os_catch(look_behind, NULL);
                unit_expect_misuse(report, HAK_MISUSE_OVERFLOW, "realloc", object, i - first, first);
                assert_false(hak_canary_clear(object, usable, slack));
                assert_int_not_equal(object[i == first ? i + 1 : first], 0);
            }
            fill(first, count);
            assert_true(hak_canary_clear(object, usable, slack));
            for (size_t i = 0; i < sizeof object; i++)
                assert_int_equal(object[i], i >= first && i < first + count ? 0 : 'a');
        }
    }
}

/* The kernel may have zeroed what lies behind an object up to the end of its page: all of that, and no more. */
static void cleared_behind_large(void **state) {
    (void)state;
    enum { PAGE = 4096 };
    static _Alignas(PAGE) unsigned char pages[3 * PAGE];
    hak_canary_begin();
    for (size_t bytes = PAGE + 1; bytes <= 2 * PAGE; bytes += bytes < 2 * PAGE - 20 ? 97 : 1) {
        size_t behind = (bytes + sizeof(uint64_t) + PAGE - 1) / PAGE * PAGE - bytes, to_end = 2 * PAGE - bytes;
        hak_canary_fill(pages, bytes, behind);
        memset(pages + bytes, 0, to_end);
        hak_canary_look_behind(pages, bytes, behind, "free");
        if (to_end < behind) {
            pages[2 * PAGE] = 0;
            assert_false(hak_canary_clear(pages, bytes, behind));
            hak_canary_fill(pages, bytes, behind);
            memset(pages + bytes, 0, to_end);
        }
        if (to_end > 1) {
            pages[2 * PAGE - 1] = 1;
            assert_false(hak_canary_clear(pages, bytes, behind));
            pages[2 * PAGE - 1] = 0;
        }
        assert_true(hak_canary_clear(pages, bytes, behind));
        for (size_t i = bytes; i < bytes + behind; i++) assert_int_equal(pages[i], 0);
    }
}

static void compare_origin(void *by) {
    hak_canary_compare_origin(object, 100, HAK_FROM_NEW, *(const uint32_t *)by, "realloc");
}

static void origins_of_large(void **state) {
    (void)state;
    uint32_t by = HAK_FROM_NEW, by_free = HAK_FROM_MALLOC;
    compare_origin(&by);
    unit_expect_misuse(fake_os_catch(compare_origin, &by_free), HAK_MISUSE_MISMATCH, "realloc", object, HAK_FROM_NEW,
                       100);
    assert_string_equal(hak_canary_freed_by(HAK_FROM_NEW_ARRAY), "delete[]");
    assert_string_equal(hak_canary_freed_by(hak_from_aligned(HAK_FROM_NEW, 64)), "delete");
    assert_string_equal(hak_canary_freed_by(hak_from_aligned(HAK_FROM_NEW_ARRAY, 64)), "delete[]");
}

UNIT_MAIN(cmocka_unit_test(behind_large), cmocka_unit_test(cleared_behind_large), cmocka_unit_test(origins_of_large),
          cmocka_unit_test(a_life), cmocka_unit_test(overflow), cmocka_unit_test(slack_of_each_length),
          cmocka_unit_test(through_the_slack), cmocka_unit_test(resized), cmocka_unit_test(shortened),
          cmocka_unit_test(from_another_call), cmocka_unit_test(underflow_of_the_next),
          cmocka_unit_test(write_after_free), cmocka_unit_test(each_byte), cmocka_unit_test(misuse_of_calls))
