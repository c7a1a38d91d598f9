// The C++ library allocates what this program frees, and the other way round: it names neither malloc nor hakmem.
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

int main() {
    std::ostringstream text;
    std::thread([&text] {
        for (int i = 0; i < 1000; i++) text << i << ' ';
    }).join();
    bool is_caught = false;
    try {
        throw std::runtime_error(text.str());
    } catch (const std::exception &error) {
        is_caught = error.what() == text.str();
    }
    return is_caught && text.str().size() == 3890 ? 0 : 1;
}
