"""The shape ledger of the guest: what a batch says, and that no batch breaks the job."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from ledger_notebook import Fields, Notebook  # noqa: E402

from dfx_agent.shim.ledger import join_parts, observe  # noqa: E402
from dfx_agent.shim.recorder import Recorder  # noqa: E402
from dfx_agent.wire import Identity  # noqa: E402
from dfx_agent.wire.records import LEDGER, NO_STEP  # noqa: E402


def seen(batch, **known) -> Fields:
    book = Notebook()
    observe(book, "reward", batch, **known)
    assert book.num_errors == 0
    return book.fields()


def a_batch(num_rows: int = 8, width: int = 6) -> dict:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.arange(num_rows) % width + 1
    mask = torch.arange(width)[None] < lengths[:, None]
    return {
        "sample_id": torch.arange(num_rows) + 100,
        "uid": [f"prompt-{row // 2}" for row in range(num_rows)],
        "response_mask": mask,
        "old_log_probs": torch.randn(num_rows, width, generator=generator),
        "rewards": torch.randn(num_rows, generator=generator),
    }


def in_order(batch: Mapping, order: list[int]) -> dict:
    return {
        name: [value[row] for row in order] if isinstance(value, list) else value[order]
        for name, value in batch.items()
    }


def test_what_one_crossing_says():
    book = Notebook()
    observe(book, "a/b", a_batch(), groups=None)
    kinds = {record[7] for record in book.records}
    steps, batches, counts = ({record[i] for record in book.records} for i in (3, 4, 5))
    assert (kinds, steps, counts) == ({LEDGER}, {7}, {len(book.records)})
    assert len(batches) == 1
    assert all(name.startswith("a.b/") for name in book.names[1:])
    fields = book.fields()
    assert fields["num_rows", ""] == 8
    assert fields["mask_sum", "response_mask"] == int(a_batch()["response_mask"].sum())
    assert fields["mask_size", "response_mask"] == 48
    assert fields["num_groups", "uid"] == 4
    assert fields["smallest_group", "uid"] == fields["largest_group", "uid"] == 2
    assert fields["num_nonfinite", "old_log_probs"] == 0
    assert fields["num_misaligned", "old_log_probs"] == 0
    assert all(value == int(value) and 0 <= value < 2**53 for value in fields.values())


@given(st.permutations(range(8)))
def test_another_order_changes_the_order_hash_and_nothing_else(order):
    before, after = seen(a_batch()), seen(in_order(a_batch(), order))
    changed = {name for name in before if before[name] != after[name]}
    assert before.keys() == after.keys()
    assert changed == ({("order", "sample_id")} if order != sorted(order) else set())


@given(st.permutations(range(8)), st.sampled_from(["rewards", "old_log_probs", "response_mask"]))
def test_rows_that_moved_to_other_samples_are_seen(order, name):
    batch = a_batch()
    moved = in_order({name: batch[name]}, order)
    before, after = seen(batch), seen({**batch, **moved})
    assert before["values", name] == after["values", name]
    is_same = bool((moved[name].double().sum(-1) == batch[name].double().sum(-1)).all())
    if name == "rewards":
        is_same = bool((moved[name] == batch[name]).all())
    assert (before["aligned", name] == after["aligned", name]) == is_same


@given(st.integers(0, 7), st.integers(0, 2**40))
def test_an_id_that_changed_is_seen(row, new):
    batch, other = a_batch(), a_batch()
    other["sample_id"][row] = new
    key = ("multiset", "sample_id")
    assert (seen(batch)[key] == seen(other)[key]) == (new == batch["sample_id"][row])


@given(st.integers(1, 50), st.integers(0, 50))
def test_two_ids_whose_changes_cancel_are_seen(change, apart):
    batch, other = a_batch(), a_batch()
    batch["sample_id"][7] = 200 + apart
    other["sample_id"][7] = 200 + apart + change
    other["sample_id"][0] -= change
    key = ("multiset", "sample_id")
    assert seen(batch)[key] != seen(other)[key]


def test_objects_of_the_job_are_not_asked_for_their_text():
    class Picture:
        def __str__(self):
            raise AssertionError("asked")

        __repr__ = __str__

    objects = np.array([{"pixels": Picture()}, {"pixels": Picture()}], dtype=object)
    chats = [[{"content": Picture()}], [{"content": Picture()}]]
    batch = {"multi_modal_inputs": objects, "raw_prompt": chats, "plain": [Picture()] * 2}
    fields = seen(batch)
    assert fields["num_rows", ""] == 2
    assert fields["num_unread", ""] == 0
    for name in ("multi_modal_inputs", "raw_prompt", "plain"):
        assert fields["num_sampled", name] == 0
        assert ("values", name) not in fields


def test_metadata_of_a_tensordict_is_no_column():
    """verl's workers are told the lengths of all samples so; it looks like a list for each row."""

    class NonTensorData:
        dtype, ndim, shape, is_nested = None, 1, (2,), False
        device, data = torch.device("cpu"), [3, 5]

        def __getitem__(self, _rows):
            return self

        def sum(self, _axes):
            raise AssertionError("nobody asks it")

        def tolist(self):
            return [[3, 5], [3, 5]]

    reported = {"responses": torch.ones(2, 3), "global_token_num": NonTensorData()}
    assert seen(reported) == seen({"responses": torch.ones(2, 3)})


def test_of_a_long_text_the_begin_and_the_length_count():
    def values(text):
        return seen({"uid": ["a", "b"], "text": [text, "y"]})["values", "text"]

    long = "x" * 100_000
    assert values(long + "a") == values(long + "b")  # bounded: it is read at every crossing
    assert values(long) != values(long + "x")
    assert values("a" + long) != values("b" + long)


@given(st.integers(0, 7), st.text(max_size=12))
def test_a_text_id_that_changed_is_seen(row, new):
    other = a_batch()
    is_same = other["uid"][row] == new
    other["uid"][row] = new
    assert (seen(a_batch())["multiset", "uid"] == seen(other)["multiset", "uid"]) == is_same


@given(st.integers(0, 7), st.integers(0, 5))
def test_a_mask_that_changed_is_seen(row, column):
    other = a_batch()
    other["response_mask"][row, column] ^= True
    assert seen(a_batch())["mask_sum", "response_mask"] != seen(other)["mask_sum", "response_mask"]


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(["float32", "bfloat16", "int64"]))
def test_shapes_and_types_are_seen(num_rows, width, dtype):
    usual = {"rewards": torch.zeros(4, 6)}
    other = {"rewards": torch.zeros(num_rows, width, dtype=getattr(torch, dtype))}
    same_shape = (num_rows, width) == (4, 6)
    before, after = seen(usual), seen(other)
    assert (before["shapes", ""] == after["shapes", ""]) == same_shape
    assert (before["schema", ""] == after["schema", ""]) == (dtype == "float32")


@given(st.sets(st.integers(0, 7)), st.sampled_from([float("nan"), float("inf"), -float("inf")]))
def test_samples_that_are_not_finite_are_counted(rows, value):
    batch = a_batch()
    for row in rows:
        batch["old_log_probs"][row, row % 6] = value
    assert seen(batch)["num_nonfinite", "old_log_probs"] == len(rows)
    as_lists = {"old_log_probs": batch["old_log_probs"].tolist()}
    assert seen(as_lists)["num_nonfinite", "old_log_probs"] == len(rows)


@pytest.mark.parametrize(
    ("changes", "column", "num_wrong"),
    [
        ({"old_log_probs": torch.zeros(8, 5)}, "old_log_probs", 0),  # ROLL: S - 1 everywhere
        ({"old_log_probs": torch.zeros(8, 4)}, "old_log_probs", 8),
        ({"old_log_probs": torch.zeros(8, 5), "advantages": torch.zeros(8, 6)}, "old_log_probs", 8),
        ({"old_log_probs": torch.zeros(7, 6)}, "old_log_probs", 8),
        ({"rewards": torch.zeros(6)}, "rewards", 8),
        ({"response_length": [6] * 8}, "response_mask", 0),
        ({"response_length": [3] * 8}, "response_mask", 3),
        ({"attention_mask": torch.ones(8, 16)}, "response_mask", 0),
        ({"attention_mask": torch.ones(8, 16).tril(9)}, "response_mask", 6),
    ],
)
def test_lengths_that_do_not_fit_the_mask(changes, column, num_wrong):
    assert seen({**a_batch(), **changes})["num_misaligned", column] == num_wrong


def test_lists_of_different_lengths_are_compared_row_by_row():
    samples = [
        {"index": row, "loss_mask": [1] * (row + 1), "rollout_log_probs": [-0.5] * (row + 1)}
        for row in range(5)
    ]
    assert seen(samples)["num_misaligned", "rollout_log_probs"] == 0
    assert seen(samples)["mask_sum", "loss_mask"] == 15
    samples[3]["rollout_log_probs"].pop()
    assert seen(samples)["num_misaligned", "rollout_log_probs"] == 1


@dataclass
class Experience:
    action_mask: object
    action_log_probs: object
    info: dict
    name: str = "not a column"


def test_every_kind_of_batch():
    tensors = {name: v for name, v in a_batch().items() if name != "uid"}
    uids = np.array(a_batch()["uid"], dtype=object)
    proto = SimpleNamespace(batch=tensors, non_tensor_batch={"uid": uids}, meta_info={})
    assert seen(proto) == seen(a_batch())
    arrays = {n: v if isinstance(v, list) else v.numpy() for n, v in a_batch().items()}
    assert {k: v for k, v in seen(arrays).items() if k[0] != "schema"}.keys() == (
        seen(a_batch()).keys() - {("schema", "")}
    )
    record = Experience(torch.ones(2, 3), torch.zeros(2, 3), {"reward": torch.zeros(2)})
    fields = seen(record)
    assert fields["mask_sum", "action_mask"] == 6
    assert fields["num_nonfinite", "info.reward"] == 0
    assert seen([torch.ones(3), torch.ones(2)])["num_rows", ""] == 2
    assert seen([[1, 2], [3]])["num_rows", ""] == 2
    assert seen(torch.ones(3, 2))["num_rows", ""] == 3
    assert seen({})["num_rows", ""] == 0
    ids = seen({"rewards": torch.zeros(4)}, ids=range(4), groups=[1, 1, 1, 2])
    assert ids["largest_group", "group_ids"] == 3


def test_jagged_tensors_and_padding_rows_of_verl():
    rows = [torch.ones(n) for n in (2, 3, 1)]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    fields = seen({"response_mask": jagged, "old_log_probs": jagged, "uid": ["a", "b", "pad"]})
    if torch.__version__.startswith("2.4."):  # adds up no jagged tensor: told, not raised
        assert fields["num_unread", ""] == 2
        return
    assert fields["mask_size", "response_mask"] == fields["mask_sum", "response_mask"] == 6
    padded = {"is_padding": [False, False, True], "response_mask": jagged, "uid": ["a", "b", "pad"]}
    whole = {
        "response_mask": torch.nested.nested_tensor(rows[:2], layout=torch.jagged),
        "uid": ["a", "b"],
    }
    stored, right = seen(padded), seen(whole)
    for key in (("num_rows", ""), ("multiset", "uid"), ("mask_sum", "response_mask")):
        assert stored[key] == right[key]


def test_large_columns_are_sampled_and_the_sample_is_counted():
    batch = {**a_batch(), "values": torch.zeros(8, 1 << 18), "item": [[1] * 70_000] * 8}
    fields = seen(batch)
    assert fields["num_sampled", "values"] == 3
    assert 0 < fields["num_sampled", "item"] < 8
    assert ("aligned", "values") not in fields
    many = {f"column {i}": torch.zeros(2) for i in range(70)}
    assert seen(many)["num_unread", ""] > 0
    assert seen({"item": [0] * 5000})["num_unread", ""] == 1


class Hostile(Mapping):
    """Everything that is asked of it fails."""

    def __getitem__(self, name):
        raise RuntimeError(name)

    def __iter__(self) -> Iterator:
        raise RuntimeError("iter")

    def __len__(self) -> int:
        raise RuntimeError("len")


class HostileArray:
    dtype = "float32"
    ndim = 2

    @property
    def shape(self):
        raise RuntimeError("shape")


def hostile_batches():
    endless: list = []
    endless.append(endless)
    return [
        None, 3, "text", b"bytes", object(), Hostile(), HostileArray(), endless,
        {"a": HostileArray(), "b": Hostile()}, {"a": [1, "x", None, {}]}, {None: [None]},
        {"response_mask": [[object()]]}, {"uid": [float("nan")] * 3}, {"rewards": []},
        {"sample_id": [10**400]}, torch.zeros(0, 3), torch.tensor(1.0), {"x" * 5000: [1]},
        {"response_mask": torch.zeros(2, 3), "attention_mask": [1, 2]},
        {"a": torch.zeros(2, device="meta")}, SimpleNamespace(batch=None, non_tensor_batch=None),
    ]  # fmt: skip


@pytest.mark.parametrize("batch", hostile_batches(), ids=lambda batch: type(batch).__name__)
def test_no_batch_raises(batch):
    observe(Notebook(), "rollout", batch)


def test_a_column_that_cannot_be_read_hides_no_other():
    fields = seen({"bad": HostileArray(), **a_batch()})
    assert fields["num_unread", ""] == 1
    assert fields["num_rows", ""] == 8


def test_the_batch_and_the_random_state_stay_as_they_were():
    batch = a_batch()
    batch["rewards"].requires_grad_()
    copies = {name: v if isinstance(v, list) else v.clone() for name, v in batch.items()}
    states = torch.get_rng_state(), random.getstate()
    seen(batch)
    assert all(batch[n] == v if isinstance(v, list) else torch.equal(batch[n], v)
               for n, v in copies.items())  # fmt: skip
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


class OnDevice:
    """A tensor that says it lives on a device: reading its values would wait."""

    def __init__(self, value) -> None:
        self.value = value
        self.device = SimpleNamespace(type="cuda")
        self.dtype, self.ndim, self.shape = value.dtype, value.ndim, value.shape

    def __len__(self) -> int:
        return len(self.value)

    def detach(self):
        return self

    def is_floating_point(self) -> bool:
        return self.value.is_floating_point()

    def element_size(self) -> int:
        return self.value.element_size()

    def sum(self, axes, dtype=None):
        return OnDevice(self.value.sum(axes, dtype=dtype))

    def double(self):
        return OnDevice(self.value.double())

    def __getitem__(self, key):
        return OnDevice(self.value[key])

    def tolist(self):
        raise AssertionError("this would wait for the device")


def test_a_device_tensor_is_read_when_it_has_arrived(monkeypatch):
    monkeypatch.setattr(torch, "cat", lambda sums: [item.value for item in sums])
    batch = {**a_batch(), "attention_mask": torch.ones(8, 16)}
    on_device = {n: v if isinstance(v, list) else OnDevice(v) for n, v in batch.items()}
    book = Notebook()
    observe(book, "reward", on_device)
    assert (book.num_errors, book.records) == (0, [])
    ((sums, take),) = book.pending
    monkeypatch.undo()
    take(torch.cat(sums))
    assert book.num_errors == 0
    assert book.fields() == seen(batch)


def parts_of(batch: dict, cuts: list[int]) -> list[dict]:
    ends = [*cuts, len(batch["uid"])]
    return [
        {name: column[begin:end] for name, column in batch.items()}
        for begin, end in zip([0, *cuts], ends, strict=True)
    ]


@pytest.mark.parametrize("cuts", [[], [3], [1, 2, 7]])
def test_micro_batches_say_what_their_whole_batch_says(cuts):
    batch = a_batch()
    whole, parts = seen(batch), seen(join_parts(parts_of(batch, cuts)))
    assert {**parts, ("shapes", ""): 0} == {**whole, ("shapes", ""): 0}  # padded part by part


def test_parts_of_other_widths_are_compared_part_by_part():
    def part(width, log_probs):
        return {"action_mask": torch.ones(2, width), "old_log_probs": torch.zeros(2, log_probs)}

    fields = seen(join_parts([part(3, 3), part(5, 5)]))
    assert fields["num_misaligned", "old_log_probs"] == 0
    assert fields["mask_sum", "action_mask"] == fields["mask_size", "action_mask"] == 16
    assert seen(join_parts([part(3, 5), part(5, 5)]))["num_misaligned", "old_log_probs"] == 2


def test_a_column_that_some_parts_lack_is_counted_and_one_that_all_lack_is_absent():
    parts = [{"rewards": torch.zeros(2), "values": None, "kl": None} for _ in range(2)]
    parts[1]["kl"] = torch.zeros(2)
    fields = seen(join_parts(parts))
    assert fields["num_unread", ""] == 1
    assert not [key for key in fields if key[1] in {"values", "kl"}]


def test_many_and_large_parts_are_bounded():
    large = [{"values": torch.zeros(1, 1 << 15)} for _ in range(128)]
    fields = seen(join_parts(large))
    assert fields["num_rows", ""] == 128
    assert 20 <= fields["num_sampled", "values"] <= 32
    assert ("aligned", "values") not in fields
    assert seen(join_parts([{"values": torch.zeros(1)}] * 5000))["num_unread", ""] == 1


def recorder_with_steps_of(dfx_dir, monkeypatch, step_seconds: float) -> Recorder:
    """After forty steps of this length, with the environment as it is now."""
    now = [1_000_000_000]
    monkeypatch.setattr("dfx_agent.shim.recorder._now", lambda: now[0])
    recorder = Recorder(str(dfx_dir), Identity(run="r", rank=0))
    for step in range(40):
        recorder.begin_step(step)
        now[0] += int(step_seconds * 1e9)
    return recorder


@pytest.mark.parametrize(
    ("step_seconds", "stride"), [(2.0, 1), (0.3, 1), (0.251, 1), (0.2, 2), (0.083, 4), (0.005, 64)]
)
def test_batches_of_short_steps_are_looked_at_a_few_times_a_second(
    dfx_dir, monkeypatch, step_seconds, stride
):
    monkeypatch.delenv("DFX_LEDGER_EVERY_STEP")
    recorder = recorder_with_steps_of(dfx_dir, monkeypatch, step_seconds)
    looked_at = [step for step in range(100, 300) if recorder.inspects_batches(step)]
    assert looked_at == [step for step in range(100, 300) if step % stride == 0]
    assert recorder.inspects_batches(NO_STEP), "outside of any step each is looked at"
    monkeypatch.setenv("DFX_LEDGER_EVERY_STEP", "1")
    assert recorder_with_steps_of(dfx_dir, monkeypatch, step_seconds).inspects_batches(101)


def test_a_crossing_that_is_left_out_says_so_in_one_record(monkeypatch):
    book = Notebook()
    monkeypatch.setattr(Notebook, "inspects_batches", lambda _book, step: step != 7)
    observe(book, "a/b", a_batch())
    assert book.fields() == {("is_left_out", ""): 1.0}
    assert [record[5] for record in book.records] == [1], "one record in all"


def test_boundaries_without_end_leave_no_memory_behind():
    book = Notebook()
    book.name_id = lambda _name: 0  # the table of names is full
    observe(book, "boundary", {"rewards": torch.zeros(2)})
    assert book.ledger_names == {}
