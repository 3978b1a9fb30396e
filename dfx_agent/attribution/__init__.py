"""A step boundary run by itself, to see which of its phases hold an event loop."""
