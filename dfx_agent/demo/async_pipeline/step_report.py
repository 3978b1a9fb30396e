"""What the orchestrator tells of a step: verl's names, and prime-rl's for one environment."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev

from dfx_agent.demo.async_pipeline.groups import Group, Sample

_ALL = "all"


class StepReport:
    """Collects from one weight version to the next."""

    def __init__(self) -> None:
        self._errors: Counter[str] = Counter()  # what kind of error -> samples given up
        self._num_finished_samples = 0
        self._values: dict[str, float] = {}

    def finished(self, num_samples: int, errors: Iterable[BaseException]) -> None:
        """A group has come back from the servers, whatever becomes of it."""
        self._num_finished_samples += num_samples
        self._errors.update(type(error).__name__ for error in errors)

    def batch(self, groups: Sequence[Group], version: int) -> None:
        """What the learner trains on in this step, with weights of ``version``."""
        samples = [sample for group in groups for sample in group.samples]
        now = time.monotonic()
        self._add(
            "training/off_policy/trajectory_staleness_worst", _lags(samples, version, oldest=True)
        )
        self._add("training/off_policy/trajectory_staleness", _lags(samples, version, oldest=False))
        finished = [(group.lag(group.finished_version), group) for group in groups]
        self._add("off_policy/in_flight", [lag for lag, _ in finished])
        self._add("off_policy/in_queue", [group.lag(version) - lag for lag, group in finished])
        self._add("queue/seconds", [now - group.queued_seconds for group in groups])
        partial = [sample for sample in samples if sample.is_partial]
        self._values |= {
            "fully_async/partial/partial_ratio": len(partial) / len(samples),
            "fully_async/partial/total_partial_num": len(partial),
            "fully_async/partial/max_partial_span": max(
                sample.versions[-1] - sample.versions[0] for sample in samples
            ),
            "partial/resumed": sum(sample.num_resumed for sample in samples),
        }
        self._add("num_turns", [sample.num_turns for sample in samples])
        self._add("timing_s/agent_loop/generate_sequences", [s.generation_seconds for s in samples])
        self._add("timing_s/agent_loop/tool_calls", [s.tool_seconds for s in samples])
        self._add("timing_s/agent_loop/compute_score", [s.scoring_seconds for s in samples])
        self._of_environments(groups)

    def values(
        self, queue_depth: int, dropped: Counter[str], evicted: Counter[int], num_stale: int
    ) -> dict[str, float]:
        """All of the step, with what it ``dropped`` and ``evicted``; ``num_stale``: of the run."""
        num_errors = self._errors.total()
        num_asked = self._num_finished_samples + num_errors
        by_kind = {f"errors/{kind}": number for kind, number in self._errors.items()}
        if evicted:
            lags = list(evicted.elements())
            self._add("training/off_policy/evicted_samples_staleness", lags)
        return (
            self._values
            | by_kind
            | {
                "fully_async/monitor/queue/mq_queue_size": queue_depth,
                "fully_async/count/dropped_stale_samples": num_stale,
                "training/off_policy/evicted_samples": dropped["stale"] + evicted.total(),
                "training/filter_groups/evicted_samples": dropped["zero_advantage"],
                "training/rollout_failure/evicted_samples": dropped["error"],
                "fully_async/rollouter/step_generated_samples": self._num_finished_samples,
                "response/aborted_ratio": num_errors / num_asked if num_asked else 0.0,
            }
        )

    def _of_environments(self, groups: Sequence[Group]) -> None:
        by_environment: dict[str, list[Sample]] = defaultdict(list)
        for group in groups:
            for environment in (_ALL, group.environment):
                by_environment[environment].extend(group.samples)
        for environment, samples in by_environment.items():
            told: dict[str, list[float]] = {
                f"reward/{environment}": [sample.reward for sample in samples],
                f"num_turns/{environment}": [sample.num_turns for sample in samples],
            }
            # of one turn, of one call and of one sample
            timing = f"timing/{environment}"
            told[f"{timing}/generation"] = [s.generation_seconds / s.num_turns for s in samples]
            calls = [s for s in samples if s.num_turns > 1]
            if calls:
                told[f"{timing}/tool"] = [s.tool_seconds / (s.num_turns - 1) for s in calls]
            told[f"{timing}/scoring"] = [s.scoring_seconds for s in samples]
            for name, values in told.items():
                self._values |= {
                    f"{name}/mean": fmean(values),
                    f"{name}/std": pstdev(values),
                    f"{name}/max": max(values),
                }

    def _add(self, name: str, values: Iterable[float]) -> None:
        known = list(values)
        self._values |= {
            f"{name}/mean": fmean(known),
            f"{name}/max": max(known),
            f"{name}/min": min(known),
        }


def _lags(samples: Sequence[Sample], version: int, *, oldest: bool) -> list[int]:
    pick = min if oldest else max
    return [version - pick(sample.versions) for sample in samples]
