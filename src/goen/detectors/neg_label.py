"""NegLabel: whether an image is nearer to class names than to words unlike them."""

from collections.abc import Mapping
from typing import ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from goen.checks import check_number
from goen.detectors._base import Detector, Expected
from goen.errors import FitError, UsageError
from goen.functional._rows import blocks, check_features, check_finite_for_fit
from goen.functional.cues import normalise
from goen.outputs import Outputs

# Of the groups of negative words.
_SEED = 0


@final
class NegLabel(Detector):
    r"""The log-odds of negative words against class names, by cosines of embeddings; high for OOD.

    :math:`\log \frac{1 - S}{S}`, with S the mean over G groups of negative words of
    :math:`\frac{\sum_c e^{\cos(x, t_c) / \tau}}{\sum_c e^{\cos(x, t_c) / \tau} +
    \sum_{j \in g} e^{\cos(x, n_j) / \tau}}`: x is the embedding of the image, :math:`t_c` that of
    the name of class c, the weights of the outputs' linear classifier as for ``MCM``, and
    :math:`n_j` those of the negative words. Of the words that ``with_words`` is given, the
    ``share`` is kept whose cosines with the class names are the smallest, by the ``quantile`` of
    each word's cosines over classes; they are divided into groups of equal size by a fixed seed.

    Args:
        temperature: :math:`\tau`.
        share: of the words that are kept.
        quantile: of a word's cosines, by which words are chosen.
        groups: G; fewer where fewer words are kept. Words left over by the division are left out.

    Paper: Jiang et al. 2024, "Negative Label Guided OOD Detection with Pretrained Vision-Language
    Models", ICLR 2024, arXiv 2403.20078. Departs from the paper: the log-odds in place of S, the
    same ranking without ties; words are chosen from one list, where the authors choose from nouns
    and from adjectives.

    It fails where a negative word describes ID images as well (words of which an ID class is one
    kind), and needs embeddings of images and texts in one space. Nothing is learnt from the
    training images.

    Example:
        >>> from goen.outputs import LinearClassifier
        >>> texts = LinearClassifier(torch.tensor([[1.0, 0, 0]]), torch.zeros(1), "clip")
        >>> words = torch.tensor([[0.0, 1, 0], [0, 0, 1]])
        >>> images = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
        >>> outputs = Outputs(images[:, :1], {"clip": images}, classifier=texts)
        >>> nearer = NegLabel.with_words(words, temperature=1, share=1, groups=2)
        >>> nearer.fit(outputs, torch.tensor([0, 0])).score(outputs).round(decimals=4)
        tensor([-1.0000,  0.4706], dtype=torch.float64)
    """

    name: ClassVar[str] = "neg_label"
    needs_classifier = True
    directions_: Tensor
    negatives_: Tensor

    def __init__(
        self,
        *,
        temperature: float = 0.01,
        share: float = 0.15,
        quantile: float = 0.95,
        groups: int = 100,
    ) -> None:
        self.temperature = temperature
        self.share = share
        self.quantile = quantile
        self.groups = groups
        self._words: Tensor | None = None
        check_number("temperature", temperature, above=0)
        check_number("share", share, above=0, at_most=1)
        check_number("quantile", quantile, at_least=0, at_most=1)
        check_number("groups", groups, whole=True, at_least=1)

    @classmethod
    def with_words(
        cls,
        words: Tensor,
        *,
        temperature: float = 0.01,
        share: float = 0.15,
        quantile: float = 0.95,
        groups: int = 100,
    ) -> Self:
        """A detector with these candidates for negative words.

        Args:
            words: their embeddings, ``(M, D)``, by the model that embeds images and class names.
            temperature: see the class, as the others.
            share: of the words that are kept.
            quantile: by which they are chosen.
            groups: of words.
        """
        made = cls(temperature=temperature, share=share, quantile=quantile, groups=groups)
        check_features(words)
        check_finite_for_fit(words, "embedding")
        made._words = words
        return made

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        if self._words is None:
            raise UsageError(
                "NegLabel compares class names with other words: make it with their embeddings, "
                "NegLabel.with_words(embeddings)."
            )
        weight, _ = self.classifier(outputs)
        check_features(self._words, self.features_width)
        words = self._words.to(weight.device)
        if not bool(weight.any(dim=1).all() and words.any(dim=1).all()):
            raise FitError(
                "A class or a word has the embedding 0, which has no direction. Leave it out."
            )
        self.directions_ = normalise(weight)
        self.negatives_ = self._in_groups(self._unlike_the_classes(normalise(words)))

    def _unlike_the_classes(self, words: Tensor) -> Tensor:
        """The words that are kept, the one that is least like a class first."""
        kept = int(self.share * len(words))
        if not kept:
            raise FitError(
                f"A share of {self.share} of {len(words)} words is none. Give more words, or a "
                "larger share."
            )
        likeness = [
            torch.quantile(words[block] @ self.directions_.mT, self.quantile, dim=1)
            for block in blocks(len(words))
        ]
        return words[torch.cat(likeness).argsort(stable=True)[:kept]]

    def _in_groups(self, words: Tensor) -> Tensor:
        """The words ``(G, M / G, D)``, drawn into groups."""
        groups = min(self.groups, len(words))
        size = len(words) // groups
        order = np.random.RandomState(_SEED).permutation(len(words))[: groups * size]
        return words[torch.from_numpy(order).to(words.device)].view(groups, size, -1)

    def _expected(self) -> Mapping[str, Expected]:
        width, low, high = self.features_width, -1 - 1e-6, 1 + 1e-6
        return {
            "directions": Expected((self.num_classes_, width), low, high),
            "negatives": Expected(("groups", "words", width), low, high),
        }

    def _score(self, outputs: Outputs) -> Tensor:
        rows = self.feature_rows(outputs)
        found = [self._log_odds(rows[block]) for block in blocks(rows.shape[0])]
        return torch.cat([rows.new_empty(0, dtype=torch.float64), *found])

    def _log_odds(self, rows: Tensor) -> Tensor:
        unit = normalise(rows)
        cosines = unit @ self.negatives_.flatten(0, 1).mT
        groups = cosines.view(-1, *self.negatives_.shape[:2]) / self.temperature
        classes = unit @ self.directions_.mT / self.temperature
        nearer = groups.logsumexp(dim=2) - classes.logsumexp(dim=1, keepdim=True)
        return logsigmoid(nearer).logsumexp(dim=1) - logsigmoid(-nearer).logsumexp(dim=1)
