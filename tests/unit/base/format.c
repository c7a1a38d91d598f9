/* base/format.h: each conversion as printf writes it; what does not fit is cut off. */
#include "unit.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/format.h"

#define EXPECT_AS_PRINTF(...)                                                                                          \
    do {                                                                                                               \
        char expected[256], buffer[256];                                                                               \
        struct hak_text text = hak_text_in(buffer, sizeof buffer);                                                     \
        snprintf(expected, sizeof expected, __VA_ARGS__);                                                              \
        hak_text_add(&text, __VA_ARGS__);                                                                              \
        assert_string_equal(text.start, expected);                                                                     \
        assert_int_equal(text.length, strlen(expected));                                                               \
        assert_false(text.truncated);                                                                                  \
    } while (0)

static void conversions(void **state) {
    (void)state;
    EXPECT_AS_PRINTF("%s", "plain");
    EXPECT_AS_PRINTF("a%%b%c|", 'x');
    EXPECT_AS_PRINTF("%s%s", "", "two");
    EXPECT_AS_PRINTF("%d %d %d %d", 0, -1, INT_MAX, INT_MIN);
    EXPECT_AS_PRINTF("%u %u", 0u, UINT_MAX);
    EXPECT_AS_PRINTF("%lu %lu", 0ul, ULONG_MAX);
    EXPECT_AS_PRINTF("%zu", SIZE_MAX);
    EXPECT_AS_PRINTF("%lx %lx", 0xdeadbeeful, ULONG_MAX);
    EXPECT_AS_PRINTF("%p", (void *)0x7f00deadb000);
}

static void widths(void **state) {
    (void)state;
    EXPECT_AS_PRINTF("[%8s][%-8s][%2s]", "right", "left", "longer");
    EXPECT_AS_PRINTF("[%6d][%-6d][%1d]", -42, -42, -42);
    EXPECT_AS_PRINTF("[%20lu][%-20lu]", ULONG_MAX, 7ul);
    EXPECT_AS_PRINTF("[%12zu][%4u]", (size_t)99, 12345u);
}

static void appending(void **state) {
    (void)state;
    char buffer[16];
    struct hak_text text = hak_text_in(buffer, sizeof buffer);
    assert_string_equal(text.start, "");
    hak_text_add(&text, "one");
    hak_text_add(&text, " %s", "two");
    assert_string_equal(text.start, "one two");
    assert_int_equal(text.length, 7);
}

static void cutting_off(void **state) {
    (void)state;
    for (size_t capacity = 1; capacity <= 12; capacity++) {
        char buffer[16];
        memset(buffer, '#', sizeof buffer);
        struct hak_text text = hak_text_in(buffer, capacity);
        hak_text_add(&text, "%s%d", "1234567", 890);
        assert_int_equal(text.truncated, capacity <= 10);
        assert_int_equal(text.length, capacity <= 10 ? capacity - 1 : 10);
        assert_memory_equal(buffer, "1234567890", text.length);
        assert_int_equal(buffer[text.length], '\0');
        for (size_t i = capacity; i < sizeof buffer; i++) assert_int_equal(buffer[i], '#');
        hak_text_add(&text, "more");
        assert_true(text.length < capacity);
    }
}

UNIT_MAIN(cmocka_unit_test(conversions), cmocka_unit_test(widths), cmocka_unit_test(appending),
          cmocka_unit_test(cutting_off))
