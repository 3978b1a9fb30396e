"""The catalogue: every metric with name, unit, labels and meaning, and the native names of it."""
