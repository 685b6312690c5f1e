"""MCM: the softmax of cosines between an image's embedding and those of the class names."""

from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector, Expected
from goen.errors import FitError
from goen.functional._rows import floats
from goen.functional.cues import normalise
from goen.functional.logits import check_several_classes, max_softmax_score
from goen.outputs import Outputs


@final
class MCM(Detector):
    r"""How unsure the nearest class name is, by the softmax of cosines; high for OOD.

    :math:`\log \frac{1 - p}{p}` of the largest :math:`p_c \propto e^{\cos(x, t_c) / \tau}`, with x
    the embedding of the image and :math:`t_c` that of the name of class c: the weights of the
    outputs' linear classifier, without its bias. For a model of images and texts these are the text
    embeddings, and no training image is needed; of a trained classifier they are its weights.

    Args:
        temperature: :math:`\tau`; the paper takes 1.

    Paper: Ming et al. 2022, "Delving into Out-of-Distribution Detection with Vision-Language
    Representations" (maximum concept matching), NeurIPS 2022, arXiv 2211.13445. Departs from the
    paper: log((1 - p) / p) in place of -p, the same ranking without ties.

    It fails where OOD images show what a class name describes as well, and on trained classifiers
    whose weights are not directions of the class means. Nothing is learnt from the training images.

    Example:
        >>> import torch
        >>> from goen.outputs import LinearClassifier
        >>> texts = LinearClassifier(torch.eye(2), torch.zeros(2), "clip")
        >>> images = torch.tensor([[3.0, 0.0], [2.0, 2.0]])
        >>> outputs = Outputs(images, {"clip": images}, classifier=texts)
        >>> MCM().fit(outputs, torch.tensor([0, 1])).score(outputs)
        tensor([-1.,  0.], dtype=torch.float64)
    """

    name: ClassVar[str] = "mcm"
    needs_classifier = True
    directions_: Tensor

    def __init__(self, *, temperature: float = 1.0) -> None:
        self.temperature = temperature
        check_number("temperature", temperature, above=0)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        check_several_classes(outputs.logits)
        weight, _ = self.classifier(outputs)
        if not bool(weight.any(dim=1).all()):
            raise FitError("A class has the embedding 0, which has no direction. Leave it out.")
        self.directions_ = normalise(weight)

    def _expected(self) -> Mapping[str, Expected]:
        shape = (self.num_classes_, self.features_width)
        return {"directions": Expected(shape, -1 - 1e-6, 1 + 1e-6)}

    def _score(self, outputs: Outputs) -> Tensor:
        rows = floats(self.feature_rows(outputs))
        cosines = normalise(rows).to(rows.dtype) @ self.directions_.to(rows.dtype).mT
        return max_softmax_score(cosines / self.temperature)
