"""The catalogue's alerts, evaluated in the agent."""
