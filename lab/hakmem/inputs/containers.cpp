// containers.cpp: a small file as many are, to compile.
#include <map>
#include <string>
#include <vector>

int main() {
    std::map<std::string, std::vector<int>> found;
    for (int i = 0; i < 100; i++) found[std::to_string(i % 7)].push_back(i);
    return found.size() == 7 ? 0 : 1;
}
