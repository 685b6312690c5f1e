"""Figures by theme; each function takes arrays and numbers and gives a Matplotlib figure."""
