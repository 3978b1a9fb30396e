"""Where a command line says that metrics are served."""

import pytest

from dfx_agent.node.engines.command_lines import Served, is_engine, is_worker, served_by


@pytest.mark.parametrize(
    ("line", "served"),
    [
        ("/usr/bin/python3 /usr/bin/vllm serve Qwen/Qwen3-8B", ("127.0.0.1", 8000)),
        ("vllm serve m --port 8123 --host 0.0.0.0", ("127.0.0.1", 8123)),
        ("vllm serve m --port=8123 --host=10.1.2.3", ("10.1.2.3", 8123)),
        ("python -m vllm.entrypoints.openai.api_server --port 81", ("127.0.0.1", 81)),
        ("python3.12 -X dev -u -m vllm.entrypoints.cli.main serve m", ("127.0.0.1", 8000)),
        ("python /x/vllm/entrypoints/openai/api_server.py", ("127.0.0.1", 8000)),
        ("python -m sglang.launch_server --model m", ("127.0.0.1", 30000)),
        ("python -m sglang.launch_server --port 1 --port 2 --host ::", ("127.0.0.1", 2)),
        ("/bin/sglang serve --model m --host ::1", ("::1", 30000)),
        (
            "python -u /x/ray/dashboard/agent.py --metrics-export-port=5555 --port 7",
            ("127.0.0.1", 5555),
        ),
    ],
)
def test_servers(line, served):
    assert served_by(line.split()) == Served(*served)


def test_prefill_and_decode_are_reported():
    argv = ["python", "-m", "sglang.launch_server", "--disaggregation-mode", "decode"]
    served = served_by(argv)
    assert served.pd == "decode"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "python train.py --engine vllm",
        "vim vllm serve.py",
        "vllm bench latency",
        "python -m sglang.bench_serving",
        "vllm serve m --port abc",
        "vllm serve m --port 70000",
        "python /x/ray/dashboard/agent.py",
        "bash -c echo vllm serve m",
        "grep vllm.entrypoints.openai log.txt",
        "python -X dev -W error",
        "python",
        "python -c vllm serve",
    ],
)
def test_others(line):
    assert served_by(line.split()) is None


def test_an_address_of_six_words_is_bracketed():
    assert Served("::1", 80).url == "http://[::1]:80/metrics"


@pytest.mark.parametrize("title", ["VLLM::Worker_TP0", "VLLM::EngineCore", "sglang::scheduler_TP1"])
def test_who_computes_for_a_server_is_not_asked(title):
    """Its ports are those of gloo, NCCL and ZeroMQ."""
    assert is_worker([title])
    assert not is_engine([title])


def test_servers_are_no_workers():
    for title in ("VLLM::APIServer_0", "ray::vLLMHttpServer.generate"):
        assert is_engine([title])
        assert not is_worker([title])
    assert not is_worker([])
