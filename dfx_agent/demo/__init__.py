"""Demo workloads: real training jobs, small enough for a laptop, that dfx-agent watches."""
