#!/usr/bin/env bash
# The site of the documentation, with search, into build/packages/site. Strict: a link that leads nowhere, or a page that
# no entry of the navigation leads to, is an error.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

work=$out/site-work
rm -rf "$work" "$out/site"
mkdir -p "$work"
.venv/bin/python packaging/site.py . "$work"
PAGES=$work/pages SITE=$out/site SITE_URL=$homepage NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --config-file "$work/mkdocs.yml"
rm -r "$work"
