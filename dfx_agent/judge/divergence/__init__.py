"""Whether training goes wrong, by its own signals."""
