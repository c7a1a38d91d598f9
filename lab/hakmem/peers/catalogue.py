"""Which peers there are: versions, sources, recipes, and what each can be recognised by."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

from hakmem.peers.recipes import CMake, Compile, Configure, Take, named_in
from hakmem.peers.sources import Crate, DistributionPackage


@dataclass(frozen=True)
class Peer:
    name: str
    # The crate's where the allocator has no numbers of its own (snmalloc, tcmalloc, hardened_malloc); Debian 12's of a
    # distribution's package, of which the stamp says what was installed.
    version: str
    source: Crate | DistributionPackage
    recipe: Compile | Configure | CMake | Take
    marker: str  # a symbol that only this allocator exports
    settings: Mapping[str, str] = field(default_factory=dict)  # what its documentation tells its users to set


MIMALLOC = Crate(
    "libmimalloc-sys2",
    "0.1.65",
    "6c68ecbf07017a81a170a98fd1486d340dd304bc1099d2ca9aceff310fc42e9d",
)
SNMALLOC = Crate(
    "snmalloc-sys",
    "0.7.6",
    "f09c93c55f9a2b8dab75738a83c771231c5f408af65b8657433fe5bc93cc76cb",
)
JEMALLOC_VERSION = "5.3.1-0-g81034ce1f1373e37dc865038e1bc8eeecf559ce8"
JEMALLOC = Crate(
    "tikv-jemalloc-sys",
    f"0.7.1+{JEMALLOC_VERSION}",
    "1a2825c78386b4ae0314074867860ba9577875de945f05992c38815cbec327f0",
)
TCMALLOC = Crate(
    "libtcmalloc-sys",
    "0.1.14",
    "33e204268a3b09862788a2894346c768b95b2cb29cba42c5e2bb9ea7f48fa317",
)
RPMALLOC = Crate(
    "rpmalloc-sys",
    "0.2.3+b097fd0",
    "8d4b7d5e225a53887ee57fcec492eaf114b8e290f7072d035adc6ddd6810b67b",
)
HOARD = Crate(
    "hoard-sys",
    "0.1.2",
    "62fc5134d772ea018305754b3fd153a7a313e1bd537b0aaa8e8753ab7728654b",
)
HARDENED_MALLOC = Crate(
    "hardened-malloc-sys",
    "16.0.2026071503",
    "8a634cdd17eb2cea9e8ab0977f9b7401a5882db9fadb594d080bc67f230b6ec2",
)


def _mimalloc(folder: str, library: str) -> CMake:
    """Its release build for any processor of the architecture."""
    options = ("-DCMAKE_BUILD_TYPE=Release", "-DMI_OPT_ARCH=OFF", "-DMI_BUILD_TESTS=OFF")
    return CMake(f"c_src/{folder}", options, "mimalloc", library)


# As Bazel compiles it with `-c opt`. Its functions are hidden but for those that replace the C library's, so that calls
# among them are as direct as in the static library that Bazel makes. The crate's build script names the files; the
# two `bridge` files are the crate's, and one of them stands for tcmalloc.cc.
_TCMALLOC = Compile(
    files=("c_src/tcmalloc/tcmalloc/tcmalloc.cc",),
    more_files=named_in("build.rs", r'"(c_src/(?:abseil-cpp|tcmalloc)/[^"]+\.(?:cc|S))"'),
    flags="-O2 -DNDEBUG -fno-omit-frame-pointer -fstack-protector -ffunction-sections -fdata-sections"
    " -fvisibility=hidden -ftls-model=initial-exec -Ic_src/abseil-cpp -Ic_src/tcmalloc",
    cxx_flags="-std=c++17 -fvisibility-inlines-hidden -w",
    link_flags="-Wl,--gc-sections",
)

# The preloadable library of its own generator. `-ffast-math` is left out: there is no floating point in it, and in a
# shared library it would change how the whole program rounds.
_RPMALLOC = Compile(
    files=("rpmalloc/rpmalloc/rpmalloc.c",),
    flags="-O3 -funroll-loops -fstrict-aliasing -D_GNU_SOURCE=1 -DRPMALLOC_COMPILE=1 -DBUILD_DYNAMIC_LINK=1"
    " -DBUILD_RELEASE=1 -DENABLE_PRELOAD=1 -DENABLE_OVERRIDE=1 -Irpmalloc/rpmalloc",
    c_flags="-std=c11",
)

# Its GNUmakefile, but for `-ffast-math`. The hooks that it sets beside the functions went with glibc 2.34: their names
# are made those of its own variables. Its functions are exported, and yet have to be inlined into each other.
_HOARD = Compile(
    files=("Hoard/src/source/libhoard.cpp", "Hoard/src/source/unixtls.cpp"),
    flags="-O3 -flto -DNDEBUG -D_REENTRANT=1 -fno-builtin-malloc -fno-semantic-interposition"
    " -D__malloc_hook=old_malloc_hook -D__free_hook=old_free_hook"
    " -D__realloc_hook=old_realloc_hook -D__memalign_hook=old_memalign_hook"
    " -I. -IHoard/src -IHoard/src/include -IHoard/src/include/util -IHoard/src/include/hoard"
    " -IHoard/src/include/superblocks -IHeap-Layers",
    cxx_flags="-std=c++14 -w",
    link_flags="-O3 -flto -Wl,-Bsymbolic -ldl",
)

# Its Makefile with the default configuration. stdalign.h: compilers older than C23 know `alignas` only from there.
_HARDENED = "vendor/hardened-malloc"
_HARDENED_MALLOC = Compile(
    files=tuple(
        f"{_HARDENED}/{name}"
        for name in ("chacha.c", "h_malloc.c", "memory.c", "pages.c", "random.c", "util.c", "new.cc")
    ),
    flags="-O3 -flto -fvisibility=hidden -fno-plt -fstack-clash-protection -fstack-protector-strong -D_GNU_SOURCE"
    " -DCONFIG_SEAL_METADATA=false -DZERO_ON_FREE=true -DWRITE_AFTER_FREE_CHECK=true -DSLOT_RANDOMIZE=true"
    " -DSLAB_CANARY=true -DSLAB_QUARANTINE_RANDOM_LENGTH=1 -DSLAB_QUARANTINE_QUEUE_LENGTH=1"
    " -DCONFIG_EXTENDED_SIZE_CLASSES=true -DCONFIG_LARGE_SIZE_CLASSES=true -DGUARD_SLABS_INTERVAL=1"
    " -DGUARD_SIZE_DIVISOR=2 -DREGION_QUARANTINE_RANDOM_LENGTH=256 -DREGION_QUARANTINE_QUEUE_LENGTH=1024"
    " -DREGION_QUARANTINE_SKIP_THRESHOLD=33554432 -DFREE_SLABS_QUARANTINE_RANDOM_LENGTH=32"
    " -DCONFIG_CLASS_REGION_SIZE=34359738368 -DN_ARENA=4 -DCONFIG_STATS=false -DCONFIG_SELF_INIT=true"
    f" -DCONFIG_LABEL_MEMORY=false -I{_HARDENED} -I{_HARDENED}/include -I{_HARDENED}/third_party",
    c_flags="-std=c2x -include stdalign.h",
    cxx_flags="-std=c++17 -fsized-deallocation",
    link_flags="-O3 -flto -fPIC -Wl,-O1,--as-needed,-z,defs,-z,relro,-z,now,-z,nodlopen,-z,text",
)

# Newer and older ones than Debian 12 and 13 have, for other releases.
_COMPILER_RT = tuple(f"libclang-rt-{version}-dev" for version in (19, 20, 21, 22, 18, 17, 16, 15, 14))

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("mimalloc", "3.6.0", MIMALLOC, _mimalloc("mimalloc3", "libmimalloc.so.3"), "mi_version"),
        Peer("mimalloc2", "2.5.2", MIMALLOC, _mimalloc("mimalloc", "libmimalloc.so.2"), "mi_version"),
        Peer(
            "snmalloc",
            "0.7.6",
            SNMALLOC,
            CMake(
                "upstream",
                ("-DCMAKE_BUILD_TYPE=Release", "-DSNMALLOC_BUILD_TESTING=OFF"),
                "snmallocshim",
                "libsnmallocshim.so",
            ),
            "__malloc_end_pointer",
        ),
        Peer(
            "jemalloc",
            "5.3.1",
            JEMALLOC,
            Configure(
                "jemalloc",
                "configure/configure",
                (f"--with-version={JEMALLOC_VERSION}", "--disable-static"),
                "build_lib_shared",
                "lib/libjemalloc.so.2",
            ),
            "mallctl",
        ),
        Peer(
            "tcmalloc",
            "0.1.14",
            TCMALLOC,
            _TCMALLOC,
            "TcmallocSlab_Internal_PushBatch",
            # The C library's registration of restartable sequences would leave none for its per-CPU caches.
            {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"},
        ),
        Peer(
            "gperftools",
            "2.10",
            DistributionPackage(("libtcmalloc-minimal4", "libtcmalloc-minimal4t64")),
            Take("libtcmalloc_minimal.so.4.*"),
            "tc_version",
        ),
        Peer(
            "jemalloc-apt",
            "5.3.0",
            DistributionPackage(("libjemalloc2",)),
            Take("libjemalloc.so.2"),
            "mallctl",
        ),
        Peer(
            "mimalloc-apt",
            "2.0.9",
            DistributionPackage(("libmimalloc2.0", "libmimalloc3", "libmimalloc2.1")),
            Take("libmimalloc.so.*"),
            "mi_version",
        ),
        Peer("rpmalloc", "1.4.3+b097fd0", RPMALLOC, _RPMALLOC, "rpmalloc_initialize"),
        Peer("hoard", "3.13.0", HOARD, _HOARD, "_Z13getCustomHeapv"),
        Peer(
            "scudo",
            "19.1.7",
            DistributionPackage(_COMPILER_RT),
            Take(f"libclang_rt.scudo_standalone-{platform.machine()}.so"),
            "__scudo_print_stats",
        ),
        Peer("hardened_malloc", "16.0.2026071503", HARDENED_MALLOC, _HARDENED_MALLOC, "malloc_object_size_fast"),
    )
}

# There in seconds, for a first comparison: nothing is built.
PACKAGED = ("jemalloc-apt", "mimalloc-apt", "gperftools")
