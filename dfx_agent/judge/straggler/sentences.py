"""Sentences of the straggler verdict."""

from __future__ import annotations

from dfx_agent.base.text import Sentence

FOUND = Sentence(
    "{ranks} {make} the other ranks wait {seconds} in every step ({share}): {cause}.",
    {"ranks": "Rank 2", "make": "makes", "seconds": "0.25 s", "share": "19 %",
     "cause": "slower at equal tokens, in rollout"},
)  # fmt: skip
FOUND_ON_BUSY_HOST = Sentence(
    "{ranks} is slow. It was last in {num_last} of {steps}, and used {more_cpu} more CPU time than "
    "the other ranks: {cause}. This machine has more runnable threads than CPUs, so seconds are "
    "rough.",
    {"ranks": "Rank 2", "num_last": 18, "steps": "20 steps", "more_cpu": "31 %",
     "cause": "slower at equal tokens, in rollout"},
)  # fmt: skip
FOUND_AMONG_PEERS = Sentence(
    "{ranks} {make} other ranks wait {up_to}{seconds} per step ({share}). {worst} is "
    "{excess} slower than its {peers}: {cause}.",
    {"ranks": "Rank 9", "make": "makes", "up_to": "up to ", "seconds": "0.4 s", "share": "21 %",
     "worst": "Rank 9", "excess": "0.5 s", "peers": "3 peers in pipeline stage 2 of 4",
     "cause": "slower, in forward"},
)  # fmt: skip
SLOW_NODE = Sentence(
    "The ranks on {node} are slower than their peers on other nodes. The peers wait {seconds} in "
    "every step ({share}): {cause}.",
    {"node": "node-b", "seconds": "0.5 s", "share": "30 %", "cause": "slower, in forward"},
)
DEVICE_THROTTLED = Sentence(
    "{found} The clocks of {ranks} are held down ({reasons}).",
    {"found": "Rank 2 makes the other ranks wait 0.25 s in every step (19 %): slower at equal "
     "tokens, in forward.", "ranks": "rank 2", "reasons": "power cap"},
)  # fmt: skip

NOTHING = Sentence(
    "No rank delays the others by more than {share} of a step ({seconds}).",
    {"share": "5 %", "seconds": "0.05 s"},
)
NO_SLOW_PEER = Sentence(
    "No rank is slower than its peers by more than {share} of a step ({seconds}).",
    {"share": "5 %", "seconds": "0.05 s"},
)
TOO_NOISY = Sentence(
    "Ranks differ too much from step to step: in {steps} an excess below {share} of a step "
    "({seconds}) is not visible.",
    {"steps": "20 steps", "share": "31 %", "seconds": "0.4 s"},
)
NO_PEERS = Sentence(
    "{num_ranks} ranks have no peer that does the same work, so they cannot be compared.",
    {"num_ranks": 4},
)

BUSY_HOST = Sentence(
    "Cannot tell which rank is slow: this machine has more runnable threads than CPUs. "
    "{ranks} got a CPU {share} of the time it was runnable{others}.",
    {"ranks": "Rank 1", "share": "24 %", "others": ", the other ranks 41 %"},
    action="Run fewer processes on this machine, or give the job its own CPUs.",
)  # fmt: skip
BUSY_FOR_ALL = Sentence(
    "Cannot tell which rank is slow: this machine has more runnable threads than CPUs. "
    "The ranks got a CPU {share} of the time they were runnable.",
    {"share": "24 %"},
    action="Run fewer processes on this machine, or give the job its own CPUs.",
)
WAITED_FOR_CPU = Sentence(
    "Cannot tell whether {ranks} is slow. It takes {excess} of a step longer than the other ranks, "
    "and waits for a CPU for {delayed} of that.",
    {"ranks": "rank 2", "excess": "19 %", "delayed": "80 %"},
    action="Run fewer processes on this machine, or give the job its own CPUs.",
)
SLEPT_ON_BUSY_HOST = Sentence(
    "Cannot tell whether {ranks} is slow. It takes {excess} of a step longer than the other ranks, "
    "mostly asleep. What it waits for may lack a CPU: {why}.",
    {"ranks": "rank 2", "excess": "19 %", "why": "this machine has 9 threads per CPU"},
    action="Run fewer processes on this machine, or give the job its own CPUs.",
)
PAGE_FAULTS = Sentence(
    "Page faults slow {ranks} by {excess} of a step: {num} in every step, on the other ranks "
    "{others}. A usual cause is an allocator that returns memory to the kernel.",
    {"ranks": "rank 1", "excess": "17 %", "num": "2,500", "others": "4"},
    action="Set MALLOC_TRIM_THRESHOLD_=1073741824 and MALLOC_MMAP_THRESHOLD_=33554432 at the next "
    "start, so that glibc no longer returns the memory.",
)
DATA_LOADER = Sentence(
    "The job waits for data: the data loader of {ranks} is empty {share} of a step, and the other "
    "ranks wait for {ranks}. Loaders that are all equally slow look the same.",
    {"ranks": "rank 1", "share": "38 %"},
    action="Give the data loaders more workers, or make loading cheaper.",
)
ALWAYS_LONGER = Sentence(
    "{ranks} always work longer than the other ranks, by {excess}. Their work may differ: the "
    "layout of the job is unknown, so nobody is blamed.",
    {"ranks": "Ranks 2, 3", "excess": "0.4 s per step (30 %)"},
)
TOO_MANY = Sentence(
    "{num_slow} of {num_ranks} ranks work longer than the other ranks. That many faults are "
    "unlikely: their work may differ.",
    {"num_slow": 3, "num_ranks": 8},
)
LATE_AT_TIMES = Sentence(
    "{ranks} delayed the other ranks in {num_late} of {steps}, by {seconds} each time "
    "({average} per step on average). The other steps were normal.",
    {"ranks": "Rank 1", "num_late": 4, "steps": "32 steps", "seconds": "0.4 s",
     "average": "0.05 s"},
)  # fmt: skip
LATE_ONCE = Sentence(
    "{ranks} was delayed by {seconds} in {step}. The other steps were normal.",
    {"ranks": "Rank 1", "seconds": "2.1 s", "step": "step 19"},
)
TOO_FEW_STEPS = Sentence(
    "Too early to judge: {num_steps} seen, {needed} needed.",
    {"num_steps": "2 steps", "needed": "0.75 s of steps are"},
)
ONE_RANK_HERE = Sentence(
    "Only one rank of this role is visible, so it cannot be compared with others.", {}
)
RECORDS_LOST = Sentence(
    "{num_lost} records were lost in the last {num_steps} steps, so waits are incomplete.",
    {"num_lost": 120, "num_steps": 20},
)
FEW_COLLECTIVES = Sentence(
    "Only {share} of the collectives of a rank were recorded, so waits are incomplete.",
    {"share": "30 %"},
)
NO_WAITS = Sentence(
    "Neither collectives nor waits were recorded, so it is unknown which rank waits for which.", {}
)
UNCLEAR_LAYOUT = Sentence(
    "Ranks send to each other, but not as a known kind of pipeline, so it is unknown which ranks "
    "do the same work.", {}
)  # fmt: skip

PARTITION = Sentence(
    "{stage} has {ratio} of the other stages. An even split saves {seconds} per step.",
    {"stage": "Pipeline stage 4 of 4", "ratio": "1.3 times the work", "seconds": "0.22 s"},
)
BATCHES = Sentence(
    "Batches differ: in each step another rank takes longest, by {seconds} ({why}).",
    {"seconds": "0.3 s", "why": "ranks with more tokens work longer"},
)
LONGER_BATCHES = Sentence(
    "{ranks} have longer batches in every pipeline stage, by {seconds} per step.",
    {"ranks": "Ranks 2, 6, 10, 14", "seconds": "0.4 s"},
)
