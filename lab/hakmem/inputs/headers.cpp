// headers.cpp: half of the C++ standard library in one file, to keep a compiler busy.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

using Value = std::variant<int, double, std::string, std::vector<std::string>>;

std::map<std::string, Value> parse(const std::string &text) {
    static const std::regex field("(\\w+)=(\\d+)?(\\.\\d+)?(\\w*)");
    std::map<std::string, Value> values;
    for (std::sregex_iterator match(text.begin(), text.end(), field), end; match != end; ++match) {
        values[(*match)[1]] = (*match)[2].matched ? Value(std::stod((*match)[2])) : Value((*match)[4].str());
    }
    return values;
}

std::string describe(const std::map<std::string, Value> &values) {
    std::ostringstream out;
    std::vector<std::tuple<std::string, size_t>> order;
    for (const auto &[name, value] : values) {
        order.emplace_back(name, value.index());
    }
    std::stable_sort(order.begin(), order.end(), [](auto &a, auto &b) { return std::get<1>(a) < std::get<1>(b); });
    for (const auto &[name, index] : order) {
        out << name << ':' << index << ' ';
    }
    return out.str();
}

int main() {
    std::unordered_map<int, std::function<std::string(const std::string &)>> steps;
    steps[0] = [](const std::string &text) { return describe(parse(text)); };
    std::vector<std::string> fields{"a=1", "b=two", "c=3.5"};
    std::sort(fields.begin(), fields.end(), std::greater<>());
    auto text = std::make_unique<std::string>();
    for (const auto &field : fields) {
        *text += field + ' ';
    }
    std::cout << steps[0](*text) << '\n';
}
