/* observe/stats.h: the equations, in every state of a heap; and that both forms of text say all there is. */
#include "heap_fixture.h"

#include "allowance.h"

#include <ctype.h>
#include <unistd.h>

#include "front/thread.h"

static struct hak_snapshot snapshot;
static char buffer[HAK_SNAPSHOT_TEXT_BYTES];

static void an_empty_heap(void **state) {
    (void)state;
    hak_snapshot_take(&snapshot);
    assert_int_equal(snapshot.total.live_blocks, 0);
    assert_int_equal(snapshot.total.heaps, 0);
    check_equations(&snapshot);
}

static void counting(void **state) {
    (void)state;
    void *small[100], *run, *mapping;
    for (int i = 0; i < 100; i++) small[i] = hak_malloc(64);
    run = hak_malloc(100000);
    mapping = hak_malloc(3 * HAK_MIB);
    check_equations(&snapshot);
    uint32_t c = hak_size_class_of(64);
    assert_int_equal(snapshot.classes[c].live_blocks, 100);
    assert_int_equal(snapshot.classes[c].slabs, 1);
    assert_int_equal(snapshot.total.live_blocks, 102);
    assert_int_equal(snapshot.total.large_blocks, 2);
    assert_int_equal(snapshot.total.large_bytes, hak_align_up(100000, 4096) + 3 * HAK_MIB);
    assert_int_equal(snapshot.total.live_bytes, 100 * 64 + snapshot.total.large_bytes);
    assert_int_equal(snapshot.total.heaps, 1);
    uint64_t cached = snapshot.total.cached_blocks;
    hak_free(small[0]);
    hak_free(run);
    hak_free(mapping);
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.cached_blocks, cached + 1);
    assert_int_equal(snapshot.total.live_blocks, 99);
    assert_int_equal(snapshot.large_allocs, 2);
    assert_int_equal(snapshot.large_frees, 2);
    for (int i = 1; i < 100; i++) hak_free(small[i]);
    hak_purge();
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.live_blocks, 0);
    assert_int_equal(snapshot.total.cached_blocks, 0);
    assert_int_equal(snapshot.total.slabs, 0);
}

static void at_random(void **state) {
    (void)state;
    static void *blocks[2000];
    uint64_t random = 5;
    for (int round = 0; round < 40000; round++) {
        void **block = &blocks[unit_random(&random) % 2000];
        uint64_t pick = unit_random(&random);
        if (*block == NULL) *block = hak_malloc(pick % 1000 ? pick >> 32 & 2047 : pick >> 32 & 0x3fffff);
        else if (pick % 4 == 0) *block = hak_realloc(*block, 1 + (pick >> 32 & 4095));
        else {
            hak_free(*block);
            *block = NULL;
        }
        if (round % 4000 == 0) hak_purge();
        if (round % 2000 != 0) continue;
        uint64_t live = 0;
        for (int i = 0; i < 2000; i++) live += blocks[i] != NULL;
        check_equations(&snapshot);
        assert_int_equal(snapshot.total.live_blocks, live);
    }
}

static void as_the_caller_knows_it(void **state) {
    (void)state;
    struct hak_statistics stats;
    memset(&stats, 0xff, sizeof stats);
    hak_free(hak_malloc(10));
    assert_int_equal(hak_stats(NULL, sizeof stats), EINVAL);
    assert_int_equal(hak_stats(&stats, 2 * sizeof(uint64_t)), 0); /* an older program */
    assert_int_equal(stats.live_blocks, 0);
    assert_true(stats.cached_blocks == UINT64_MAX);
    struct {
        struct hak_statistics known;
        uint64_t news[2];
    } newer = {.news = {7, 7}};
    assert_int_equal(hak_stats(&newer.known, sizeof newer), 0);
    assert_int_equal(newer.known.heaps, 1);
    assert_int_equal(newer.news[0] + newer.news[1], 0);
}

/* Every figure at its longest, every class in use. */
static void fill_snapshot(void) {
    hak_size_class_initialize(0);
    memset(&snapshot, 0xff, sizeof snapshot);
}

static void expect_balanced(const char *text) {
    int depth = 0;
    bool quoted = false;
    for (; *text != '\0'; text++) {
        if (*text == '"') quoted = !quoted;
        if (quoted) continue;
        depth += (*text == '{' || *text == '[') - (*text == '}' || *text == ']');
        assert_true(depth > 0 || (depth == 0 && (text[1] == '\n' || text[1] == '\0')));
        assert_true(text[0] != ',' || (text[1] != ']' && text[1] != '}'));
    }
    assert_int_equal(depth, 0);
    assert_false(quoted);
}

static void write_json(int process_id, struct hak_text *text) {
    hak_snapshot_write_json(&snapshot, process_id, text);
    hak_text_add(text, "}\n");
}

static void json(void **state) {
    (void)state;
    struct hak_text text = hak_text_in(buffer, sizeof buffer);
    fill_snapshot();
    write_json(123, &text);
    assert_false(text.truncated);
    expect_balanced(buffer);
    assert_non_null(strstr(buffer, "{\"hakmem\": \""));
    assert_non_null(strstr(buffer, "\"pid\": 123,"));
#define HAK_COUNTER(name, text) assert_non_null(strstr(buffer, "\"" #name "\": 18446744073709551615"));
#include "base/counters.def"
#undef HAK_COUNTER
    assert_non_null(strstr(buffer, "\"live_blocks\": 18446744073709551615"));
    assert_non_null(strstr(buffer, "\"heaps\": 18446744073709551615"));
    assert_non_null(strstr(buffer, "{\"block_bytes\": 16, "));
    assert_non_null(strstr(buffer, "{\"block_bytes\": 32768, "));
}

static void json_of_nothing(void **state) {
    (void)state;
    struct hak_text text = hak_text_in(buffer, sizeof buffer);
    hak_snapshot_take(&snapshot);
    write_json(1, &text);
    expect_balanced(buffer);
    assert_non_null(strstr(buffer, "\"classes\": [],\n \"threads\": [],\n \"threads_left_out\": 0}\n"));
}

static void plain_text(void **state) {
    (void)state;
    struct hak_text text = hak_text_in(buffer, sizeof buffer);
    fill_snapshot();
    hak_snapshot_write_text(&snapshot, true, &text);
    assert_false(text.truncated);
#define HAK_COUNTER(name, text) assert_non_null(strstr(buffer, "  " #name " "));
#include "base/counters.def"
#undef HAK_COUNTER
    assert_non_null(strstr(buffer, "  live_blocks "));
    for (const char *at = buffer; *at != '\0'; at++) assert_true(isprint((unsigned char)*at) || *at == '\n');
}

/* A freed mapping that is kept is memory still. */
static void kept_mappings(void **state) {
    (void)state;
    allow_free_memory_of_programs();
    hak_free(hak_malloc(1));
    hak_snapshot_take(&snapshot);
    uint64_t committed = snapshot.total.committed_bytes;
    hak_free(hak_malloc(40 * HAK_MIB));
    assert_int_equal(hak_mapping_cache_bytes(), 40 * HAK_MIB);
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.committed_bytes, committed + 40 * HAK_MIB);
}

static void name_this_thread(const char *line) {
    static char path[64];
    static struct fake_file files[] = {{path, NULL}, {NULL, NULL}};
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", (int)getpid());
    files[0].text = line;
    fake_os.files = files;
}

/* More threads than rows, with long names and every figure at its longest. */
static void many_threads(void **state) {
    (void)state;
    enum { THREADS = HAK_THREAD_ROWS + 5 };
    name_this_thread("a\"b\\c\x80\tdefghi\n");
    fill_snapshot();
    hak_free(hak_malloc(1));
    for (int i = 0; i < THREADS; i++) {
        struct hak_heap *heap = i == 0 ? hak_thread_attach() : hak_heap_acquire();
        memset(&heap->counters, 0xff, sizeof heap->counters);
        hak_atomic_store(&heap->thread_id, i == 0 ? (uint32_t)getpid() : UINT32_MAX, relaxed);
    }
    struct hak_text text = hak_text_in(buffer, sizeof buffer);
    write_json(1, &text);
    assert_false(text.truncated);
    expect_balanced(buffer);
    assert_non_null(strstr(buffer, "\"threads_left_out\": 5}"));
    text = hak_text_in(buffer, sizeof buffer);
    hak_snapshot_write_text(&snapshot, true, &text);
    assert_false(text.truncated);
    assert_non_null(strstr(buffer, "  and 5 threads more\n"));
    for (const char *at = buffer; *at != '\0'; at++) assert_true(isprint((unsigned char)*at) || *at == '\n');
}

static void one_thread(void **state) {
    (void)state;
    name_this_thread("a\"b\\c\x80\td\n");
    hak_free(hak_malloc(100000));
    struct hak_text text = hak_text_in(buffer, sizeof buffer);
    hak_snapshot_take(&snapshot);
    write_json(1, &text);
    char expected[128];
    snprintf(expected, sizeof expected, "{\"id\": %d, \"name\": \"a?b?c??d\", \"heap\": 1, \"cached_bytes\": 0",
             (int)getpid());
    assert_non_null(strstr(buffer, expected));
    assert_non_null(strstr(buffer, "\"large_allocs\": 1, \"large_frees\": 1}],"));
}

UNIT_MAIN(cmocka_unit_test(an_empty_heap), cmocka_unit_test(counting), cmocka_unit_test(kept_mappings),
          cmocka_unit_test(at_random), cmocka_unit_test(as_the_caller_knows_it), cmocka_unit_test(json),
          cmocka_unit_test(json_of_nothing), cmocka_unit_test(plain_text), cmocka_unit_test(many_threads),
          cmocka_unit_test(one_thread))
