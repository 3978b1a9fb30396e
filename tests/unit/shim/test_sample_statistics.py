"""Scores and lengths of samples: buckets, sources, deviation and percentiles, against numpy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from ledger_notebook import Notebook  # noqa: E402

from dfx_agent.catalogue import reward  # noqa: E402
from dfx_agent.shim.ledger import join_parts, observe  # noqa: E402
from dfx_agent.shim.recorder import Recorder  # noqa: E402
from dfx_agent.wire import Identity  # noqa: E402
from dfx_agent.wire.records import SCORE_COUNTER, SCORE_EDGES  # noqa: E402


def noted(*batches, boundary: str = "reward") -> Notebook:
    book = Notebook()
    for batch in batches:
        observe(book, boundary, batch)
    assert book.num_errors == 0
    return book


def num_by_edge(book: Notebook, source: str = "") -> dict[str, float]:
    names = {name.split("/", 3)[2]: n for name, n in book.counts.items()
             if name.split("/", 3)[3] == source}  # fmt: skip
    return {edge: n for edge, n in names.items() if "sum" not in edge}


@given(st.lists(st.floats(-2000, 2000, width=32), min_size=1, max_size=50))
def test_every_sample_is_in_one_bucket_and_the_sums_add_up(scores):
    book = noted({"rewards": torch.tensor(scores)})
    edges = np.array([*SCORE_EDGES, np.inf])
    places = np.searchsorted(edges, np.round(np.array(scores, dtype="f8"), 6))
    wanted = {f"{edges[i]:g}".replace("inf", "+Inf"): n
              for i, n in zip(*np.unique(places, return_counts=True), strict=True)}  # fmt: skip
    assert num_by_edge(book) == wanted
    total = book.counts["scores/reward/sum/"] - book.counts["scores/reward/negative_sum/"]
    assert total == pytest.approx(float(np.sum(scores)), abs=1e-3)
    assert all(count >= 0 for count in book.counts.values()), "a counter never falls"


def test_a_score_on_an_edge_belongs_below_it_in_float32_too():
    scores = torch.arange(11, dtype=torch.float32) / 10
    assert num_by_edge(noted({"rewards": scores})) == {f"{n / 10:g}": 1 for n in range(11)}


def test_data_sources_have_their_own_counts_and_their_number_is_bounded():
    by_name = {"rewards": [0.0, 1.0, 1.0], "data_source": ["openai/gsm8k", "math", "math"]}
    book = noted(by_name, {**by_name, "data_source": np.array(["math"] * 3, dtype=object)})
    assert num_by_edge(book, "openai/gsm8k") == {"0": 1}
    assert num_by_edge(book, "math") == {"0": 1, "1": 4}
    many = noted({"rewards": [1.0] * 40, "env": [f"env {n}" for n in range(40)]})
    assert len(num_by_edge(many, "other")) == 1
    assert sum(n for name, n in many.counts.items() if "/1/" in name) == 40
    assert len(many.counts) == 3 * 17


def test_padding_rows_count_nothing():
    rows = {"rewards": [0.0, 1.0, 5.0], "env": ["a", "b", "b"], "is_padding": [False, False, True]}
    book = noted(rows)
    assert (num_by_edge(book, "a"), num_by_edge(book, "b")) == ({"0": 1}, {"1": 1})


def test_a_sample_is_counted_at_the_first_boundary_with_scores_alone():
    book = Notebook()
    for boundary in ("rollout", "reward", "actor_update", "reward"):
        scores = {} if boundary == "rollout" else {"rewards": [1.0]}
        observe(book, boundary, {"sample_id": [1], **scores})
    assert num_by_edge(book) == {"1": 2}
    assert book.score_boundary == "reward"


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ({"token_level_scores": torch.tensor([[0.0, 0.5], [0.0, 1.0]]), "rewards": [9.0, 9.0]},
         {"0.5": 1, "1": 1}),  # summed over tokens, and before those with a penalty
        ({"rewards": torch.ones(2, 3)}, {}),  # rewards of time steps are no scores of samples
        ({"rewards": [float("nan"), 1.0]}, {"1": 1}),
        ({"rewards": []}, {}),
    ],
)  # fmt: skip
def test_which_column_is_the_score(columns, wanted):
    assert num_by_edge(noted({"sample_id": [1, 2], **columns})) == wanted


@given(
    st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=40),
    st.lists(st.integers(0, 9), min_size=1, max_size=40),
)
def test_deviation_and_percentiles_are_those_of_numpy(scores, lengths):
    num = min(len(scores), len(lengths))
    mask = torch.arange(9)[None] < torch.tensor(lengths[:num])[:, None]
    sent = noted({"rewards": torch.tensor(scores[:num]), "response_mask": mask}).sent
    for what, values in (("score", scores[:num]), ("response_length", lengths[:num])):
        assert sent[f"pipeline/{what}/std"] == pytest.approx(np.std(values), abs=1e-5)
        for percent in (10, 50, 90, 99):
            wanted = pytest.approx(np.percentile(values, percent), abs=1e-5)
            assert sent[f"pipeline/{what}/p{percent}"] == wanted


def test_micro_batches_count_as_one_batch():
    parts = [{"rewards": torch.tensor([0.0, 1.0]), "env": ["a", "b"]},
             {"rewards": torch.tensor([1.0]), "env": ["a"]}]  # fmt: skip
    book = noted(join_parts(parts))
    assert (num_by_edge(book, "a"), num_by_edge(book, "b")) == ({"0": 1, "1": 1}, {"1": 1})


def test_the_agent_reads_what_the_guest_writes():
    assert (reward.SCORE_COUNTER, reward.SCORE_EDGES) == (SCORE_COUNTER, SCORE_EDGES)


def test_a_recorder_counts_when_the_step_is_over(dfx_dir, monkeypatch):
    monkeypatch.setenv("DFX_LEDGER_EVERY_STEP", "1")
    recorder = Recorder(str(dfx_dir), Identity(run="r", role="trainer"))
    counted = []
    monkeypatch.setattr(recorder, "count", lambda name, number: counted.append((name, number)))
    recorder.set_step(1)
    observe(recorder, "reward", {"rewards": [1.0, 1.0]})
    assert counted == []
    recorder.set_step(2)
    assert ("scores/reward/1/", 2) in counted
    observe(recorder, "reward", {"rewards": [0.0]})
    recorder.finish()
    assert ("scores/reward/0/", 1) in counted


def test_a_job_without_steps_counts_at_once(dfx_dir, monkeypatch):
    recorder = Recorder(str(dfx_dir), Identity(run="r", role="trainer"))
    counted = []
    monkeypatch.setattr(recorder, "count", lambda name, number: counted.append((name, number)))
    observe(recorder, "reward", {"rewards": [1.0]})
    assert ("scores/reward/1/", 1) in counted
