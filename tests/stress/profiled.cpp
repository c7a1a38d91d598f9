// The heap profile on, many samples, while a program does what profilers are known to die of: it forks, loads and unloads
// libraries, throws through frames and unwinds them, ends threads, is interrupted by signals, and switches the profile
// itself. Each case is a number of rounds; it passes by coming to its end with a heap that works.
//
//     profiled CASE ROUNDS
#include <cassert>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/time.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <unwind.h>
#include <vector>

namespace {

volatile bool is_over;

// Blocks of many sizes, small and large, some of which live on for a while, and hold what was written to them.
void churn(unsigned seed, unsigned count) {
    struct kept {
        unsigned char *bytes;
        size_t size;
    };
    std::vector<kept> live(64);
    uint64_t random = seed;
    for (unsigned i = 0; i < count; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        kept &slot = live[random >> 40 & 63];
        if (slot.bytes != nullptr) {
            assert(slot.bytes[0] == (slot.size & 0xff) && slot.bytes[slot.size - 1] == (slot.size & 0xff));
            std::free(slot.bytes);
        }
        slot.size = 1 + (random >> 33) % ((random & 63) == 0 ? 100000 : 700);
        slot.bytes =
            static_cast<unsigned char *>((random >> 8 & 1) != 0 ? std::malloc(slot.size) : std::calloc(1, slot.size));
        assert(slot.bytes != nullptr);
        slot.bytes[0] = slot.bytes[slot.size - 1] = static_cast<unsigned char>(slot.size);
        if ((random >> 9 & 15) == 0) {
            size_t size = slot.size * 2;
            slot.bytes = static_cast<unsigned char *>(std::realloc(slot.bytes, size));
            assert(slot.bytes != nullptr && slot.bytes[0] == (slot.size & 0xff));
            slot.size = size;
            slot.bytes[0] = slot.bytes[size - 1] = static_cast<unsigned char>(size);
        }
    }
    for (kept &slot : live) std::free(slot.bytes);
}

struct churners {
    std::vector<std::thread> threads;
    churners() {
        is_over = false;
        for (unsigned i = 0; i < 2; i++)
            threads.emplace_back([i] {
                while (!is_over) churn(i, 1000);
            });
    }
    ~churners() {
        is_over = true;
        for (std::thread &thread : threads) thread.join();
    }
};

void fork_round(unsigned round) {
    pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        alarm(300);
        churn(round, 300);
        _exit(0);
    }
    int status;
    assert(waitpid(child, &status, 0) == child && status == 0);
    churn(round, 100);
}

void dlopen_round(unsigned round) {
    static const char *const names[] = {"libresolv.so.2", "libnss_files.so.2", "libutil.so.1", "libBrokenLocale.so.1"};
    void *library = dlopen(names[round % 4], RTLD_NOW);
    churn(round, 50);
    if (library != nullptr) dlclose(library);
}

__attribute__((noinline)) void throw_from(unsigned depth) {
    std::unique_ptr<std::string> held = std::make_unique<std::string>(depth + 40, 'x');
    if (depth == 0) throw std::runtime_error(*held + "thrown");
    throw_from(depth - 1);
    assert(held->size() > 0);
}

void throw_round(unsigned round) {
    try {
        throw_from(round % 100);
        assert(false);
    } catch (const std::runtime_error &error) {
        assert(std::strlen(error.what()) > 40);
    }
    churn(round, 20);
}

// A profiler of the program's own, which allocates while it unwinds.
_Unwind_Reason_Code on_frame(struct _Unwind_Context *, void *count) {
    ++*static_cast<unsigned *>(count);
    std::free(std::malloc(100));
    return _URC_NO_REASON;
}

__attribute__((noinline)) unsigned unwind_from(unsigned depth) {
    std::string held(depth + 40, 'x');
    unsigned count = 0;
    if (depth == 0) _Unwind_Backtrace(on_frame, &count);
    else count = unwind_from(depth - 1);
    assert(held.size() > 0);
    return count;
}

void unwind_round(unsigned round) {
    assert(unwind_from(round % 100) > round % 100);
    churn(round, 20);
}

void thread_round(unsigned round) {
    std::thread one(churn, round, 100), other(churn, round + 1, 100);
    one.join();
    other.join();
}

volatile sig_atomic_t signals_seen;

void on_signal(int) {
    char page[5000];
    std::memset(page, 1, sizeof page); // the stack below is used
    signals_seen = signals_seen + 1;
}

void signal_round(unsigned round) {
    if (round == 0) {
        struct sigaction action = {};
        action.sa_handler = on_signal;
        action.sa_flags = SA_RESTART;
        sigaction(SIGALRM, &action, nullptr);
        struct itimerval every = {{0, 200}, {0, 200}};
        setitimer(ITIMER_REAL, &every, nullptr);
    }
    for (sig_atomic_t seen = signals_seen; signals_seen == seen;) churn(round, 20);
}

void switch_round(unsigned round) {
    static auto start = reinterpret_cast<int (*)(size_t)>(dlsym(RTLD_DEFAULT, "hak_profile_start"));
    static auto stop = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "hak_profile_stop"));
    static auto save = reinterpret_cast<int (*)(const char *)>(dlsym(RTLD_DEFAULT, "hak_profile_save"));
    assert(start != nullptr && stop != nullptr && save != nullptr);
    if (round % 3 == 0) assert(start(256 + round % 5 * 300) == 0);
    if (round % 3 == 1) stop();
    if (round % 3 == 2) assert(save("/dev/null") == 0);
    churn(round, 50);
}

} // namespace

int main(int argc, char **argv) {
    struct {
        const char *name;
        void (*round)(unsigned);
        bool is_disturbed; // other threads churn meanwhile
    } static const cases[] = {{"fork", fork_round, true},     {"dlopen", dlopen_round, true},
                              {"throw", throw_round, true},   {"unwind", unwind_round, true},
                              {"thread", thread_round, true}, {"signal", signal_round, false},
                              {"switch", switch_round, true}};
    assert(argc == 3);
    assert(dlsym(RTLD_DEFAULT, "hak_malloc") != nullptr);
    for (const auto &each : cases) {
        if (std::strcmp(each.name, argv[1]) != 0) continue;
        std::unique_ptr<churners> others(each.is_disturbed ? new churners : nullptr);
        for (unsigned round = 0; round < static_cast<unsigned>(std::atoi(argv[2])); round++) each.round(round);
        return 0;
    }
    return 1;
}
