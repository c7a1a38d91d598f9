"""Pages: the templates of HTML reports, and how they are filled."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


def template(name: str) -> Template:
    """Of `templates/`. What is put in is escaped, and nothing may be left out."""
    environment = Environment(
        loader=PackageLoader("hakmem.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
