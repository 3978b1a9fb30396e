"""Reads log files of training runs into rows of native values."""
