"""The image sets of the recipes, and their use."""

EXTRA = ("tiny-imagenet", "mnist", "textures", "places", "cifar100-rest")
PAPER_SETS = ("svhn", "cifar100", "noise")
# Not used for model selection: see goen_m.py.
UNTOUCHED = ("tiny-imagenet", "mnist", "textures", "places")
# Not used for calibration. Neither is cifar100-rest, which was used to select goen-m.
UNSEEN = ("cifar100", *UNTOUCHED)
