"""Pure mathematics on arrays and tensors: no state, no files, no models."""
