"""What the guest counts while models run: by stage, forward alone and with backward."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402 (after the visible skip)
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import dfx_agent.shim as dfx  # noqa: E402
from dfx_agent.commands.demo.model import KeyValueCache, TinyTransformer  # noqa: E402
from dfx_agent.shim import recorder  # noqa: E402
from dfx_agent.shim.torch import model_work, modules  # noqa: E402
from dfx_agent.shim.torch.hooks import torch_hooks  # noqa: E402
from dfx_agent.wire import SegmentReader, job_description  # noqa: E402
from dfx_agent.wire.records import COUNT  # noqa: E402

VOCABULARY, CONTEXT = 20, 24


class Job:
    """A policy that trains and a copy that does not; ``told`` are the counts of FLOPs."""

    def __init__(self) -> None:
        self.reader = SegmentReader(recorder.current.path)  # type: ignore[union-attr]
        self.policy = TinyTransformer(VOCABULARY, CONTEXT)
        self.frozen = copy.deepcopy(self.policy).requires_grad_(requires_grad=False)
        self.ids = torch.randint(0, VOCABULARY, (4, 16))

    def told(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for row in self.reader.poll():
            name = self.reader.name(row[9]) or ""
            if row[8] == COUNT and name.startswith("flops/"):
                found[f"{row[4]}: {name}"] = found.get(f"{row[4]}: {name}", 0.0) + row[3]
        return found


@pytest.fixture
def job(dfx_dir, monkeypatch) -> Iterator[Job]:
    monkeypatch.setenv("DFX_DISABLE_HOOKS", "")
    modules._all_roots.clear()  # models of other tests that nobody has collected yet
    assert dfx.init(role="trainer", rank=0, directory=str(dfx_dir))
    dfx.set_step(1)
    job = Job()
    with sdpa_kernel(SDPBackend.MATH):
        yield job
    torch_hooks.remove()
    dfx.shutdown()
    recorder.current = None


def counted(run) -> float:
    with FlopCounterMode(display=False) as counter:
        run()
    return float(counter.get_total_flops())


def test_passes_and_backwards_are_counted_where_they_happen(job):
    modules.follow([job.policy])
    with dfx.stage("old_logprob"), torch.no_grad():
        forward = counted(lambda: job.policy(job.ids))
    with dfx.stage("actor_update"):
        with dfx.stage("forward"):
            loss = job.policy(job.ids).square().mean()
        with dfx.stage("backward"):
            backward = counted(loss.backward)
    assert job.told() == {}, "the end of the step brings it"
    dfx.set_step(2)
    assert job.told() == {
        "1: flops/forward/float32/old_logprob": pytest.approx(forward, rel=0.02),
        "1: flops/forward/float32/actor_update": pytest.approx(forward, rel=0.02),
        "1: flops/backward/float32/actor_update": pytest.approx(backward, rel=0.02),
    }
    with torch.no_grad():
        job.policy(job.ids)
    dfx.set_step(3)
    assert list(job.told()) == ["2: flops/forward/float32/"], "outside all marked stages"
    assert job.reader.live_words()[4] == 0


def test_above_the_budget_a_step_is_counted_whole_or_not_at_all(job):
    modules.follow([job.policy])
    recorder.current.work_stride = 2

    def run(step: int, *, is_late: bool = False) -> None:
        dfx.set_step(step)
        loss = job.policy(job.ids).square().mean()
        if is_late:
            dfx.set_step(step + 1)
        loss.backward()

    run(2)
    run(3)
    run(4, is_late=True)
    dfx.set_step(6)
    reported = job.told()
    counted_steps = [name.partition(": flops/")[::2] for name in reported]
    ways = [(step, name.partition("/")[0]) for step, name in counted_steps]
    assert sorted(ways) == [("2", "backward"), ("2", "forward"), ("4", "forward")]


class KeepsLast(torch.nn.Module):
    """Its head sees the last tokens of each row alone, as transformers' models may."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, 8)
        self.inner = torch.nn.Linear(8, 8)
        self.lm_head = torch.nn.Linear(8, VOCABULARY)

    def forward(self, input_ids, logits_to_keep=0):
        return self.lm_head(self.inner(self.embed(input_ids))[:, -logits_to_keep:])


@pytest.mark.parametrize("kept", [0, 1, 5, 16])
def test_a_head_counts_for_the_tokens_that_it_sees(job, kept):
    model = KeepsLast()
    model_work.count(model)
    with dfx.stage("actor_update"):
        outputs: list[torch.Tensor] = []
        forward = counted(lambda: outputs.append(model(input_ids=job.ids, logits_to_keep=kept)))
        backward = counted(lambda: outputs[0].square().mean().backward())
        model_work.after_backward()
    dfx.set_step(2)
    assert job.told() == {
        "1: flops/forward/float32/actor_update": pytest.approx(forward),
        "1: flops/backward/float32/actor_update": pytest.approx(backward),
    }


def test_a_token_that_is_sampled_attends_to_all_before_it(job):
    model_work.count(job.policy)

    def sample() -> None:
        cache, given = KeyValueCache(4, CONTEXT), job.ids
        for _ in range(4):
            given = job.policy(given, cache)[:, -1:].argmax(-1)

    with dfx.stage("rollout"), torch.no_grad():
        forward = counted(sample)
    dfx.set_step(2)
    assert job.told() == {"1: flops/forward/float32/rollout": pytest.approx(forward, rel=0.02)}


def test_a_model_that_is_not_trained_is_met_in_the_second_visit_of_its_stage(job):
    def step() -> float:
        with dfx.stage("ref_logprob"), torch.no_grad():
            forward = counted(lambda: job.frozen(job.ids))
        with dfx.stage("actor_update"):
            job.policy(job.ids).square().mean().backward()
        return forward

    modules.follow([job.policy])
    for number in range(2, 5):
        forward = step()
        dfx.set_step(number)
    assert job.told()["3: flops/forward/float32/ref_logprob"] == pytest.approx(forward, rel=0.02)
    assert not torch.nn.modules.module._global_forward_pre_hooks
    texts = [job_description.parse_description(text) for text in job.reader.texts(0)]
    models = [
        job_description.parse_model(item.fields)
        for item in texts
        if item and item.kind == job_description.MODEL
    ]
    assert [(m.num_attentions, m.num_trained > 0) for m in models if m] == [(2, True), (2, False)]
    devices = [item.fields for item in texts if item and item.kind == job_description.COMPUTE]
    assert {*devices} == {("cpu", "")}


def test_rows_packed_into_one_are_not_taken_for_one_long_row(job):
    model = torch.nn.Module()
    model.forward = lambda input_ids, **_: input_ids  # type: ignore[assignment]
    model.layer, model.head = job.policy.blocks[0], job.policy.head
    model_work.count(model)
    (known,) = model_work.state.models
    with torch.no_grad():
        model(torch.zeros(1, 100, dtype=torch.int64), position_ids=torch.arange(100)[None])
        model(torch.zeros(1, 100, dtype=torch.int64), cu_seq_lens_q=torch.ones(2), max_length_q=10)
    dfx.set_step(2)
    expected = 200 * known.forward_of_token + 100 * 10 * known.forward_of_pair
    assert job.told() == {"1: flops/forward/float32/": pytest.approx(expected)}


def test_autocast_names_its_type_and_hooks_leave_nothing(job):
    model_work.count(job.policy)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        job.policy(job.ids)
    dfx.set_step(2)
    assert list(job.told()) == ["1: flops/forward/bfloat16/"]
    copy.deepcopy(job.policy)(job.ids)
    torch_hooks.remove()
    assert not job.policy._forward_pre_hooks
    job.policy(job.ids)
    dfx.set_step(3)
    assert job.told() == {}


def test_a_pass_that_only_asks_for_sizes_counts_nothing_and_ends_nothing(job):
    model_work.count(job.policy)
    with dfx.stage("actor_update"), torch.no_grad():
        forward = counted(lambda: job.policy(job.ids))
        job.policy.to("meta")(torch.zeros((3, 5), dtype=torch.int64, device="meta"))
        job.policy.to_empty(device="cpu")
        job.policy(torch.zeros_like(job.ids))
    dfx.set_step(2)
    assert sum(job.told().values()) == pytest.approx(2 * forward, rel=0.02)
    assert job.reader.live_words()[4] == 0


def test_autocast_of_one_pass_is_not_taken_for_the_next(job):
    model_work.count(job.policy)
    with dfx.stage("actor_update"), torch.no_grad():
        for is_on in (True, True, False, False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on):
                job.policy(job.ids)
    dfx.set_step(2)
    by_type = job.told()
    assert by_type["1: flops/forward/bfloat16/actor_update"] == pytest.approx(
        1.5 * by_type["1: flops/forward/float32/actor_update"]
    )
