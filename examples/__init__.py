"""Jobs with the guest in them, to read and to run from a checkout; not part of the wheel."""
