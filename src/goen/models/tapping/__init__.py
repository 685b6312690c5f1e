"""Features of anyone's model: ``layers`` lists and suggests layers, ``Tapped`` takes them."""
