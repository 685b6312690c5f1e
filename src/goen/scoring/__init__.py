"""Scoring: sources, batches, rows, sinks, and the mapping to Ray."""
