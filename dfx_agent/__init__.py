"""dfx-agent: see which stage and which rank of an RL post-training job is slow, and why."""

__version__ = "0.1.0"
