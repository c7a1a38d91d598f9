// pool JOBS RESTING: a pool of threads as C++ services have it: one thread makes a request's objects, another one frees
// them. Works in three bursts with a pause between them; then prints a checksum, makes the empty file RESTING, and
// rests with all its threads until SIGTERM ends it.
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

constexpr int pairs = 4;
constexpr int bursts = 3;
constexpr size_t waiting_most = 2000; // requests between two threads

struct request {
    std::string path;
    std::map<std::string, std::string> headers;
    std::vector<std::unique_ptr<std::vector<char>>> parts;
};

class channel {
  public:
    void put(std::unique_ptr<request> one) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return waiting_.size() < waiting_most; });
        waiting_.push_back(std::move(one));
        changed_.notify_all();
    }

    std::unique_ptr<request> take() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return !waiting_.empty(); });
        auto one = std::move(waiting_.front());
        waiting_.pop_front();
        changed_.notify_all();
        return one;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::unique_ptr<request>> waiting_;
};

std::unique_ptr<request> make(uint64_t number) {
    auto one = std::make_unique<request>();
    one->path = "/documents/" + std::to_string(number * 2654435761U % 1000003);
    for (uint64_t i = 0; i < 12; i++) {
        one->headers["name-" + std::to_string(i)] = std::string(10 + (number * 31 + i * 17) % 200, 'v');
    }
    for (uint64_t i = 0; i < 4; i++) {
        one->parts.push_back(std::make_unique<std::vector<char>>(100 + (number * 7919 + i * 104729) % 24000, 'x'));
    }
    return one;
}

} // namespace

int main(int count, char **words) {
    if (count != 3) {
        return 2;
    }
    sigset_t end; // is waited for, by the first thread
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &end, nullptr);
    const uint64_t jobs = std::strtoull(words[1], nullptr, 10);
    std::vector<channel> channels(pairs);
    std::vector<uint64_t> sums(pairs);
    std::mutex mutex;
    std::condition_variable over;
    uint64_t working = pairs;
    for (uint64_t pair = 0; pair < pairs; pair++) {
        std::thread([&, pair] {
            for (uint64_t number = 0; number < jobs * bursts; number++) {
                if (number != 0 && number % jobs == 0) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(500));
                }
                channels[pair].put(make(number * pairs + pair));
            }
            pause();
        }).detach();
        std::thread([&, pair] {
            std::vector<std::unique_ptr<request>> kept; // answers that are still on their way
            for (uint64_t number = 0; number < jobs * bursts; number++) {
                auto one = channels[pair].take();
                for (const auto &header : one->headers) {
                    sums[pair] += header.second.size() + one->path.size();
                }
                kept.push_back(std::move(one));
                if (kept.size() >= 1500 || (number + 1) % jobs == 0) {
                    kept.clear();
                }
            }
            {
                std::lock_guard<std::mutex> lock(mutex);
                working--;
                over.notify_all();
            }
            pause();
        }).detach();
    }
    {
        std::unique_lock<std::mutex> lock(mutex);
        over.wait(lock, [&] { return working == 0; });
    }
    uint64_t sum = 0;
    for (uint64_t one : sums) {
        sum = sum * 31 + one;
    }
    std::printf("checksum %llx\n", static_cast<unsigned long long>(sum));
    std::fflush(stdout);
    std::ofstream(words[2]).flush();
    int received = 0;
    sigwait(&end, &received);
    std::_Exit(0);
}
