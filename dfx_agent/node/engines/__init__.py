"""Rollout engines: finds the vLLM and SGLang servers of a job and reads their metrics."""
