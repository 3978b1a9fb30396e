"""An asynchronous RL run on CPU: rollout servers, orchestrator, learners, each in its processes.

How to run it, and which line of the guest goes where:
docs/how-to/instrument-an-asynchronous-job.md.
"""
