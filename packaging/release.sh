#!/usr/bin/env bash
# What a release tells of itself, into build/packages: a bill of materials (CycloneDX) of the wheel with all extras, and
# the binary interface of the library as abidw sees it. `packaging/release.sh --keep` makes that the one to compare with.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

packaging/wheel.sh
environment=$out/release/environment
rm -rf "$out/release"
python3 -m venv --without-pip "$environment"
.venv/bin/pip --python "$environment/bin/python" install --disable-pip-version-check \
    "$(wheel "$(uname -m)")[plots,profile,serve]"
.venv/bin/cyclonedx-py environment "$environment/bin/python" --output-reproducible --validate \
    -o "$out/hakmem-$version.cdx.json"

abi=hakmem.$(uname -m).abi
abidw --no-corpus-path --no-comp-dir-path --no-show-locs --headers-dir include --drop-private-types \
    --out-file "$out/$abi" "$out/wheel/$(uname -m)/build/libhakmem.so"
sed -i "s|path='$PWD/|path='|" "$out/$abi" # of the sources: the same wherever the tree lies
[ "${1:-}" != --keep ] || cp "$out/$abi" packaging
