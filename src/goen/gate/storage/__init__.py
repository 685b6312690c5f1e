"""Saving and loading gates."""
