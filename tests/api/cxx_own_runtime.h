// What cxx_own_runtime.cpp and its program share.
#ifndef HAKMEM_API_CXX_OWN_RUNTIME_H
#define HAKMEM_API_CXX_OWN_RUNTIME_H

struct thing {
    virtual ~thing();
    char bytes[40];
};

struct alignas(64) wide {
    char bytes[100];
};

thing *make_thing();
thing *make_things();
wide *make_wide();
void drop(thing *one);
void drop_things(thing *some);
void drop(wide *one);

#endif
