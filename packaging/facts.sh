# What all recipes of packages start from. Sourced; the working directory becomes the tree's root.
set -euo pipefail
unset CDPATH # it would lead elsewhere
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$PWD/build/packages
version=$(sed -n 's/^#define HAK_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' include/hakmem/hakmem.h | paste -sd.)
homepage=$(sed -n 's/^Homepage = "\(.*\)"$/\1/p' pyproject.toml)
maintainer=$(sed -n 's/^maintainers = \[{ name = "\(.*\)", email = "\(.*\)" }\]$/\1 <\2>/p' pyproject.toml)
export SOURCE_DATE_EPOCH
[ "$(git rev-parse --show-toplevel)" = "$(pwd -P)" ] || {
    echo "git takes $PWD for no clone of this user's: packages are made in one" >&2
    exit 2
}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) # of all files in packages
processors=("$(uname -m)") # that wheels are made for
[ "${processors[0]}" != x86_64 ] || processors+=(aarch64)
mkdir -p "$out"

# pinned NAME...: these packages as requirements, at the versions that the laboratory is tested with.
pinned() {
    local name
    for name; do grep "^$name==" lab/requirements.txt; done
}

# wheel PROCESSOR: the one of build/packages for this processor and glibc; musl_wheel PROCESSOR: and musl.
wheel() { echo "$out"/hakmem-*-manylinux*_"$1".whl; }
musl_wheel() { echo "$out"/hakmem-*-musllinux*_"$1".whl; }

# musl_root PROCESSOR FOLDER: Debian's musl for this processor, with the kernel's headers, in a folder. Nothing is
# installed, and nothing of it is run. /lib is a link, as on an installed system: the linker finds libc.so beside libc.a.
musl_root() {
    local architecture=amd64
    [ "$1" = x86_64 ] || architecture=arm64
    mkdir -p "$2/usr/lib"
    ln -s usr/lib "$2/lib"
    mmdebstrap --architectures=$architecture --variant=extract --include=musl-dev,linux-libc-dev \
        "$(. /etc/os-release && echo "$VERSION_CODENAME")" - |
        tar -x --no-same-owner --keep-directory-symlink --exclude=./dev -C "$2"
}

# fails COMMAND...: ends the script when the command succeeds.
fails() { if "$@"; then echo "succeeded, which it should not: $*" >&2 && exit 1; fi; }

# filled FILE: this file with what the project's own files say in place of @NAMES@.
filled() {
    sed -e "s|@VERSION@|$version|g" -e "s|@HOMEPAGE@|$homepage|g" -e "s|@MAINTAINER@|$maintainer|g" \
        -e "s|@EMAIL@|$(sed 's/.*<\(.*\)>/\1/' <<<"$maintainer")|g" "$1"
}

# recipe LANGUAGE: the one of docs/containers.md in this language.
recipe() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/{/^\`\`\`/!p}" docs/containers.md; }

# buildah, with a store of its own and containers that are no more than a chroot.
buildah_here() {
    BUILDAH_ISOLATION=chroot buildah --storage-driver=vfs --root "$out/container/store" --runroot "$out/container/run" "$@"
}
