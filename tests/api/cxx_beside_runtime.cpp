// The program of cxx_own_runtime.cpp.
#include "cxx_own_runtime.h"

int main() {
    delete make_thing();
    delete[] make_things();
    delete make_wide();
    drop(new thing);
    drop_things(new thing[3]);
    drop(new wide);
}
