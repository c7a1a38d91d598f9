#!/usr/bin/env bash
# What a user does, by the letter of three guides, as scripts in build/packages/tasks, with a clone of this repository.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

work=$out/tasks
rm -rf "$work"
mkdir -p "$work"
git clone -q . "$work/hakmem"
python3 packaging/guide.py docs/measure-a-service.md >"$work/measure.sh"
python3 packaging/guide.py docs/who-holds-my-memory.md >"$work/holders.sh"
python3 packaging/guide.py docs/containers.md "A Dockerfile" >"$work/dockerfile.sh"
tar -C "$work" -cf "$work/inside.tar" hakmem measure.sh holders.sh dockerfile.sh
rm -rf "$work/hakmem"
