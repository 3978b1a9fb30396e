"""Incidents: what verdicts and alerts say of one problem, from its begin to its end."""
