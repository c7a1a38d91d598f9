/* front/process.h: how the process starts, what it makes of its environment, and what a child finds after fork. */
#include "heap_fixture.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/experiment.h"
#include "front/front.h"
#include "front/process.h"
#include "front/thread.h"
#include "region/heap_count.h"

extern char **environ;

/* ---- The environment ------------------------------------------------------------------------------------------------ */

/* What this program, started anew with these variables, prints of its settings: see print_settings. */
static void expect_settings(char *const *variables, const char *expected) {
    char text[8192] = "";
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        char *arguments[] = {(char[]){"process"}, (char[]){"--settings"}, NULL};
        dup2(ends[1], STDOUT_FILENO);
        execve("/proc/self/exe", arguments, variables);
        _exit(1);
    }
    close(ends[1]);
    unit_read_all(ends[0], text, sizeof text);
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_string_equal(text, expected);
}

static int print_experiment(void) {
    printf("%s %s %d %d %s", hak_experiment.name, hak_experiment_arm(), (int)hak_knob(decay_ms),
           (int)hak_knob_is_given(HAK_KNOB_decay_ms), fake_os.output);
    return 0;
}

static int print_settings(void) {
    if (getenv("PRINT_EXPERIMENT") != NULL) return print_experiment();
    const struct hak_config *config = hak_process_config();
    printf("%d %d %s %s", (int)config->stats, (int)config->heap_profile_interval_bytes,
           config->stats_file == NULL ? "-" : config->stats_file, fake_os.output);
    return 0;
}

#define VARIABLES(...)                                                                                                 \
    (char *[]) { __VA_ARGS__, NULL }

static void settings(void **state) {
    (void)state;
    char path[] = "PATH=/bin", interval[] = "HAKMEM_HEAP_PROFILE_INTERVAL=4K", stats[] = "HAKMEM_STATS=json:a%p",
         bad[] = "HAKMEM_STATS=x", unknown[] = "HAKMEM_X=1", privileged[] = "FAKE_OS_PRIVILEGED=1",
         behind[] = "FAKE_OS_BEHIND=1";
    expect_settings(VARIABLES(path), "0 524288 - ");
    expect_settings(VARIABLES(path, interval, stats), "2 4096 a%p ");
    expect_settings(VARIABLES(bad, interval, unknown),
                    "0 4096 - hakmem: setting HAKMEM_STATS=x ignored: expected off, text[:FILE] or json[:FILE]\n"
                    "hakmem: unknown setting HAKMEM_X=1 ignored (HAKMEM_HELP=1 lists all)\n");
    char policy[] = "HAKMEM_POLICY=absent";
    expect_settings(VARIABLES(policy), "0 524288 - hakmem: setting HAKMEM_POLICY=absent ignored: can't be read\n");
    expect_settings(VARIABLES(privileged, policy), "0 524288 - ");
    char names[400][48], *many[401] = {NULL}, *all = malloc(20000);
    for (int i = 0; i < 400; i++) many[i] = (snprintf(names[i], sizeof names[i], "HAKMEM_%0*d=", 20, i), names[i]);
    strcpy(all, "0 524288 - ");
    for (int i = 0; strlen(all) < 6 + 8192 - 90 - 17; i++)
        strcat(strcat(strcat(all, "hakmem: unknown setting "), names[i]), " ignored (HAKMEM_HELP=1 lists all)\n");
    strcat(all, "hakmem: and more\n"); /* whole lines, as many as there is room for */
    expect_settings(many, all);
    free(all);
    expect_settings(VARIABLES(privileged, interval, stats, unknown),
                    "0 524288 - ");                                              /* silently: it may not even say so */
    expect_settings(VARIABLES(behind, interval, stats, unknown), "0 524288 - "); /* another copy says it */
}

/* On hosts of the treatment the experiment's knobs are given, whatever HAKMEM_KNOBS says; on others they are not. */
static void an_experiment(void **state) {
    (void)state;
    char some[] = "HAKMEM_EXPERIMENT=x:50%:decay_ms=50", none[] = "HAKMEM_EXPERIMENT=none",
         knobs[] = "HAKMEM_KNOBS=decay_ms=70", treated[] = "FAKE_OS_HOST=web-0", other[] = "FAKE_OS_HOST=web-1",
         privileged[] = "FAKE_OS_PRIVILEGED=1", print[] = "PRINT_EXPERIMENT=1";
    expect_settings(VARIABLES(print, some, treated), "x treatment 50 1 ");
    expect_settings(VARIABLES(print, some, other), "x control 1000 0 ");
    expect_settings(VARIABLES(print, some, treated, knobs), "x treatment 50 1 ");
    expect_settings(VARIABLES(print, some, other, knobs), "x control 70 1 ");
    expect_settings(VARIABLES(print, none, treated), " control 1000 0 ");
    expect_settings(VARIABLES(print, some, treated, privileged), " control 1000 0 ");
    expect_settings(VARIABLES(print, some),
                    " control 1000 0 hakmem: setting HAKMEM_EXPERIMENT=x:50%:decay_ms=50 ignored: the "
                    "host has no name\n");
}

/* ---- Start ---------------------------------------------------------------------------------------------------------- */

static void starting_again(void **state) {
    (void)state;
    fake_os_refuse(FAKE_ANY, 1, SIZE_MAX);
    assert_false(hak_process_initialize());
    assert_false(hak_process_initialize());
    assert_int_equal(hak_bin_offsets[4], 0);
    assert_int_equal(fake_os.mapped_bytes, 0);
    fake_os_refuse_nothing();
    assert_true(hak_process_initialize());
    fake_os_forget();
    assert_true(hak_process_initialize());
    assert_int_equal(fake_os.call_count[FAKE_ANY], 0);
}

static void bin_offsets(void **state) {
    (void)state;
    assert_true(hak_process_initialize());
    for (size_t size = 1; size <= HAK_SMALL_MAX; size++) {
        size_t offset = hak_bin_offsets[(size + HAK_ALIGNMENT - 1) / HAK_ALIGNMENT];
        assert_int_equal(offset, hak_widest_of_group(hak_size_class_of(size)) * HAK_BIN_STRIDE);
    }
    assert_int_equal(hak_bin_offsets[0], HAK_BIN_STRIDE); /* a size of 0 is served like 1 */
}

/* ---- fork ------------------------------------------------------------------------------------------------------------ */

enum { BLOCKS = 3000 };

static struct live_block blocks[BLOCKS];
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t made;
static struct hak_heap *other_heap;

/* Fills its bins and slabs, and stays alive while the process forks. */
static void *keep_heap(void *unused) {
    for (size_t i = 1; i < BLOCKS; i += 2) {
        blocks[i] = (struct live_block){hak_malloc(i % 2000 + 1), i % 2000 + 1, (unsigned char)i};
        block_fill(&blocks[i]);
    }
    other_heap = hak_thread_attach();
    pthread_barrier_wait(&made);
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return unused;
}

static void in_child(bool other_was_busy) {
    struct hak_snapshot snapshot;
    UNIT_CHECK(hak_atomic_load(&other_heap->in_use, relaxed) ==
               (other_was_busy ? HAK_HEAP_GIVEN_UP : HAK_HEAP_ORPHANED));
    if (!other_was_busy) check_equations(&snapshot);
    for (int i = 0; i < BLOCKS; i++) {
        block_check(&blocks[i]);
        hak_free(blocks[i].bytes);
    }
    for (int round = 0; round < 20; round++) { /* memory is used again, not lost */
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i].bytes = hak_malloc(blocks[i].size);
            UNIT_CHECK(blocks[i].bytes != NULL);
            block_fill(&blocks[i]);
        }
        for (int i = 0; i < BLOCKS; i++) {
            block_check(&blocks[i]);
            hak_free(blocks[i].bytes);
        }
    }
    hak_purge();
    hak_snapshot_take(&snapshot);
    if (!other_was_busy) {
        check_equations(&snapshot);
        UNIT_CHECK(snapshot.total.live_blocks == 0 && snapshot.total.slabs == 0);
    }
    exit(0);
}

static void fork_with_another_thread(bool other_is_busy) {
    pthread_t thread;
    hak_free(hak_malloc(1));
    pthread_barrier_init(&made, NULL, 2);
    pthread_mutex_lock(&gate);
    assert_int_equal(pthread_create(&thread, NULL, keep_heap, NULL), 0);
    pthread_barrier_wait(&made);
    for (size_t i = 0; i < BLOCKS; i += 2) {
        blocks[i] = (struct live_block){hak_malloc(i % 2000 + 1), i % 2000 + 1, (unsigned char)i};
        block_fill(&blocks[i]);
    }
    hak_atomic_store(&other_heap->busy, other_is_busy, relaxed);
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) in_child(other_is_busy);
    waitpid(child, &status, 0);
    hak_atomic_store(&other_heap->busy, 0, relaxed);
    pthread_mutex_unlock(&gate);
    pthread_join(thread, NULL);
    assert_int_equal(status, 0);
    struct hak_snapshot snapshot;
    for (int i = 0; i < BLOCKS; i++) {
        block_check(&blocks[i]);
        hak_free(blocks[i].bytes);
    }
    hak_purge();
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.live_blocks, 0);
}

static void fork_beside_an_idle_thread(void **state) {
    (void)state;
    fork_with_another_thread(false);
}
static void fork_beside_a_busy_thread(void **state) {
    (void)state;
    fork_with_another_thread(true);
}

static void no_other_is_believed(void) {
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next)
        UNIT_CHECK((hak_atomic_load(&heap->is_copied, relaxed) != 0) == (heap != hak_thread_heap));
}

/* From a signal handler that interrupted a slow path: the other heaps are left as they are, but no thread has them, and
 * what is in their bins is not believed (pool/holder.h). */
static void fork_within_a_slow_path(void **state) {
    (void)state;
    hak_free(hak_malloc(1));
    for (int i = 0; i < 3; i++) assert_non_null(hak_heap_acquire());
    assert_int_equal(hak_atomic_load(&hak_heaps_in_use, relaxed), 4);
    hak_atomic_store(&hak_thread_heap->busy, 1, relaxed);
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        no_other_is_believed();
        _exit(hak_atomic_load(&hak_heaps_in_use, relaxed) == 1 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    hak_atomic_store(&hak_thread_heap->busy, 0, relaxed);
    assert_int_equal(status, 0);
    assert_int_equal(hak_atomic_load(&hak_heaps_in_use, relaxed), 4);
}

/* The same amid the change of a large object: the child goes on with it, and nothing is counted anew meanwhile. */
static void fork_within_a_change(void **state) {
    (void)state;
    hak_free(hak_malloc(1));
    struct hak_heap *other = hak_heap_acquire();
    hak_atomic_store(&other->busy, 1, relaxed);
    int status = -1;
    fflush(NULL);
    struct hak_change change = hak_change_begin();
    assert_non_null(change.hand);
    uint64_t dirty_units = hak_atomic_fetch_add(&hak_dirty_units, 1, relaxed) + 1; /* before the units are dirty */
    pid_t child = fork();
    if (child == 0) _exit(hak_atomic_load(&hak_dirty_units, relaxed) == dirty_units ? 0 : 1);
    waitpid(child, &status, 0);
    hak_atomic_fetch_sub(&hak_dirty_units, 1, relaxed);
    hak_change_end(change, true);
    assert_int_equal(status, 0);
}

static bool is_child;
static int child_status;

/* As a signal handler; the child returns from it, and goes on. */
static void fork_here(void) {
    fake_os.at_thread_id = fake_os.at_clock = NULL;
    pid_t child = fork();
    is_child = child == 0;
    if (!is_child) waitpid(child, &child_status, 0);
}

/* What the thread has got by now is its own, and no other's. */
static void *be_born(void *nothing) {
    fake_os.at_thread_id = fork_here;
    hak_free(hak_malloc(64));
    if (!is_child) return nothing;
    UNIT_CHECK(hak_atomic_load(&hak_heaps_in_use, relaxed) == 1);
    for (int i = 0; i < 3; i++) UNIT_CHECK(hak_heap_acquire() != hak_thread_heap);
    _exit(0);
}

static struct hak_heap *ending_heap;

/* What it has not given up yet, it will. */
static void fork_at_the_end(void) {
    fork_here();
    if (!is_child) return;
    UNIT_CHECK(hak_atomic_load(&ending_heap->in_use, relaxed) == HAK_HEAP_IN_USE);
    _exit(0);
}

static void *end(void *nothing) {
    hak_free(hak_malloc(64));
    ending_heap = hak_thread_heap;
    fake_os.at_clock = fork_at_the_end;
    return nothing;
}

static void fork_in_a_thread(void *(*run)(void *)) {
    pthread_t thread;
    hak_free(hak_malloc(1));
    is_child = false;
    child_status = -1;
    fflush(NULL);
    assert_int_equal(pthread_create(&thread, NULL, run, NULL), 0);
    pthread_join(thread, NULL);
    assert_int_equal(child_status, 0);
}

/* From a signal handler that interrupted a thread while it was getting its heap, or leaving it. */
static void fork_amid_a_birth(void **state) {
    (void)state;
    fork_in_a_thread(be_born);
}
static void fork_amid_an_end(void **state) {
    (void)state;
    fork_in_a_thread(end);
}

/* Whoever was draining the caller's heap is not in the child: nobody knows what state it was left in. */
static void fork_while_being_drained(void **state) {
    (void)state;
    hak_free(hak_malloc(64));
    struct hak_heap *own = hak_thread_heap;
    hak_atomic_store(&own->drained, 1, relaxed);
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        UNIT_CHECK(hak_thread_heap != own);
        void *block = hak_malloc(64);
        UNIT_CHECK(block != NULL && hak_thread_heap != own);
        UNIT_CHECK(hak_atomic_load(&own->in_use, relaxed) == HAK_HEAP_GIVEN_UP);
        hak_free(block);
        _exit(0);
    }
    waitpid(child, &status, 0);
    hak_atomic_store(&own->drained, 0, relaxed);
    assert_int_equal(status, 0);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings),
        cmocka_unit_test(an_experiment),
        cmocka_unit_test(starting_again),
        cmocka_unit_test(bin_offsets),
        cmocka_unit_test(fork_beside_an_idle_thread),
        cmocka_unit_test(fork_beside_a_busy_thread),
        cmocka_unit_test(fork_within_a_slow_path),
        cmocka_unit_test(fork_within_a_change),
        cmocka_unit_test(fork_amid_a_birth),
        cmocka_unit_test(fork_amid_an_end),
        cmocka_unit_test(fork_while_being_drained),
    };
    if (argc > 1 && strcmp(argv[1], "--settings") == 0) return print_settings();
    return unit_run(tests, sizeof tests / sizeof tests[0], argc > 1 ? argv[1] : NULL);
}
