#!/usr/bin/env bash
# The Rust crate hakmem-alloc, with hakmem's C sources inside, into build/packages. Cargo builds what it has packed.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

work=$out/crate
rm -rf "$work" "$out"/*.crate
mkdir -p "$work"
cp -rL packaging/rust/hakmem-alloc "$work"
sed -i -e "s/^version = .*/version = \"$version\"/" -e "s|^license = .*|&\nhomepage = \"$homepage\"|" "$work/hakmem-alloc/Cargo.toml"
filled packaging/rust/hakmem-alloc/README.md >"$work/hakmem-alloc/README.md"
cargo package --manifest-path "$work/hakmem-alloc/Cargo.toml" --target-dir "$work/target" --all-features
mv "$work/target/package/hakmem-alloc-$version.crate" "$out"
