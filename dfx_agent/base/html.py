"""HTML from templates. Values are escaped, and a variable without a value is an error."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Template


@cache
def template(package: str, name: str) -> Template:
    """The template ``name`` from the folder ``templates`` of ``package``."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 (0.05 s)

    environment = Environment(
        loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(name)
