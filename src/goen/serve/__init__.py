"""A gate as an HTTP service, with a page for people; needs ``pip install 'goen[serve]'``."""
