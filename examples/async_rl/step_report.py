"""The values that the orchestrator reports for a step, under verl's names where verl has one."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from examples.async_rl.groups import Group, Sample
from examples.async_rl.lags import shares
from examples.async_rl.settings import GROUP_SIZE, TOKEN_BUDGET

_ALL = "all"


class StepReport:
    """Collects values from one weight version to the next."""

    def __init__(self) -> None:
        self._errors: Counter[str] = Counter()  # kind of error -> number of aborted samples
        self._num_finished_samples = 0
        self._survivors: list[float] = []  # share of samples that were not aborted, by group
        self._num_trained_groups = 0
        self._num_equal_groups = 0  # groups trained on although their rewards are equal
        self._values: dict[str, float] = {}

    def finished(self, num_samples: int, errors: Sequence[BaseException]) -> None:
        """Count a group that the servers have finished, also if it is dropped later."""
        self._num_finished_samples += num_samples
        self._errors.update(type(error).__name__ for error in errors)
        self._survivors.append(num_samples / (num_samples + len(errors)))

    def batch(self, groups: Sequence[Group], version: int) -> None:
        """Count the groups that the learner trains on, with weights of ``version``."""
        samples = [sample for group in groups for sample in group.samples]
        self._num_trained_groups += len(groups)
        self._num_equal_groups += sum(not group.has_advantage for group in groups)
        self._lags(groups, samples, version)
        now = time.monotonic()
        self._add("pipeline/queue_seconds/groups", [now - group.queued_seconds for group in groups])
        self._add("pipeline/groups/age_seconds", [now - group.begun_seconds for group in groups])
        self._values |= _partial(samples)
        self._add("num_turns", [sample.num_turns for sample in samples])
        self._add("timing_s/agent_loop/generate_sequences", [s.generation_seconds for s in samples])
        self._add("timing_s/agent_loop/tool_calls", [s.tool_seconds for s in samples])
        self._add("timing_s/agent_loop/compute_score", [s.scoring_seconds for s in samples])
        self._of_environments(groups)

    def values(
        self, queue_depth: int, dropped: Counter[str], evicted: Counter[int], num_stale: int
    ) -> dict[str, float]:
        """All values of the step, with drops and evictions; ``num_stale`` is of the full run."""
        num_errors = self._errors.total()
        num_asked = self._num_finished_samples + num_errors
        by_kind = {f"pipeline/errors/{kind}": number for kind, number in self._errors.items()}
        if evicted:
            lags = list(evicted.elements())
            self._add("training/off_policy/evicted_samples_staleness", lags)
        if self._survivors:
            self._add("pipeline/groups/survivors", self._survivors)
        return (
            self._values
            | by_kind
            | self._shares_of_groups(dropped, evicted)
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

    def _lags(self, groups: Sequence[Group], samples: Sequence[Sample], version: int) -> None:
        oldest = [version - min(sample.versions) for sample in samples]
        latest = [version - max(sample.versions) for sample in samples]
        self._add("training/off_policy/trajectory_staleness_worst", oldest)
        self._add("training/off_policy/trajectory_staleness", latest)
        for name, lags in {"oldest": oldest, "newest": latest}.items():
            for bucket, share in shares(lags).items():
                self._values[f"pipeline/lag/{name}/share/{bucket}"] = share
        finished = [(group.lag(group.finished_version), group) for group in groups]
        self._add("pipeline/lag/in_flight", [lag for lag, _ in finished])
        self._add("pipeline/lag/in_queue", [group.lag(version) - lag for lag, group in finished])

    def _shares_of_groups(self, dropped: Counter[str], evicted: Counter[int]) -> dict[str, float]:
        """Shares of groups; a share without any group is left out."""
        shares_of_groups: dict[str, float] = {
            "pipeline/stale/dropped": dropped["stale"] * GROUP_SIZE,
            "pipeline/stale/evicted": evicted.total() * GROUP_SIZE,
        }
        num_stale = dropped["stale"] + evicted.total()
        if num_offered := num_stale + self._num_trained_groups:
            shares_of_groups["pipeline/stale/ratio"] = num_stale / num_offered
        num_equal = dropped["zero_advantage"] + self._num_equal_groups
        if num_scored := dropped["zero_advantage"] + self._num_trained_groups:
            shares_of_groups["pipeline/groups/zero_advantage"] = num_equal / num_scored
        return shares_of_groups

    def _of_environments(self, groups: Sequence[Group]) -> None:
        by_environment: dict[str, list[Sample]] = defaultdict(list)
        for group in groups:
            for environment in (_ALL, group.environment):
                by_environment[environment].extend(group.samples)
        for environment, samples in by_environment.items():
            for name, values in _of_environment(environment, samples).items():
                self._values |= {
                    f"{name}/mean": fmean(values),
                    f"{name}/std": pstdev(values),
                    f"{name}/max": max(values),
                }

    def _add(self, name: str, values: Iterable[float]) -> None:
        all_values = list(values)
        self._values |= {
            f"{name}/mean": fmean(all_values),
            f"{name}/max": max(all_values),
            f"{name}/min": min(all_values),
        }


def _of_environment(name: str, samples: Sequence[Sample]) -> Mapping[str, list[float]]:
    part = f"pipeline/turn_seconds/{name}"
    return {
        f"pipeline/reward/{name}": [s.reward for s in samples],
        f"pipeline/turns/{name}": [float(s.num_turns) for s in samples],
        f"{part}/generation": [s.generation_seconds / s.num_turns for s in samples],
        f"{part}/tool": [s.tool_seconds / s.num_turns for s in samples],
        f"{part}/scoring": [s.scoring_seconds / s.num_turns for s in samples],
    }


def _partial(samples: Sequence[Sample]) -> dict[str, float]:
    """Metrics of partial rollouts: a request ends with an end token or at the token budget."""
    partial = [sample for sample in samples if sample.is_partial]
    num_resumed = sum(sample.num_resumed for sample in samples)
    num_hits = num_resumed + sum(sample.is_truncated for sample in samples)
    spans = [sample.versions[-1] - sample.versions[0] for sample in samples]
    return {
        "fully_async/partial/partial_ratio": len(partial) / len(samples),
        "fully_async/partial/total_partial_num": len(partial),
        "fully_async/partial/max_partial_span": max(spans),
        "pipeline/partial/budget_tokens": TOKEN_BUDGET,
        "pipeline/partial/budget_hits": num_hits,
        "pipeline/partial/budget_hit_ratio": num_hits / (len(samples) + num_resumed),
        "pipeline/partial/resumed": sum(sample.num_resumed > 0 for sample in samples),
        "pipeline/partial/regenerated_tokens": sum(
            max(0, len(sample.tokens) - TOKEN_BUDGET) for sample in samples
        ),
    }
