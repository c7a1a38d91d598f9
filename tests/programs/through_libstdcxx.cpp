// A program whose memory is asked for by the C++ library, which calls operator new on its behalf.
#include <iostream>
#include <locale>
#include <sstream>
#include <string>

int main() {
    size_t length = 0;
    for (int i = 0; i < 20000; i++) {
        std::ostringstream text;
        text << "the number " << i << " and a text that is too long to lie in the string itself";
        length += text.str().size();
    }
    std::locale classic = std::locale::classic();
    std::cout << length << ' ' << classic.name() << '\n';
    return 0;
}
