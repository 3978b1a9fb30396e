"""The rollout engine: what it answers, and how it takes new weights between two tokens."""

import threading
import time
from concurrent.futures import wait

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from torch import nn

from dfx_agent.commands.demo import task
from dfx_agent.commands.demo.model import TinyTransformer
from dfx_agent.commands.demo.sampling import response_logprobs
from examples.async_rl import faults
from examples.async_rl.engine import MAX_BATCH_SIZE, Engine, Request
from examples.async_rl.settings import CONTEXT_LENGTH
from examples.async_rl.truth import TruthLog, read

PROMPT = task.encode("    4071=")
PATIENCE_SECONDS = 120


def model(seed):
    torch.manual_seed(seed)
    return TinyTransformer(task.VOCABULARY_SIZE, CONTEXT_LENGTH)


def weights(of):
    return bytearray(nn.utils.parameters_to_vector(of.parameters()).detach().numpy().tobytes())


@pytest.fixture
def started(tmp_path):
    def start(*specs):
        engine = Engine(1, 0, faults.parse(specs), TruthLog(tmp_path, "rollout 1"))
        threading.Thread(target=engine.run, daemon=True).start()
        return engine

    return start


def ask(engine, tokens=PROMPT, max_tokens=6):
    return engine.submit(Request(list(tokens), max_tokens))


def logprobs_by(of, prompt, completion):
    with torch.no_grad():
        found, _ = response_logprobs(of, torch.tensor([prompt]), torch.tensor([completion.tokens]))
    return found[0].tolist()


def test_many_requests_are_answered_with_the_policy_s_own_chances(started):
    engine = started()

    answers = [ask(engine) for _ in range(2 * MAX_BATCH_SIZE + 1)]

    for answer in answers:
        completion = answer.result(PATIENCE_SECONDS)
        assert completion.logprobs == pytest.approx(
            logprobs_by(model(0), PROMPT, completion), abs=1e-4
        )
        assert completion.is_finished == (completion.tokens[-1] == task.END)
        assert completion.is_finished or len(completion.tokens) == 6
        assert completion.versions == [0] * len(completion.tokens)


def test_a_paused_engine_answers_later_with_the_weights_that_came(started):
    engine, new = started(), model(1)
    engine.pause().result(PATIENCE_SECONDS)
    # a response that was cut goes on from what was there
    begun = [*PROMPT, 1, 7]
    answer = ask(engine, begun)
    engine.load(weights(new), version=3).result(PATIENCE_SECONDS)
    assert not answer.done()

    engine.resume().result(PATIENCE_SECONDS)
    completion = answer.result(PATIENCE_SECONDS)

    assert set(completion.versions) == {3}
    assert completion.logprobs == pytest.approx(logprobs_by(new, begun, completion), abs=1e-4)
    assert engine.step == 4


def test_weights_of_another_size_are_refused_and_the_engine_serves_on(started):
    engine = started()

    with pytest.raises(RuntimeError):
        engine.load(bytearray(8), version=1).result(PATIENCE_SECONDS)

    assert ask(engine).result(PATIENCE_SECONDS).tokens


def test_metrics_count_what_was_served(started):
    engine = started()
    completion = ask(engine).result(PATIENCE_SECONDS)
    engine.pause().result(PATIENCE_SECONDS)  # and it has told of its last token

    families = {
        family.name: {s.name: s.value for s in family.samples}
        for family in text_string_to_metric_families(engine.metrics.exposition().decode())
    }

    num_tokens = len(completion.tokens)
    tokens = families["vllm:generation_tokens"]
    assert tokens["vllm:generation_tokens_total"] == num_tokens
    first = families["vllm:time_to_first_token_seconds"]
    assert first["vllm:time_to_first_token_seconds_count"] == 1
    following = families["vllm:inter_token_latency_seconds"]
    assert following["vllm:inter_token_latency_seconds_count"] == num_tokens - 1
    assert families["vllm:num_requests_running"]["vllm:num_requests_running"] == 0


def test_a_slow_replica_reports_how_much_it_was_slowed(started, tmp_path):
    engine = started("slow_replica:1:3:2")
    for version in (1, 2):
        ask(engine).result(PATIENCE_SECONDS)
        engine.pause()
        engine.load(weights(model(0)), version).result(PATIENCE_SECONDS)
        engine.resume()

    lines = read(tmp_path)
    injected = [line for line in lines if "fault" in line]
    measured = {line["step"]: line["values"] for line in lines if "values" in line}

    assert [line["step"] for line in injected] == [2]
    assert injected[0]["amount"] == measured[2]["delay_seconds"]
    assert measured[2]["delay_seconds"] >= 2 * measured[2]["busy_seconds"] * 0.99


def test_a_stuck_server_answers_no_more(started, tmp_path):
    engine = started("stuck_server:1:1")

    answer = ask(engine)
    while not any("fault" in line for line in read(tmp_path)):
        time.sleep(0.01)
    pausing = engine.pause()

    assert wait([answer, pausing], timeout=0.2).done == set()
