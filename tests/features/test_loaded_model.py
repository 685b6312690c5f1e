from torch import nn

from goen.features.loaded_model import LoadedModel
from goen.features.preprocess import Preprocess, PreprocessSound


def test_preprocessing_is_for_images_or_for_sound() -> None:
    images, sound = Preprocess(size=8), PreprocessSound(8000)
    of_images = LoadedModel(nn.Identity(), read_preprocess=lambda: images)
    assert of_images.preprocess(images=True) is images
    assert of_images.preprocess(images=False) is None
    of_sound = LoadedModel(nn.Identity(), read_preprocess=lambda: sound)
    assert of_sound.preprocess(images=False) is sound
    assert of_sound.preprocess(images=True) is None
    assert LoadedModel(nn.Identity()).preprocess(images=True) is None
    assert LoadedModel(nn.Identity()).preprocess(images=False) is None
