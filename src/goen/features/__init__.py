"""Features of other people's models: which layers, how pooled, how their inputs are prepared."""
