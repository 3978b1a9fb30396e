"""Writes generated/, one JSON for each board: ``python -m dashboards.build [FOLDER]``.

Every module here with a function ``board`` is one. Needs Python 3.11, because the SDK does; the
JSON is committed, so that nobody else needs either.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

OLDEST_PYTHON = (3, 11)
HERE = Path(__file__).parent


def render() -> dict[str, str]:
    """File name -> JSON, the same at every call."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415

    modules = (import_module(f"dashboards.{m.name}") for m in iter_modules([str(HERE)]))
    models = [module.board().build() for module in modules if hasattr(module, "board")]
    encoder = JSONEncoder(indent=1, sort_keys=True, ensure_ascii=False)
    return {f"{model.uid}.json": encoder.encode(model) + "\n" for model in models}


def main(arguments: list[str]) -> int:
    """Exit code: 0 written or skipped, and it says so."""
    if sys.version_info < OLDEST_PYTHON:
        print("dashboards: not generated: grafana-foundation-sdk needs Python 3.11 or newer")
        return 0
    folder = Path(arguments[0]) if arguments else HERE / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    boards = render()
    for stale in {path.name for path in folder.glob("*.json")} - boards.keys():
        (folder / stale).unlink()
    for name, text in boards.items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
