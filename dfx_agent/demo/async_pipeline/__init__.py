"""An asynchronous RL run on CPU: rollout servers, orchestrator, learners, each in its processes."""
