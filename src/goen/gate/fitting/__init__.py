"""Fitting and updating gates."""
