// A library with a C++ runtime linked into it, whose operators it calls whatever is loaded before it, and a program that
// hands objects to it and takes some of it.
#include "cxx_own_runtime.h"

thing::~thing() = default;

thing *make_thing() { return new thing; }
thing *make_things() { return new thing[3]; }
wide *make_wide() { return new wide; }
void drop(thing *one) { delete one; }
void drop_things(thing *some) { delete[] some; }
void drop(wide *one) { delete one; }
