"""Which image sets the recipes use, and what each of them has been used for."""

EXTRA = ("tiny-imagenet", "mnist", "textures", "places", "cifar100-rest")
PAPER_SETS = ("svhn", "cifar100", "noise")
# No cue, fusion or recipe was chosen by looking at these: see goen_m.py.
UNTOUCHED = ("tiny-imagenet", "mnist", "textures", "places")
# These calibrate nothing. cifar100-rest does not either, but it helped to choose goen-m.
UNSEEN = ("cifar100", *UNTOUCHED)
