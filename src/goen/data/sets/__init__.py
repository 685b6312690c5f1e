"""Image sets: the catalogue, readers of their formats, where they come from."""
