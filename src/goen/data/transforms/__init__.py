"""What is done to images: augmentation, corruptions, fractals, mixtures."""
