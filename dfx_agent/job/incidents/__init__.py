"""Incidents: each joins the verdicts and alerts on one problem, from its start to its end."""
