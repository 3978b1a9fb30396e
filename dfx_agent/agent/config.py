"""Configuration: file < environment < flags. An unknown key is an error that names the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from dfx_agent.errors import ConfigError
from dfx_agent.wire import default_directory

# variables of the guest and of the tests; the rest of DFX_* is configuration
_NOT_OURS = frozenset(
    {
        "DFX_AGENT",
        "DFX_DISABLE_HOOKS",
        "DFX_FRAMEWORK",
        "DFX_MAX_OVERHEAD",
        "DFX_NODE",
        "DFX_RING_RECORDS",
        "DFX_ROLE",
        "DFX_RUN",
    }
)
_NAMES = {"DFX_DIR": "directory"}


@dataclass(frozen=True)
class Config:
    """What an agent needs to know."""

    directory: str
    """Folder of the segments ($DFX_DIR)."""
    listen: str = "127.0.0.1:9931"
    """Address of the page and of /metrics."""
    token_file: str | None = None
    """File with the token that clients must show; required off loopback."""
    tls_cert: str | None = None
    tls_key: str | None = None
    poll_seconds: float = 0.2
    """How often segments are read."""
    keep_dead_seconds: float = 600.0
    """How long the segment of a process that died is kept."""


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None) -> Config:
    """Merge the three sources; ConfigError for an unknown key or a bad value."""
    values: dict[str, Any] = {"directory": default_directory()}
    values.update(_from_file(file))
    values.update(_from_environment(environment))
    values.update({key: value for key, value in flags.items() if value is not None})
    return Config(**{key: _typed(key, value) for key, value in values.items()})


def _from_file(path: str | None) -> dict[str, Any]:
    file = Path(path or "dfx.yaml")
    if path is None and not file.is_file():
        return {}
    try:
        data = yaml.safe_load(file.read_text()) or {}
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not YAML: it is not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{file} must be a mapping of keys to values")
    given = {_checked(str(key), str(file)): value for key, value in data.items()}
    return {key: value for key, value in given.items() if value is not None}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for name, value in environment.items():
        is_ours = name.startswith("DFX_") and not name.startswith("DFX_TEST_")
        # the guest takes an empty DFX_DIR as unset: both must look in one place
        if is_ours and name not in _NOT_OURS and (name, value) != ("DFX_DIR", ""):
            found[_checked(_NAMES.get(name, name[4:].lower()), f"environment ({name})")] = value
    return found


def _checked(key: str, where: str) -> str:
    names = [field.name for field in fields(Config)]
    if key not in names:
        raise ConfigError(f"unknown key {key!r} in {where}: known are {', '.join(names)}")
    return key


def _typed(key: str, value: Any) -> Any:
    if not key.endswith("_seconds"):
        return value if value is None else str(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{key} must be a number of seconds, not {value!r}") from None
    if not 0 < number < 1e9:
        raise ConfigError(f"{key} must be positive, not {value!r}")
    return number
