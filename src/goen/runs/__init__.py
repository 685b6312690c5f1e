"""Runs on disk: results, stages, artifacts, manifests, provenance."""
