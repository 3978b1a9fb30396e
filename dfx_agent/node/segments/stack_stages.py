"""The stage that a stack shows, by frames of libraries that everybody uses; else nothing.

A sample says what the main thread does at one instant. It is no time, and never becomes one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dfx_agent.facts.stacks import Frame, ProcessStacks

_COLLECTIVE = r"_?(all_|reduce|broadcast|barrier|gather|scatter|send|recv|irecv|isend|wait)"
# (stage, path, function): the first that any frame fits. Generation runs forward, backward may run
# a collective: so what is around comes before what is inside it, but for collectives.
_KNOWN = tuple(
    (stage, re.compile(path), re.compile(function))
    for stage, path, function in (
        ("communication", r"torch/distributed/distributed_c10d\.py$", _COLLECTIVE),
        ("checkpoint", r"torch/serialization\.py$", r"_?(legacy_)?save"),
        ("checkpoint", r"torch/distributed/checkpoint/", r".*save"),
        ("checkpoint", r"safetensors/torch\.py$", r"save"),
        ("rollout", r"transformers/generation/utils\.py$", r"(generate|_sample|_beam_search)$"),
        ("rollout", r"vllm/.*\.py$", r"(generate|execute_model)$"),
        ("rollout", r"sglang/.*\.py$", r"(generate|forward_batch_generation)$"),
        ("optimizer", r"torch/optim/(?!lr_scheduler)\w+\.py$", r"(step|wrapper|_use_grad)$"),
        ("backward", r"torch/(_tensor|autograd/(__init__|graph))\.py$", r"(_engine_run_)?backward"),
        ("forward", r"torch/nn/modules/module\.py$", r"_(wrapped_)?call_impl$"),
    )
)


def stage_of(stacks: ProcessStacks) -> str:
    """Where the main thread stands, "" when no frame of it is known."""
    frames = stacks.main.frames if stacks.main else ()
    return _stage(frames)


def _stage(frames: Sequence[Frame]) -> str:
    for stage, path, function in _KNOWN:
        if any(function.match(frame.function) and path.search(frame.file) for frame in frames):
            return stage
    return ""
