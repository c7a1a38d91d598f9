#!/usr/bin/env bash
# The source of a release as one file: build/packages/hakmem-VERSION.tar.xz, the same bytes wherever it is made.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do [ ! -f "$file" ] && [ ! -L "$file" ] || printf '%s\0' "$file"; done | # those that are gone are not
    LC_ALL=C sort -z |
    tar --create --format=ustar --no-recursion --transform="s,^,hakmem-$version/,S" \
        --owner=0 --group=0 --numeric-owner --mode=u+rw,go=u,go-w --mtime="@$SOURCE_DATE_EPOCH" --null --files-from=- |
    xz -T1 -6 >"$out/hakmem-$version.tar.xz"
