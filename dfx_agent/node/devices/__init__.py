"""Readers of the devices of this machine, one file per kind of device."""
