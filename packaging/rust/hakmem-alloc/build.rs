//! Compiles hakmem's one object, hak_* names only: C code of the program keeps libc's malloc.

// As cmake/options.cmake has them for the library; packaging/test_crate.sh compares.
const FLAGS: &[&str] = &[
    "-fvisibility=hidden",
    "-ftls-model=initial-exec",
    "-fexceptions",
    "-fno-semantic-interposition",
    "-foptimize-sibling-calls",
];
const NO_BUILTIN: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "free",
    "free_sized",
    "free_aligned_sized",
    "aligned_alloc",
    "posix_memalign",
    "memalign",
    "valloc",
    "pvalloc",
    "malloc_usable_size",
    "memcpy",
    "memset",
    "memmove",
];

fn main() {
    println!("cargo:rerun-if-changed=hakmem");
    println!("cargo:rerun-if-changed=build.rs");
    let mut build = cc::Build::new();
    build
        .file("hakmem/src/hakmem.c")
        .include("hakmem/src")
        .include("hakmem/include")
        .std("c17")
        .pic(true)
        .opt_level(3) // whatever the program's own level: allocation is not what is debugged
        .define("_GNU_SOURCE", None)
        .define("HAK_CHECK_LEVEL", "0")
        .define("HAK_NO_OVERRIDE", "1")
        .warnings(false);
    for flag in FLAGS {
        build.flag(flag);
    }
    for name in NO_BUILTIN {
        build.flag(&format!("-fno-builtin-{name}"));
    }
    build.compile("hakmem");
}
