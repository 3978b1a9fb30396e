"""Bringing the guest into a job: by starting it, or into processes that already run."""
