"""Mathematics on arrays and tensors: no files, no models, and no hidden state.

Functions are pure. Statistics that grow with the data are objects with an ``update``, such as
``gaussian.ClassStatistics``.
"""
