"""UniLab in the package ``uni_rl`` (unilab-rl 0.2 to 1.4): learner and collector."""

from __future__ import annotations

from dfx_agent.shim.adapters import Parts, _unilab

FRAMEWORK = "unilab"

PARTS: Parts = {
    "offpolicy_logger": ("uni_rl.logging.offpolicy", _unilab.patch_logger("OffPolicyLogger")),
    "onpolicy_logger": ("uni_rl.logging.onpolicy", _unilab.patch_logger("OnPolicyLogger")),
    "runner": ("uni_rl.offpolicy.double_buffer_runner", _unilab.patch_runner),
    "dp_sync": ("uni_rl.ipc.dp_sync", _unilab.patch_dp_sync),
    "pipeline": (
        "uni_rl.ipc.replay_pipelines.gpu_resident",
        _unilab.patch_pipeline("GPUResidentReplayPipeline"),
    ),
    "ring": ("uni_rl.ipc.rollout_ring_buffer", _unilab.patch_ring("RolloutRingBuffer")),
    "tensor_ring": (
        "uni_rl.ipc.tensor_rollout_ring_buffer",
        _unilab.patch_ring("TensorRolloutRingBuffer"),
    ),
    "weights": ("uni_rl.ipc.weight_sync", _unilab.patch_weights),
    "sac": ("uni_rl.algos.sac.learner", _unilab.patch_learner("SACLearner")),
    "fast_sac": ("uni_rl.algos.fast_sac.learner", _unilab.patch_learner("FastSACLearner")),
    "fast_td3": ("uni_rl.algos.fast_td3.learner", _unilab.patch_learner("FastTD3Learner")),
    "flash_sac": ("uni_rl.algos.flash_sac.learner", _unilab.patch_learner("FlashSACLearner")),
    "appo": ("uni_rl.algos.appo.learner", _unilab.patch_appo),
    "staging": ("uni_rl.algos.appo.staging", _unilab.patch_staging),
    "collector": ("uni_rl.offpolicy.worker", _unilab.patch_collector),
    "replay": ("uni_rl.ipc.replay_buffer", _unilab.patch_replay),
}
