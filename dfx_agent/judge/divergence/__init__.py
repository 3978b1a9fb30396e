"""Whether training is going wrong, by its own signals."""
