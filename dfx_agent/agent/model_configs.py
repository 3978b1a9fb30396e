"""The setting ``model_config``: which files say what the models of a job multiply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dfx_agent.agent.config_flops import ConfigFlops, UnknownConfigError, read
from dfx_agent.base.errors import ConfigError

ALL = "all"
_CONFIG, _ADAPTER = "config.json", "adapter_config.json"
_MOST_BYTES = 1 << 20


def given(key: str, value: Any) -> dict[str, ConfigFlops]:
    """A file or folder for all roles, ``{role: file}``, or ``ROLE=FILE`` separated by commas."""
    if not isinstance(value, Mapping):
        parts = [part.strip() for part in str(value).split(",") if part.strip()]
        pairs = [part.partition("=") if "=" in part else (ALL, "=", part) for part in parts]
        value = {role.strip(): file.strip() for role, _, file in pairs}
    return {str(role): _flops(key, Path(str(file))) for role, file in value.items()}


def of_stage(configs: Mapping[str, ConfigFlops], role: str, stage: str) -> ConfigFlops | None:
    """A reference model may be another one than that of its process."""
    names = ("ref", role, ALL) if stage == "ref_logprob" else (role, ALL)
    return next((configs[name] for name in names if name in configs), None)


def _flops(key: str, path: Path) -> ConfigFlops:
    """Of config.json, or of PEFT's adapter_config.json where only that is trained."""
    try:
        return _found(key, path.expanduser())
    except (OSError, RuntimeError) as error:  # a name that is too long, a user that nobody knows
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{key}: cannot read {str(path)[:200]}: {why}") from None


def _found(key: str, path: Path) -> ConfigFlops:
    if path.is_dir():
        path /= _ADAPTER if (path / _ADAPTER).is_file() else _CONFIG
    config, lora = _read(key, path), None
    if "peft_type" in config:
        lora, base = config, Path(str(config.get("base_model_name_or_path") or path.parent))
        path = (base if base.is_dir() else path.parent) / _CONFIG
        config = _read(key, path)
    try:
        return read(config, lora)
    except UnknownConfigError as unknown:
        raise ConfigError(f"{key}: {path}: {unknown}") from None


def _read(key: str, path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"{key}: {path} has more than 1 MiB: give a model's config.json")
        found = json.loads(data)
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{key}: {path} is not JSON: give a model's config.json") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{key}: {path} is no object: give a model's config.json")
    return found
