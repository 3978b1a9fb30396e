"""Boards, alert rules and deploy files in one folder, with the user's thresholds."""

from __future__ import annotations

import argparse
import os
from difflib import get_close_matches
from pathlib import Path

import dfx_agent
from dfx_agent.agent import config as configuration
from dfx_agent.base.errors import ConfigError, DfxError, UsageError
from dfx_agent.catalogue.alerts import runbook
from dfx_agent.catalogue.alerts.declared import PROMETHEUS_ALERTS, alerts_with, thresholds
from dfx_agent.catalogue.alerts.prometheus import Links, manifest, rule_files
from dfx_agent.catalogue.alerts.prometheus import configuration as alertmanager
from dfx_agent.catalogue.alerts.promql import number
from dfx_agent.catalogue.alerts.thresholds import checked_values

HELP = "write boards, alert rules and deploy files into a folder"
EXAMPLE = """dfx-agent assets ./dfx --set entropy_drift_ratio=4
  dfx-agent assets ./dfx --set grafana_url=https://grafana.example.org
  dfx-agent assets --list

Thresholds of dfx.yaml (thresholds: {KEY: NUMBER}) are taken too; --set wins. Rules of the same
thresholds are evaluated by the agent itself when dfx.yaml holds them."""

# The user's from then on: written where it is not there, never over it.
_WRITTEN_ONCE = "dfx-agent-token"

_LINKS = {
    "runbook_url": "page of the runbook that notifications point to",
    "grafana_url": "Grafana that notifications point to",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", nargs="?", help="folder to write; made if needed")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a threshold or a link; repeatable",
    )
    parser.add_argument("--list", action="store_true", help="show every KEY with its default")
    parser.add_argument("--force", action="store_true", help="overwrite files that are there")
    parser.add_argument("--config", metavar="FILE", help="settings file (dfx.yaml if it exists)")


def execute(args: argparse.Namespace) -> int:
    """0 when every file was written; nothing is written when one of them is in the way."""
    settings = _settings(args.settings)
    if args.list:
        _print_keys()
        return 0
    if not args.folder:
        raise UsageError("no folder: write `dfx-agent assets DIR`")
    config = configuration.load({}, os.environ, args.config)
    given = {key: value for key, value in settings.items() if key not in _LINKS}
    values = {**dict(config.thresholds), **checked_values(given, thresholds())}
    links = {key: value.rstrip("/") for key, value in settings.items() if key in _LINKS}
    files = _rendered(values, Links(**links)) | _copied()
    _write(Path(args.folder), files, force=args.force)
    changed = f", {len(values)} thresholds of yours" if values else ""
    print(f"dfx-agent: wrote {len(files)} files into {args.folder}{changed}")
    return 0


def _settings(pairs: list[str]) -> dict[str, str]:
    """KEY=VALUE texts as a mapping; UsageError without a "=", ConfigError for an unknown KEY."""
    keys = [*thresholds(), *_LINKS]
    found = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise UsageError(f"--set {pair}: write KEY=VALUE")
        if key not in keys:
            near = get_close_matches(key, keys, n=3, cutoff=0.3) or keys[:3]
            raise ConfigError(
                f"--set {key}: unknown key; nearest are {', '.join(near)} (all: --list)"
            )
        found[key] = value
    return found


def _print_keys() -> None:
    for key, threshold in thresholds().items():
        unit = f" {threshold.unit}" if threshold.unit else ""
        print(f"{key} = {number(threshold)}{unit}: {threshold.meaning}")
    defaults = Links()
    for key, meaning in _LINKS.items():
        print(f"{key} = {getattr(defaults, key)}: {meaning}")


def _rendered(values: dict[str, float], links: Links) -> dict[str, bytes]:
    alerts = alerts_with(values, PROMETHEUS_ALERTS)
    made = {f"rules/{name}": text for name, text in rule_files(alerts, links).items()}
    made["kubernetes/dfx.prometheusrule.yaml"] = manifest(alerts, links)
    made["alertmanager.yml"] = alertmanager(alerts)
    made["runbook.md"] = runbook.render(alerts)
    return {name: text.encode() for name, text in made.items()}


def _copied() -> dict[str, bytes]:
    """What does not depend on settings: boards, and deploy/ but what is rendered."""
    boards, deploy = _sources()
    found = {f"dashboards/{path.name}": path.read_bytes() for path in sorted(boards.glob("*.json"))}
    for path in sorted(deploy.rglob("*")):
        name = path.relative_to(deploy).as_posix()
        if path.is_file() and name != "alertmanager.yml":
            found[name] = path.read_bytes()
    if not found:
        raise DfxError(f"no boards in {boards}: this installation is not whole, install it again")
    return found


def _sources() -> tuple[Path, Path]:
    """Folders of the boards and of deploy/: inside an installed wheel, or of the checkout."""
    package = Path(dfx_agent.__file__).parent
    if (package / "assets").is_dir():
        return package / "assets" / "dashboards", package / "assets" / "deploy"
    return package.parent / "dashboards" / "generated", package.parent / "deploy"


def _write(folder: Path, files: dict[str, bytes], *, force: bool) -> None:
    """Write all files or none, as far as a check before the first write can ensure it."""
    if (folder / _WRITTEN_ONCE).exists():
        files = {name: content for name, content in files.items() if name != _WRITTEN_ONCE}
    there = sorted(
        name
        for name, content in files.items()
        if (folder / name).exists() and (folder / name).read_bytes() != content
    )
    if there and not force:
        raise UsageError(
            f"{folder} holds {len(there)} files that differ ({there[0]}, ...): give --force"
        )
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise DfxError(f"cannot write {error.filename}: {error.strerror}") from None
