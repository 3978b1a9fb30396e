"""Healthy jobs of many kinds, each written as its users write it: nothing of ours is in them."""
