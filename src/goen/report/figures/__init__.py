"""Figures by theme; each function takes arrays and numbers and returns a Matplotlib figure."""
