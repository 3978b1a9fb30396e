"""Spreads, those who stand out, and a framework's idle ratio against what the engines show."""

from dataclasses import replace

import pytest

from dfx_agent.job.engine_pool import IdleCheck, pool_of
from dfx_agent.snapshot import EngineFacts, Latency, Moments, ScalarRow

TTFT = "time_to_first_token_seconds"


def engine(replica, state="up", waiting=0.0, ttft=0.1, num=100.0, busy=(0.0, 0.0), **known):
    gauges = {"waiting_requests": waiting, "running_requests": 1.0}
    return EngineFacts(
        replica, "", f"http://127.0.0.1:800{replica}/metrics", state, 1.0, "vllm",
        gauges=gauges, latencies={TTFT: Latency(num, ttft, ttft, 2 * ttft)},
        busy_seconds=busy[0], observed_seconds=busy[1], **known,
    )  # fmt: skip


def notes(*replicas):
    return pool_of(replicas).notes


def test_no_engines_no_pool():
    assert pool_of(()) is None


def test_the_spread_is_of_those_that_are_up():
    pool = pool_of([engine("0", waiting=1.0), engine("1", waiting=4.0), engine("2", waiting=9.0),
                    engine("3", "gone", waiting=99.0)])  # fmt: skip
    spread = pool.spreads["waiting_requests"]
    assert (spread.min, spread.median, spread.max, spread.num) == (1.0, 4.0, 9.0, 3)
    assert pool.spreads[f"{TTFT}_p99"].max == 0.2


def test_one_that_is_not_up_is_reported_with_its_reason():
    (note,) = notes(engine("0"), engine("1", "gone", reason="no answer"))
    assert (note.kind, note.replica) == ("not up", "1")
    assert note.sentence == "replica 1 (http://127.0.0.1:8001/metrics) is gone: no answer"


def test_similar_engines_have_no_finding():
    assert notes(engine("0", waiting=7.0, ttft=0.11), engine("1", waiting=5.0)) == ()
    assert notes(engine("0", waiting=900.0, ttft=9.0)) == ()  # nobody to compare with


def test_of_two_one_with_nine_times_the_queue_stands_out():
    (note,) = notes(engine("0", waiting=90.0), engine("1", waiting=10.0))
    assert (note.kind, note.replica, note.quantity) == ("outlier", "0", "waiting_requests")
    assert (note.value, note.reference) == (90.0, 10.0)
    assert note.sentence == "replica 0 has 90 requests waiting, the median of the others 10"


def test_a_few_more_requests_from_none_are_no_outlier():
    assert notes(engine("0", waiting=7.0), engine("1"), engine("2")) == ()


def test_a_slow_engine_is_found_by_its_latency_with_enough_requests():
    others = [engine("1"), engine("2"), engine("3")]
    (note,) = notes(engine("0", ttft=1.5), *others)
    assert (note.quantity, note.value, note.reference) == (TTFT, 1.5, 0.1)
    assert "time to first token 1.5 s (p50), the median of the others 0.1 s" in note.sentence
    assert notes(engine("0", ttft=1.5, num=19.0), *others) == ()
    assert notes(engine("0", ttft=0.13), engine("1", ttft=0.01)) != ()
    assert notes(engine("0", ttft=0.04), engine("1", ttft=0.01)) == ()  # too short to matter


def test_a_few_milliseconds_between_tokens_matter():
    def of(replica, seconds):
        reported = {"inter_token_latency_seconds": Latency(99.0, seconds, seconds, seconds)}
        return replace(engine(replica), latencies=reported)

    (note,) = notes(of("0", 0.04), of("1", 0.01))
    assert (note.quantity, note.value) == ("inter_token_latency_seconds", 0.04)
    assert notes(of("0", 0.004), of("1", 0.001)) == ()


def test_prefill_is_not_compared_with_decode():
    assert notes(engine("0", ttft=2.0, pd="prefill"), engine("1", pd="decode")) == ()


def told(ratio, step, side="rollout"):
    key = "fully_async/rollouter/idle_ratio"
    return ScalarRow(
        key, "dfx_pipeline_idle_ratio", {"side": side}, step, 9.0, Moments.of_value(ratio)
    )


def judged(ratio, *busy_shares, steps=(4, 5), seconds=30.0, side="rollout"):
    """Engines that were so busy between the ratios of two steps."""
    check = IdleCheck()
    before = [engine(str(i), busy=(50.0, 100.0)) for i in range(len(busy_shares))]
    after = [
        engine(str(i), busy=(50.0 + share * seconds, 100.0 + seconds))
        for i, share in enumerate(busy_shares)
    ]
    assert check.observe(before, [told(0.5, steps[0], side)]) == ()
    return check.observe(after, [told(ratio, steps[1], side)])


def test_a_ratio_that_the_engines_bear_out_is_no_contradiction():
    assert judged(0.1, 0.95, 0.85) == ()
    assert judged(0.4, 0.2, 0.9) == ()  # one less, one more


def test_near_zero_idle_with_idle_engines_is_a_contradiction():
    (note,) = judged(0.02, 0.25, 0.35)
    assert (note.kind, note.quantity, note.replica) == (
        "contradiction", "dfx_pipeline_idle_ratio", "",
    )  # fmt: skip
    assert (note.value, note.reference) == (pytest.approx(0.35), pytest.approx(0.98))
    assert note.sentence == (
        "fully_async/rollouter/idle_ratio says that the rollout side was idle 2% of step 5, "
        "but its engines had requests in 25% to 35% of that time"
    )


def test_much_idle_with_busy_engines_is_one_too():
    (note,) = judged(0.9, 0.99)
    assert "idle 90% of step 5, but its engines had requests in 99% of that time" in note.sentence


@pytest.mark.parametrize(
    "known", [{"steps": (4, 6)}, {"seconds": 9.0}, {"side": "trainer"}, {"steps": (5, 5)}]
)
def test_what_cannot_be_compared_is_not_judged(known):
    assert judged(0.02, 0.25, **known) == ()
