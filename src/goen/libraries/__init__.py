"""Models of other libraries, with what their own files say about them."""
