"""The laboratory of hakmem: runs programs on allocators, compares them, and keeps evidence for every figure."""
