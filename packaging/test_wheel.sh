#!/usr/bin/env bash
# Installs the wheel of build/packages into an environment of its own, without extras, and uses it; so it does in a new root
# of this system's release, or of another one, which is given as mmdebstrap takes it (SUITE TARGET MIRROR...). With that for musl, a program of musl runs on hakmem. Those of another processor are unpacked, and programs run on their libraries under qemu.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

newest_glibc=28 # 2.28; of any wheel
most_bytes=25000000 # of an installation without extras
ninja=1.13.2        # a program of musl that PyPI has, for every processor

work=$out/wheel-test
rm -rf "$work"
python3 -m venv "$work"
before=$(du --bytes --summarize "$work" | cut -f1)
"$work/bin/pip" install --disable-pip-version-check "$(wheel "$(uname -m)")"
after=$(du --bytes --summarize "$work" | cut -f1)
echo "$((after - before)) bytes"
[ $((after - before)) -le $most_bytes ]

ls "$work/share/man/man1/hakmem.1" "$work/share/man/man3/hakmem.3" "$work/share/man/man7/hakmem.7"

cd "$work"
hakmem=$work/bin/hakmem
"$hakmem" --version | grep -F "libhakmem $version, $work/"
maps='print(open("/proc/self/maps").read())'
"$hakmem" run -- bin/python -c "$maps" | grep -F hakmem/native/libhakmem.so
"$hakmem" run --secure -- bin/python -c "$maps" | grep -F hakmem/native/libhakmem-secure.so
"$hakmem" compare -n 2 --warmup 0 -- bin/python -c pass
"$hakmem" explain -- bin/python -c pass

# expect TEXT COMMAND...: it fails with this one line.
expect() {
    local status=0 text=$1 said
    shift
    said=$("$@" 2>&1) || status=$?
    [ "$status" = 2 ] && [ "$said" = "hakmem: $text" ] || { echo "$said" && return 1; }
}
expect "--html needs jinja2 and matplotlib: pip install 'hakmem[plots]'" "$hakmem" compare --html page.html -- true
expect "hakmem profile needs jinja2 and numpy and protobuf: pip install 'hakmem[profile]'" "$hakmem" profile -- true

# In a root that has Python alone, and nothing to compile with.
. /etc/os-release
made=$(wheel "$(uname -m)")
setup=()
for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [ ! -f $file ] || setup+=("--customize-hook=upload $file $file")
done
mmdebstrap --quiet --variant=apt --format=null --dpkgopt=force-unsafe-io --include=python3-venv,ca-certificates "${setup[@]}" \
    --customize-hook="copy-in $made /mnt" --customize-hook="chroot \"\$1\" sh -ec 'python3 -m venv /mnt/v
        /mnt/v/bin/pip install --disable-pip-version-check /mnt/$(basename "$made")
        /mnt/v/bin/hakmem run -- python3 -c pass
        /mnt/v/bin/hakmem run -- grep -c hakmem/native/libhakmem.so /proc/self/maps
        /mnt/v/bin/hakmem compare -n 2 --warmup 0 -- python3 -c pass'" "${@:-$VERSION_CODENAME}"

"$work/bin/pip" install --disable-pip-version-check "$(wheel "$(uname -m)")[plots,profile,serve]"
"$hakmem" compare -n 2 --warmup 0 --html page.html -- true
"$hakmem" profile --interval 1K -o profile -- bin/python -c 'x = [str(i) * 20 for i in range(100000)]'
ls page.html profile.*.pb.gz

for processor in "${processors[@]}"; do
    made=$(wheel "$processor")
    minor=$(sed -nE 's/.*-manylinux_2_([0-9]+)_[^-]*$/\1/p' <<<"$made")
    [ "$minor" -le $newest_glibc ]
    [ "$processor" != "$(uname -m)" ] || continue
    python3 -m zipfile -e "$made" "$work/$processor"
    native=$work/$processor/hakmem/native
    for file in "$native"/libhakmem.so "$native"/launch "$native"/*.so; do file "$file" | grep -i "$processor"; done
    echo '#include <stdlib.h>
int main(void) { for (int i = 0; i < 100000; i++) free(malloc(i)); return malloc(1) == 0; }' >program.c
    "$processor-linux-gnu-gcc" -fno-builtin program.c -o program
    "qemu-$processor" -L "/usr/$processor-linux-gnu" -E LD_PRELOAD="$native/libhakmem.so" -E HAKMEM_STATS=text ./program \
        2>&1 | grep -x "hakmem $version statistics"
done

# The wheel for musl: pip takes it where musl 1.2 is. The interpreter here is one of glibc, the library, the helpers and
# the program are of musl.
for processor in "${processors[@]}"; do
    musl=$work/$processor-musl
    "$work/bin/pip" install --disable-pip-version-check --no-deps --only-binary=:all: --target "$musl" \
        --platform "musllinux_1_2_$processor" "$(musl_wheel "$processor")" "ninja==$ninja"
    for file in bin/ninja hakmem/native/launch; do file "$musl/$file" | grep -F "/lib/ld-musl-$processor.so.1"; done
    libraries=("$musl"/hakmem/native/*.so)
    [ -e "${libraries[0]}" ] # without one, the pattern stands for itself
    for file in "${libraries[@]}"; do [[ "$(readelf -d "$file" | grep NEEDED)" =~ ^[^$'\n']*\[libc\.so\]$ ]]; done
    [ "$processor" != "$(uname -m)" ] || continue
    "qemu-$processor" -L "$out/wheel/$processor-musl/root" -E LD_PRELOAD="$musl/hakmem/native/libhakmem.so" \
        -E HAKMEM_STATS=text "$musl/bin/ninja" --version 2>&1 | grep -x "hakmem $version statistics"
done
musl=$work/$(uname -m)-musl
export PYTHONPATH=$musl
"$work/bin/python" -m hakmem run -- "$musl/bin/ninja" --version
"$work/bin/python" -m hakmem compare -n 2 --warmup 0 -- "$musl/bin/ninja" --version
"$work/bin/python" -m hakmem explain -- "$musl/bin/ninja" --version
fails "$work/bin/python" -m hakmem run -- "$work/bin/python" -c pass # of glibc
