#!/usr/bin/env bash
# The recipes of other package managers, and OSS-Fuzz's, into build/packages/recipes, with the version and the checksums of the source's
# tarball filled in. `SOURCE=URL packaging/recipes.sh` names where it is published; unless told, it is the file made here.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

packaging/source.sh
tarball=hakmem-$version.tar.xz
source=${SOURCE:-file://$out/$tarball}
rm -rf "$out/recipes"
for recipe in rpm/hakmem.spec alpine/APKBUILD arch/PKGBUILD homebrew/hakmem.rb vcpkg/vcpkg.json vcpkg/portfile.cmake \
    conan/conanfile.py spack/package.py nix/default.nix; do
    mkdir -p "$out/recipes/${recipe%/*}"
    filled "packaging/$recipe" | sed -e "s|@SOURCE@|$source|g" \
        -e "s|@SHA256@|$(sha256sum "$out/$tarball" | cut -d' ' -f1)|g" \
        -e "s|@SHA512@|$(sha512sum "$out/$tarball" | cut -d' ' -f1)|g" \
        -e "s|@DATE@|$(LC_ALL=C date -u -d "@$SOURCE_DATE_EPOCH" '+%a %b %d %Y')|g" >"$out/recipes/$recipe"
done
mkdir "$out/recipes/oss-fuzz"
for file in tests/fuzz/oss-fuzz/*; do filled "$file" >"$out/recipes/oss-fuzz/${file##*/}"; done
