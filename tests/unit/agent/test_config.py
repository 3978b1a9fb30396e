"""Configuration: file < environment < flags; what is wrong is named in one line."""

from __future__ import annotations

import dataclasses

import pytest

from dfx_agent.agent import config as config_module
from dfx_agent.agent.config import _SECRET_OF, Config, at_least, load
from dfx_agent.base.errors import ConfigError


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DFX_DIR", raising=False)
    return tmp_path / "dfx.yaml"


def test_flags_win_over_environment_over_file_over_default(file):
    file.write_text("listen: file\npoll_seconds: 1\nkeep_dead_seconds: 2\n")
    environment = {"DFX_LISTEN": "env", "DFX_POLL_SECONDS": "3", "PATH": "/bin"}
    config = load({"listen": "flag", "poll_seconds": None}, environment, None)
    assert config == Config(
        directory=config.directory, listen="flag", poll_seconds=3.0, keep_dead_seconds=2.0
    )
    assert config.directory.startswith("/")


def test_without_any_source_the_defaults_hold(file):
    assert load({}, {}, None).listen == "127.0.0.1:9931"


def test_the_folder_comes_from_dfx_dir(file):
    file.write_text("directory: /from/file\n")
    assert load({}, {}, None).directory == "/from/file"
    assert load({}, {"DFX_DIR": "/from/env"}, None).directory == "/from/env"
    assert load({"directory": "/flag"}, {"DFX_DIR": "/from/env"}, None).directory == "/flag"


def test_an_empty_dfx_dir_is_no_folder_for_the_agent_either(file):
    """The guest takes it as unset (default_directory): both must look in the same place."""
    assert load({}, {"DFX_DIR": ""}, None).directory == load({}, {}, None).directory


def test_variables_of_the_guest_and_the_tests_are_left_alone(file):
    names = ["AGENT", "RUN", "ROLE", "NODE", "FRAMEWORK", "RING_RECORDS", "TEST_ARTIFACTS"]
    load({}, {f"DFX_{name}": "x" for name in names}, None)


def refusal(flags=None, environment=None, file=None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(flags or {}, environment or {}, file)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_unknown_keys_are_named_with_their_place(file):
    file.write_text("listne: x\n")
    assert "unknown key 'listne' in dfx.yaml: known are directory, listen" in refusal()
    file.unlink()
    result = refusal(environment={"DFX_LISTNE": "x"})
    assert "unknown key 'listne' in environment (DFX_LISTNE)" in result


@pytest.mark.parametrize("link", ["DFX_HUB_", "DFX_AGENT_", "DFX_"])
def test_service_variables_of_kubernetes_are_no_settings(link):
    reported = {"SERVICE_HOST": "10.1.1.1", "SERVICE_PORT": "1", "SERVICE_PORT_METRICS": "1"}
    reported |= {
        "PORT": "tcp://10.1.1.1:1",
        "PORT_1_TCP": "tcp://10.1.1.1:1",
        "PORT_1_TCP_ADDR": "a",
    }
    links = {f"{link}{name}": value for name, value in reported.items()}
    assert load({}, {**links, "DFX_HUB": "http://dfx-hub:1"}, None).hub == "http://dfx-hub:1"
    assert "unknown key" in refusal(environment={f"{link}PORT": "tcp://10.1.1.1:1"})


@pytest.mark.parametrize("value", ["abc", "", "0", "-1", "nan", "inf", "1e99", [1], {}, None])
def test_bad_seconds_are_named(file, value):
    if isinstance(value, str):
        assert "poll_seconds must be" in refusal(environment={"DFX_POLL_SECONDS": value})
    file.write_text(f"poll_seconds: {'null' if value is None else value!r}\n")
    assert "poll_seconds must be" in refusal()


@pytest.mark.parametrize("text", ["- a\n- b\n", "just text", "42"])
def test_a_file_that_is_no_mapping_is_refused(file, text):
    file.write_text(text)
    assert "must be a mapping" in refusal()


@pytest.mark.parametrize(
    "data", [b"a: [", b"a: b: c", b"\xff\xfe\x00x", b"\x00", b"listen: \xe9\n"]
)
def test_a_file_that_is_no_yaml_is_refused(file, data):
    file.write_bytes(data)
    assert "dfx.yaml" in refusal()


@pytest.mark.parametrize("key", ["directory", "listen"])
def test_a_key_without_a_value_is_the_default_or_refused_never_none(file, key):
    file.write_text(f"{key}:\n")
    try:
        config = load({}, {}, None)
    except ConfigError as error:
        assert key in str(error)  # noqa: PT017
    else:
        assert isinstance(getattr(config, key), str)


def test_a_file_that_is_asked_for_must_be_readable(file, tmp_path):
    assert "cannot read" in refusal(file=str(tmp_path / "missing.yaml"))
    assert "cannot read" in refusal(file=str(tmp_path))


def test_an_empty_file_is_no_configuration(file):
    file.write_text("")
    assert load({}, {}, str(file)).poll_seconds == 0.2


def test_receivers_of_alerts_come_from_any_source(file, tmp_path):
    file.write_text("alertmanager: [http://a:9093, https://b/am]\nalert_labels: {cluster: x}\n")
    config = load({}, {"DFX_WEBHOOK": "http://c/1, http://c/2"}, None)
    assert config.alertmanager == ("http://a:9093", "https://b/am")
    assert config.webhook == ("http://c/1", "http://c/2")
    assert dict(config.alert_labels) == {"job": "dfx", "cluster": "x"}
    config = load({"alertmanager": ["http://d"], "alert_labels": ["job=a", "x=b=c"]}, {}, None)
    assert config.alertmanager == ("http://d",)
    assert dict(config.alert_labels) == {"job": "a", "x": "b=c"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("alertmanager: 7", "alertmanager must be a list of texts, not 7"),
        ("alertmanager: a:9093", "alertmanager 'a:9093': write http://HOST:PORT"),
        ("alertmanager: http://a:99999", "write http://HOST:PORT"),
        (
            "webhook: http://u:p@a",
            "no user or password in the URL; put a token into webhook_",
        ),
        ("alertmanager: http://u:p@a", "put them into alertmanager_basic_auth_file"),
        ("otlp_endpoint: http://u:p@a", "put them into OTEL_EXPORTER_OTLP_HEADERS"),
        ("alert_labels: {a-b: c}", "alert label a-b=c"),
        ("alert_labels: {severity: c}", "none of alertname, area, node, run, severity"),
        ("alert_labels: job", "alert label 'job': write NAME=VALUE"),
        ("webhook_token_file: /gone", "webhook_token_file: cannot read /gone: No such file"),
    ],
)
def test_receivers_that_cannot_be_are_named(file, text, says):
    file.write_text(text)
    assert says in refusal()


def test_trackers_come_from_file_or_environment(file):
    file.write_text("track_with: [jsonl, wandb, jsonl]\ntracker_kwargs: {wandb: {mode: offline}}\n")
    config = load({}, {}, None)
    assert config.track_with == ("jsonl", "wandb")
    assert config.tracker_kwargs == {"wandb": {"mode": "offline"}}
    environment = {"DFX_TRACK_WITH": "stdout, jsonl", "DFX_TRACKER_KWARGS": "{jsonl: {log_dir: x}}"}
    config = load({}, environment, None)
    assert config.track_with == ("stdout", "jsonl")
    assert config.tracker_kwargs == {"jsonl": {"log_dir": "x"}}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("tensorboard\ntracker_kwargs:\n  log_dir: /x/logs", {"log_dir": "/x/logs"}),
        (
            ("wandb\ntracker_kwargs:\n  api_key: k\n  project: p\n  name: n\n"
            '  notes: "Experiment description"\n  tags:\n    - tag1\n    - tag2'),
            {"api_key": "k", "project": "p", "name": "n", "notes": "Experiment description",
             "tags": ["tag1", "tag2"]},
        ),
        (
            ("swanlab\ntracker_kwargs:\n  login_kwargs:\n    api_key: k\n  project: p\n"
            "  logdir: /x/logs\n  experiment_name: ${exp_name}"),
            {"login_kwargs": {"api_key": "k"}, "project": "p", "logdir": "/x/logs",
             "experiment_name": "${exp_name}"},
        ),
        ("swanlab\ntracker_kwargs:\n  login_kwargs:\n    api_key: k",
         {"login_kwargs": {"api_key": "k"}}),
    ],
)  # fmt: skip
def test_the_yaml_of_rolls_documentation_is_read_as_it_is(file, text, options):
    file.write_text(f"track_with: {text}\n")
    config = load({}, {}, None)
    assert config.tracker_kwargs == {config.track_with[0]: options}


def test_options_of_several_trackers_need_their_names(file):
    file.write_text("track_with: [jsonl, stdout]\ntracker_kwargs:\n  log_dir: x\n")
    assert "must be {TRACKER: {KEY: VALUE}}" in refusal()


@pytest.mark.parametrize("value", ["{log_dir: x}", "[jsonl]", "{", "7"])
def test_options_of_no_tracker_are_refused(file, value):
    assert "tracker_kwargs" in refusal(environment={"DFX_TRACKER_KWARGS": value})


def test_a_refused_url_names_only_settings_that_exist(file):
    fields = {field.name for field in dataclasses.fields(Config)}
    for key, advice in _SECRET_OF.items():
        assert key in fields
        assert {word for word in advice.split() if word.endswith("_file")} <= fields


def test_engines_are_urls_and_the_search_for_them_can_be_off():
    given = {"DFX_ENGINES": "http://127.0.0.1:8000, http://h:3000/engine_metrics"}
    config = load({}, {**given, "DFX_FIND_ENGINES": "false"}, None)
    assert config.engines == ("http://127.0.0.1:8000", "http://h:3000/engine_metrics")
    assert config.find_engines is False
    assert load({}, {}, None).find_engines is True


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://h:1", "http://user:secret@h:1"])
def test_what_is_no_url_of_an_engine_is_refused_without_its_secret(url):
    with pytest.raises(ConfigError, match="engines") as refused:
        load({}, {"DFX_ENGINES": url}, None)
    assert "secret" not in str(refused.value)


@dataclasses.dataclass(frozen=True)
class _WithNumber(Config):
    num_workers: int = dataclasses.field(default=3, metadata=at_least(1, 8))


@pytest.fixture
def with_number(file, monkeypatch):
    """A setting that is an integer, declared as docs/how-to/add-a-setting.md says."""
    monkeypatch.setattr(config_module, "Config", _WithNumber)
    config_module._types.cache_clear()
    yield file
    config_module._types.cache_clear()


def test_the_type_of_a_field_chooses_its_parser(with_number):
    assert load({}, {}, None).num_workers == 3
    assert load({}, {"DFX_NUM_WORKERS": " 8 "}, None).num_workers == 8
    with_number.write_text("num_workers: 1\n")
    assert load({}, {}, None).num_workers == 1


@pytest.mark.parametrize("text", ["0", "9", "-1", "3.0", "1e0", "", "many", "true", "99999999999"])
def test_an_integer_outside_its_limits_is_refused_with_them(with_number, text):
    with_number.write_text(f"num_workers: {text}\n" if text else "num_workers: ''\n")
    assert refusal().startswith("num_workers must be a whole number from 1 to 8, not ")
    assert "num_workers must be" in refusal(environment={"DFX_NUM_WORKERS": text})


@pytest.mark.parametrize(("value", "is_valid"), [("0", True), ("-1", False), ("1e99", False)])
def test_zero_is_valid_only_where_the_field_says_so(file, value, is_valid):
    if is_valid:
        assert load({}, {"DFX_LINGER_SECONDS": value}, None).linger_seconds == 0.0
    else:
        assert "linger_seconds must be" in refusal(environment={"DFX_LINGER_SECONDS": value})
