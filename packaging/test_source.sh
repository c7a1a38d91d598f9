#!/usr/bin/env bash
# Makes the source's tarball a second time, elsewhere and as somebody else would: it is to be the same. Builds and
# installs from it.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

work=$out/source-test
tarball=hakmem-$version.tar.xz
rm -rf "$work"
mkdir -p "$work"
git clone -q . "$work/clone"
cd "$work/clone"
git ls-files -z | xargs -0 rm
umask 077
tar -xf "$out/$tarball" --strip-components=1 --no-same-permissions --touch
TZ=Asia/Tokyo LC_ALL=C packaging/source.sh
cmp "$out/$tarball" "build/packages/$tarball"
sha256sum "$out/$tarball"

cd "$work"
tar -xf "$out/$tarball"
[ -f "hakmem-$version/packaging/rust/hakmem-alloc/hakmem/src/hakmem.c" ] # a link leads there
cmake -S "hakmem-$version" -B build -G Ninja -DHAK_TESTS=OFF -DCMAKE_INSTALL_PREFIX="$work/installed"
cmake --build build
cmake --install build
LD_PRELOAD=$(find "$work/installed" -name libhakmem.so) HAKMEM_STATS=text /usr/bin/python3 -c pass 2>&1 | grep -q live
