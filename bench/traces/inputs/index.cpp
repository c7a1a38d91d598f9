// Enough of the C++ library to keep a compiler busy for a second.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

std::map<std::string, std::vector<int>> index_of(const std::vector<std::string> &words) {
    std::map<std::string, std::vector<int>> index;
    for (std::size_t i = 0; i < words.size(); i++) {
        index[words[i]].push_back(static_cast<int>(i));
    }
    for (auto &[word, places] : index) {
        std::sort(places.begin(), places.end());
    }
    return index;
}
