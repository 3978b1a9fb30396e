"""What the guest and the agent cost: one file per number, ``python -m bench`` runs them all."""
