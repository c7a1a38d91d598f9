/* A SIGABRT handler that allocates, as crash reporters do, while other threads are busy: the allocator holds no lock
 * and leaves no thread waiting when it aborts. */
#include "churn.h"
#include "complaint.h"

/* The busy threads allocate nothing of the herd's size, so nobody is handed a block between its two frees. */
enum { HANDLED = 42, BUSY = 3, ROUNDS = 20, BUSY_SIZE_MAX = 4096, HERD_SIZE = 10000 };

static struct churners churners = {.size_max = BUSY_SIZE_MAX};
static atomic_uint helped_count;
static struct herd herd;

/* Another thread must be able to work meanwhile: new work, from scratch. */
static void *help(void *nothing) {
    churn_once(1, 5000, 256 << 10);
    atomic_fetch_add(&helped_count, 1);
    return nothing;
}

static void handle_abort(int signal) {
    (void)signal;
    pthread_t thread;
    churn_once(2, 5000, 256 << 10);
    expect(pthread_create(&thread, NULL, help, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
    churners_stop(&churners);
    expect(atomic_load(&helped_count) == 1, "nobody helped");
    _exit(HANDLED);
}

static void victim_begins(void) {
    struct sigaction action = {.sa_handler = handle_abort};
    sigaction(SIGABRT, &action, NULL);
    churners_start(&churners, BUSY);
    case_sleep_us(3000);
}

static void expect_handled(const char *complaint) {
    for (int i = 0; i < ROUNDS; i++) {
        struct case_end end = case_watch("once");
        expect(end.status != -1, "it hung");
        expect(WIFEXITED(end.status) && WEXITSTATUS(end.status) == HANDLED, "wait status %#x; it said: %s%s",
               (unsigned)end.status, end.output, end.error);
        expect(strstr(end.error, complaint), "it said: %s", end.error);
    }
}

static void run_double_free(void) { expect_handled(DOUBLE_FREE); }
static void run_invalid(void) { expect_handled("invalid pointer: "); }
static void run_plain(void) { expect_handled(""); }

static void victim_newest(const char *argument) {
    (void)argument;
    void *block = malloc(HERD_SIZE);
    victim_begins();
    free(hidden(block));
    free(hidden(block));
}

/* Found in the middle of a flush. */
static void victim_flush(const char *argument) {
    (void)argument;
    herd_make(&herd, HERD_SIZE);
    victim_begins();
    free(herd_victim(&herd));
    free(herd.blocks[1]);
    free(herd_victim(&herd));
    herd_free_odd(&herd, 1);
}

/* Found in the middle of a flush of blocks that belong to another thread. */
static void *make_herd(void *nothing) {
    herd_make(&herd, HERD_SIZE);
    return nothing;
}

static void victim_remote_flush(const char *argument) {
    pthread_t thread;
    expect(pthread_create(&thread, NULL, make_herd, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
    (void)argument;
    victim_begins();
    free(herd_victim(&herd));
    free(herd.blocks[1]);
    free(herd_victim(&herd));
    herd_free_odd(&herd, 1);
}

static void victim_foreign(const char *argument) {
    (void)argument;
    victim_begins();
    free(hidden(&herd));
}

static void victim_inside_large(const char *argument) {
    (void)argument;
    char *block = malloc(8 << 20);
    victim_begins();
    free(hidden(block + 4096));
}

static void victim_inside_medium(const char *argument) {
    (void)argument;
    char *block = malloc(200000);
    victim_begins();
    hidden(realloc(hidden(block + 4096), 100));
}

/* Nobody's fault: abort by the program, anywhere. */
static void victim_abort(const char *argument) {
    (void)argument;
    victim_begins();
    abort();
}

#define CASE(name_, run_, victim_)                                                                                     \
    { .name = name_, .run = run_, .seconds = 120, .memory_mib = 1024, .victim = victim_ }

static const struct hak_case cases[] = {
    CASE("newest", run_double_free, victim_newest),
    CASE("flush", run_double_free, victim_flush),
    CASE("remote-flush", run_double_free, victim_remote_flush),
    CASE("foreign", run_invalid, victim_foreign),
    CASE("inside-large", run_invalid, victim_inside_large),
    CASE("inside-medium", run_invalid, victim_inside_medium),
    CASE("abort", run_plain, victim_abort),
};

CASE_MAIN(cases)
