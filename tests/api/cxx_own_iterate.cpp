// A program with a dl_iterate_phdr of its own, which the dynamic linker gives to all, and which allocates by new.
#include <cstdlib>
#include <dlfcn.h>
#include <link.h>
#include <memory>

using visitor = int (*)(dl_phdr_info *, std::size_t, void *);

extern "C" int dl_iterate_phdr(visitor visit, void *context) {
    auto next = reinterpret_cast<int (*)(visitor, void *)>(dlsym(RTLD_NEXT, "dl_iterate_phdr"));
    auto seen = std::make_unique<char[]>(100);
    return next(visit, context);
}

int main() {
    auto one = std::make_unique<int>(7);
    return *one == 7 ? EXIT_SUCCESS : EXIT_FAILURE;
}
