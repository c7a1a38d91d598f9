// A library that has an operator new, which is called by nobody where hakmem's comes first.
#include <cstdlib>
#include <new>

void *operator new(std::size_t size) { return std::malloc(size); }

void *made_elsewhere() { return ::operator new(40); }
