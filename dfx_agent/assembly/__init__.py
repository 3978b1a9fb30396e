"""The parts put together for the verbs that serve, look or bring a guest in."""
