"""Configuration: file < environment < flags. An unknown key is an error that names the key.

A setting is one field of ``Config``. Its type chooses the parser, which its ``_PARSERS`` entry
replaces: docs/how-to/add-a-setting.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

import yaml

from dfx_agent.agent import model_configs
from dfx_agent.agent.bounded_yaml import loaded
from dfx_agent.agent.config_flops import ConfigFlops
from dfx_agent.base.errors import ConfigError
from dfx_agent.base.text import LARGEST_COUNT, whole_number
from dfx_agent.catalogue.alerts.declared import thresholds
from dfx_agent.catalogue.alerts.thresholds import checked_values
from dfx_agent.wire import default_directory, variables

_LINK = re.compile(r"DFX_(\w+_)?SERVICE_HOST")
# of the guest and of the command line; the rest of DFX_* is configuration
_NOT_OURS = {*(v.name for v in variables.ALL), "DFX_LOG_LEVEL", "DFX_DCGM_URL"} - {
    variables.DIR.name
}
AUTO = re.compile(r"auto(?::(\d{1,5}))?")
_NAMES = {variables.DIR.name: "directory"}
# what Prometheus and Alertmanager take as the name of a label
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
# labels that identify an alert and its run
_OWN_LABELS = frozenset({"alertname", "severity", "area", "node", "run"})
# files that must be readable at the start
_SECRETS = frozenset(
    {
        "alertmanager_basic_auth_file",
        "alertmanager_token_file",
        "webhook_token_file",
        "alert_ca_file",
        "hub_ca_file",
        "hub_token_file",
    }
)
# where the secret of a URL goes instead
_SECRET_OF = {
    "alertmanager": "put them into alertmanager_basic_auth_file",
    "webhook": "put a token into webhook_token_file",
    "hub": "put the hub's token into hub_token_file",
    "otlp_endpoint": "put them into OTEL_EXPORTER_OTLP_HEADERS",
    "engines": "metrics of engines are read without",
}


def at_least(least: float, most: float = LARGEST_COUNT) -> Mapping[str, float]:
    """Limits of a setting that is a number: the metadata of its field."""
    return {"least": least, "most": most}


@dataclass(frozen=True)
class Config:
    """What an agent needs to know."""

    directory: str
    """Folder of the segments ($DFX_DIR)."""
    listen: str = "127.0.0.1:9931"
    """Address of the page and of /metrics."""
    token_file: str | None = None
    """File with the token that clients must show; required off loopback."""
    open_to_local_users: bool = False
    """Whether every user of this machine may read over loopback, without a token."""
    tls_cert: str | None = None
    tls_key: str | None = None
    poll_seconds: float = 0.2
    """How often segments are read."""
    keep_dead_seconds: float = 600.0
    """How long the segment of a dead process is retained."""
    linger_seconds: float = field(default=60.0, metadata=at_least(0))
    """How long an agent that ends with its job waits at most until Prometheus has seen the end."""
    history_directory: str = ""
    """Folder of the history of runs: "" for ~/.local/state/dfx-agent/runs, "off" for none."""
    history_days: int = field(default=90, metadata=at_least(1))
    """How long the history of a run is stored after its latest change."""
    history_mib: int = field(default=2048, metadata=at_least(1))
    """Size of all files in it, above which the oldest are removed."""
    alertmanager: tuple[str, ...] = ()
    """URLs of the Alertmanagers that alerts are delivered to."""
    alertmanager_basic_auth_file: str | None = None
    """File with ``user:password`` for them."""
    alertmanager_token_file: str | None = None
    """File with a bearer token for them."""
    webhook: tuple[str, ...] = ()
    """URLs that alerts are posted to as JSON."""
    webhook_token_file: str | None = None
    """File with a bearer token for them."""
    alert_ca_file: str | None = None
    """PEM bundle that Alertmanagers and webhooks are checked against (the system's)."""
    thresholds: tuple[tuple[str, float], ...] = ()
    """Thresholds of alerts that differ from the catalogue, by key."""
    alert_labels: tuple[tuple[str, str], ...] = (("job", "dfx"),)
    """Labels on every delivered alert; ``job`` is that of deploy/prometheus.yml."""
    track_with: tuple[str, ...] = ()
    """Trackers that closed steps are written to."""
    tracker_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of each, by tracker."""
    otlp_endpoint: str | None = None
    """URL of an OpenTelemetry receiver (OTLP over HTTP) that metrics and steps are pushed to."""
    otlp_signals: tuple[str, ...] = ("metrics", "traces")
    """What is pushed to it."""
    otlp_seconds: float = 15.0
    """How often metrics are pushed."""
    hub: str | None = None
    """URL of the job's hub, or of an OTLP relay in front of it, that receives this node's facts;
    ``auto`` (only under ``run``): the hub on node rank 0."""
    hub_token_file: str | None = None
    """File with the token that it asks for (``token_file``)."""
    hub_ca_file: str | None = None
    """PEM bundle that its certificate is checked against (those of certifi)."""
    engines: tuple[str, ...] = ()
    """URLs of rollout engines (vLLM, SGLang, a router, Ray's agent) whose metrics are read."""
    find_engines: bool = True
    """Whether engines that the job starts or calls are found and read, too."""
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    """Dense TFLOP/s of a device by type of numbers, or of ``all``: before the table of devices."""
    model_config: Mapping[str, ConfigFlops] = field(default_factory=dict)
    """What a model multiplies that no hook sees, by role or of ``all``: given as config.json."""


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None) -> Config:
    """Merge the three sources; ConfigError for an unknown key or a bad value."""
    values: dict[str, Any] = {"directory": default_directory()}
    values.update(_from_file(file))
    values.update(_from_environment(environment))
    values.update({key: value for key, value in flags.items() if value is not None})
    config = Config(**{key: _typed(key, value) for key, value in values.items()})
    return replace(config, tracker_kwargs=_by_tracker(config.track_with, config.tracker_kwargs))


def _from_file(path: str | None) -> dict[str, Any]:
    file = Path(path or "dfx.yaml")
    if path is None and not file.is_file():
        return {}
    try:
        data = loaded(file.read_text()) or {}
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
    # variables that Kubernetes sets in every pod if there is a service dfx-hub
    links = [name.removesuffix("SERVICE_HOST") for name in environment if _LINK.fullmatch(name)]
    others = ("DFX_TEST_", *(f"{link}{what}" for link in links for what in ("SERVICE_", "PORT")))
    for name, value in environment.items():
        is_ours = name.startswith("DFX_") and not name.startswith(others)
        # the guest takes an empty DFX_DIR as unset: both must look in one place
        if is_ours and name not in _NOT_OURS and (name, value) != (variables.DIR.name, ""):
            found[_checked(_NAMES.get(name, name[4:].lower()), f"environment ({name})")] = value
    return found


def _checked(key: str, where: str) -> str:
    names = [field.name for field in fields(Config)]
    if key not in names:
        raise ConfigError(f"unknown key {key!r} in {where}: known are {', '.join(names)}")
    return key


def _typed(key: str, value: Any) -> Any:
    hint = _types()[key]
    if key in _PARSERS:
        return _PARSERS[key](key, value)
    if hint in _PARSERS_BY_TYPE:
        return _PARSERS_BY_TYPE[hint](key, value)
    if key in _SECRETS and value is not None:
        return _readable(key, str(value))
    return value if value is None else str(value)


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Config)


def _limits(key: str) -> tuple[float | None, float]:
    (limits,) = (field.metadata for field in fields(Config) if field.name == key)
    return limits.get("least"), limits.get("most", LARGEST_COUNT)


def _flag(key: str, value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in _FLAGS:
        raise ConfigError(f"{key} must be true or false, not {value!r}")
    return _FLAGS[text]


def _seconds(key: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{key} must be a number of seconds, not {value!r}") from None
    if not 0 < number < 1e9 and number != _limits(key)[0]:
        raise ConfigError(f"{key} must be positive, not {value!r}")
    return number


def _integer(key: str, value: Any) -> int:
    """Decimal digits; ``True``, 3.0 and "1e3" are none."""
    least, most = _limits(key)
    number = whole_number(str(value).strip(), int(most))
    if number is None or number < (least or 0):
        limits = f"from {least or 0:,.0f} to {most:,.0f}"
        raise ConfigError(f"{key} must be a whole number {limits}, not {value!r}")
    return number


def _urls(key: str, value: Any) -> tuple[str, ...]:
    return tuple(_url(key, text) for text in _listed(key, value))


def _unique(key: str, value: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_listed(key, value)))


def _listed(key: str, value: Any) -> list[str]:
    """A list, or a text with commas as the environment has it."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
        return list(value)
    raise ConfigError(f"{key} must be a list of texts, not {value!r}")


def _url_or_none(key: str, value: Any) -> str | None:
    return _url(key, str(value)) if value else None


def _hub(key: str, value: Any) -> str | None:
    """A URL, or "auto" and "auto:PORT"."""
    return str(value) if AUTO.fullmatch(str(value)) else _url_or_none(key, value)


def _url(key: str, text: str) -> str:
    try:
        parts = urlsplit(text)
        is_sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_sound = False
    if not is_sound or any(letter.isspace() for letter in text):
        raise ConfigError(f"{key} {text!r}: write http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None:
        raise ConfigError(f"{key}: no user or password in the URL; {_SECRET_OF[key]}")
    return text


def _labels(key: str, value: Any) -> tuple[tuple[str, str], ...]:
    """``{name: value}``, or texts ``NAME=VALUE``; ``job`` stays unless it is given."""
    if not isinstance(value, Mapping):
        pairs = [text.partition("=") for text in _listed(key, value)]
        if bad := next((head for head, sign, _ in pairs if not sign), None):
            raise ConfigError(f"alert label {bad!r}: write NAME=VALUE")
        value = {head.strip(): tail.strip() for head, _, tail in pairs}
    labels = {str(name): str(text) for name, text in value.items()}
    for name, text in labels.items():
        if not _LABEL_NAME.fullmatch(name) or name in _OWN_LABELS or not text:
            raise ConfigError(
                f"alert label {name}={text}: use letters, digits and _ in the name, a value, and "
                f"none of {', '.join(sorted(_OWN_LABELS))}"
            )
    return tuple({**dict(Config.alert_labels), **labels}.items())


def _thresholds(key: str, value: Any) -> tuple[tuple[str, float], ...]:
    """``{key: number}``, or ``KEY=VALUE`` separated by commas."""
    if isinstance(value, Mapping):
        given = {str(name): number for name, number in value.items()}
    else:
        pairs = [text.partition("=") for text in _listed(key, value)]
        given = {name.strip(): tail.strip() for name, _, tail in pairs}
    return tuple(checked_values(given, thresholds()).items())


def _tflops(key: str, value: Any) -> dict[str, float]:
    """A number for all types, ``{type: number}``, or ``TYPE=NUMBER`` separated by commas."""
    if isinstance(value, (int, float)) or "=" not in str(value):
        given: Mapping[Any, Any] = value if isinstance(value, Mapping) else {"all": value}
    elif isinstance(value, Mapping):
        given = value
    else:
        pairs = [text.partition("=") for text in _listed(key, value)]
        given = {name.strip(): number for name, _, number in pairs}
    try:
        by_type = {str(name): float(number) for name, number in given.items()}
    except (TypeError, ValueError):
        by_type = {}
    if not by_type or not all(0 < number < 1e9 for number in by_type.values()):
        raise ConfigError(f"{key} must be TFLOP/s, as in 989 or bfloat16=989, not {value!r}")
    return by_type


def _options(key: str, value: Any) -> dict[str, Any]:
    """``{tracker: {key: value}}``, of a single one also ``{key: value}``; a text is YAML."""
    if isinstance(value, str):
        try:
            value = loaded(value) or {}
        except yaml.YAMLError:
            raise ConfigError(f"{key} is not YAML: {value!r}") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} must be {{TRACKER: {{KEY: VALUE}}}}, not {value!r}")
    return {str(name): given for name, given in value.items()}


def _by_tracker(trackers: Sequence[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Options of each tracker; ROLL's YAML has those of its only one without its name."""
    is_flat = not all(isinstance(given, Mapping) for given in options.values())
    if len(trackers) == 1 and trackers[0] not in options and (is_flat or "login_kwargs" in options):
        return {trackers[0]: dict(options)}
    if is_flat:
        raise ConfigError(
            f"tracker_kwargs must be {{TRACKER: {{KEY: VALUE}}}}, not {dict(options)!r}"
        )
    return {name: {str(k): v for k, v in given.items()} for name, given in options.items()}


def _readable(key: str, file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            opened.read(1)
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {file}: {error.strerror}") from None
    return file


_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}
_PARSERS_BY_TYPE: dict[Any, Callable[[str, Any], Any]] = {
    bool: _flag,
    int: _integer,
    float: _seconds,
}
_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "alertmanager": _urls,
    "webhook": _urls,
    "thresholds": _thresholds,
    "alert_labels": _labels,
    "track_with": _unique,
    "tracker_kwargs": _options,
    "otlp_endpoint": _url_or_none,
    "otlp_signals": _unique,
    "engines": _urls,
    "hub": _hub,
    "peak_tflops": _tflops,
    "model_config": model_configs.given,
}
