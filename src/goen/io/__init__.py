"""Files whole or not at all, manifests, bounded JSON and tensors, provenance, stages of runs."""
