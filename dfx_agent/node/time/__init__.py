"""Accounting of a process's time by stage and wait."""
