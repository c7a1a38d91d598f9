#!/usr/bin/env bash
# Unpacks the crate of build/packages, runs its tests, and builds ripgrep with it as global allocator.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

ripgrep=14.1.1

root=$PWD
work=$out/crate-test
rm -rf "$work"
mkdir -p "$work"
export CARGO_TARGET_DIR=$out/crate-target # what cargo compiled before is there the next time
tar -xf "$out/hakmem-alloc-$version.crate" -C "$work"
crate=$work/hakmem-alloc-$version

cd "$crate"
grep -qx '#!\[no_std\]' src/lib.rs
grep -qx "    hakmem-alloc = \"$version\"" README.md
cargo fmt --check
cargo test
cargo test --all-features
cargo run --all-features --example statistics

# hakmem's object here is compiled as that of the library is.
of_library() {
    sed -n '/^set(names malloc/,/)/p' "$root/cmake/options.cmake" | grep -oE '\b[a-z_]+\b' | grep -vE '^(set|names)$'
    sed -n '/^target_compile_options(hak_codegen/,/)$/p' "$root/cmake/options.cmake" | grep -oE -- '-f[a-z][a-z=-]+'
}
of_crate() { sed -n '/^const FLAGS/,/^];/p; /^const NO_BUILTIN/,/^];/p' build.rs | grep -oE '"[^",]+"' | tr -d '"'; }
diff <(of_library | sed 's/^-fno-builtin-//' | sort) <(of_crate | sort)

# ripgrep is a program, no library: vendoring fetches it all the same.
mkdir -p "$work/fetch/src"
touch "$work/fetch/src/lib.rs"
cat >"$work/fetch/Cargo.toml" <<END
[package]
name = "fetch"
version = "0.0.0"
edition = "2021"
[dependencies]
ripgrep = "=$ripgrep"
END
cd "$work/fetch"
cargo vendor >/dev/null
cp -r vendor/ripgrep "$work/ripgrep"
cd "$work/ripgrep"
rm .cargo-checksum.json
cat >>Cargo.toml <<END

[dependencies.hakmem-alloc]
path = "$crate"
[workspace]
END
sed -i 's/^fn main() -> .*{$/&\n    assert!(hakmem_alloc::owns(\&*Box::new(1)));\n    eprintln!("on hakmem");/' crates/core/main.rs
cat >>crates/core/main.rs <<'END'

#[global_allocator]
static HAKMEM: hakmem_alloc::Hakmem = hakmem_alloc::Hakmem;
END
cargo build
HAKMEM_STATS=text "$CARGO_TARGET_DIR/debug/rg" --count 'fn ' "$work/ripgrep" >"$work/found" 2>"$work/said"
grep -qx 'on hakmem' "$work/said"
grep -q 'live' "$work/said"
[ -s "$work/found" ]
