"""An asynchronous RL run on CPU: rollout servers, an orchestrator and learners as processes.

docs/how-to/instrument-an-asynchronous-job.md explains how to run it, and where to call the guest.
"""
