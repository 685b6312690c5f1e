"""Image files: which formats, where they are, how they are decoded."""
