"""Exporting gates, and running their networks in onnxruntime."""
