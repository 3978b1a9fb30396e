"""Bringing the guest into a job: today by starting it (``spawn``), with a payload of its own."""
