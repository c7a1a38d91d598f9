#!/usr/bin/env bash
# The site of build/packages has every page, an index to search in, and nothing that a reader's browser would fetch from
# elsewhere; and a page with a link that leads nowhere makes no site.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

site=$out/site
for page in index docs/index docs/install docs/troubleshooting docs/decisions/0007-batches; do [ -s "$site/$page.html" ]; done
.venv/bin/python - "$site" <<'END'
import json, re, sys
from pathlib import Path

site = Path(sys.argv[1])
found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
assert any("decay_ms" in one["text"] for one in found), "no settings in the index"
for page in site.rglob("*.html"):
    fetched = re.findall(r'<(?:script|link(?! rel="?(?:canonical|prev|next))|img)[^>]*(?:src|href)="?(https?:[^" >]+)', page.read_text())
    assert not fetched, f"{page}: {fetched}"
    prose = re.sub(r"<code.*?</code>", "", page.read_text(), flags=re.DOTALL)
    assert "```" not in prose, f"{page}: code that is shown as prose"
    assert not re.search(r"<p>(?:(?!</p>).)*\n(?:- |1\. |\|)", prose, re.DOTALL), f"{page}: a list that is shown as prose"
END

work=$out/site-test
rm -rf "$work"
mkdir -p "$work"
git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- -c | tar -xC "$work"
echo 'A [link](nowhere.md).' >>"$work/docs/install.md"
mkdir "$work/out"
python=$PWD/.venv/bin
"$python/python" packaging/site.py "$work" "$work/out"
if PAGES=$work/out/pages SITE=$work/site SITE_URL=$homepage NO_MKDOCS_2_WARNING=1 "$python/mkdocs" build --config-file "$work/out/mkdocs.yml" 2>"$work/said"; then
    echo "a link that leads nowhere made a site" && exit 1
fi
grep nowhere.md "$work/said"
