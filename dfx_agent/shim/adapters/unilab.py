"""UniLab in the package ``unilab`` (1.5), which contains ``uni_rl``: see ``_unilab``."""

from __future__ import annotations

from dfx_agent.shim.adapters import Parts, _unilab

FRAMEWORK = "unilab"

_RUNTIME, _ALGOS = "unilab.rl.runtime", "unilab.rl.algos"

PARTS: Parts = {
    "offpolicy_logger": ("unilab.rl.logging.offpolicy", _unilab.patch_logger("OffPolicyLogger")),
    "onpolicy_logger": ("unilab.rl.logging.onpolicy", _unilab.patch_logger("OnPolicyLogger")),
    "runner": (f"{_RUNTIME}.offpolicy.double_buffer_runner", _unilab.patch_runner),
    "dp_sync": (f"{_RUNTIME}.distributed.sync", _unilab.patch_dp_sync),
    "pipeline": (
        f"{_RUNTIME}.ipc.replay_pipelines.device",
        _unilab.patch_pipeline("DeviceReplayPipeline"),
    ),
    "tensor_ring": (
        f"{_RUNTIME}.ipc.tensor_rollout_ring_buffer",
        _unilab.patch_ring("TensorRolloutRingBuffer"),
    ),
    "weights": (f"{_RUNTIME}.ipc.weight_sync", _unilab.patch_weights),
    "sac": (f"{_ALGOS}.sac.learner", _unilab.patch_learner("SACLearner")),
    "flash_sac": (f"{_ALGOS}.flash_sac.learner", _unilab.patch_learner("FlashSACLearner")),
    "appo": (f"{_ALGOS}.appo.learner", _unilab.patch_appo),
    "staging": (f"{_ALGOS}.appo.staging", _unilab.patch_staging),
    "collector": (f"{_RUNTIME}.offpolicy.worker", _unilab.patch_collector),
    "replay": (f"{_RUNTIME}.ipc.replay_buffer", _unilab.patch_replay),
}
