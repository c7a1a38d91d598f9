// Exits with 0 when operator new is hakmem's.
#include <cstdio>
#include <hakmem/hakmem.h>
#include <string>
#include <vector>

struct alignas(128) Wide {
    char bytes[256];
};

int main() {
    std::vector<std::string> names(100, std::string(100, 'x'));
    Wide *volatile wide = new Wide;
    bool owned = hak_owns(names.data()) == 1 && hak_owns(names.back().data()) == 1 && hak_owns(wide) == 1;
    std::printf("hakmem %s: new %s\n", hak_version(), owned ? "is hakmem's" : "is NOT hakmem's");
    delete wide;
    return owned ? 0 : 1;
}
