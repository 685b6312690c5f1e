"""Every method of the benchmark: which network it reads, what it fits on, and how."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from goen.detectors import (
    FDBD,
    GEN,
    KNN,
    ODIN,
    Density,
    Detector,
    Energy,
    Mahalanobis,
    MaxLogit,
    MaxSoftmax,
    ReAct,
    RelativeMahalanobis,
    TemperatureScaling,
    Uncertainty,
    ViM,
)
from goen.detectors.calibration_head import HeadConfig, train_head
from goen.detectors.goen import Goen
from goen.detectors.goen_m import Monotone
from goen.detectors.scorer import Scorer
from goen.errors import UsageError
from goen.models import ResNet18
from goen.outputs import Outputs

Kind = Literal["predictive", "post-hoc", "newer", "goen", "other"]
Role = Literal["train", "calibration", "ood"]
View = Literal["plain", "perturbed", "mirrored"]
SCALES = ("layer2", "layer4")
"""What goen-m measures: texture and semantics, as the paper's multi-scale head sees them."""

_Detector = TypeVar("_Detector", bound=Detector)


class Scores(Protocol):
    """What fitting returns: something that scores; higher means more OOD."""

    def score(self, outputs: Outputs) -> Tensor:
        """``(N,)``."""


class Labelled(NamedTuple):
    """What the network says of a set, and the set's labels (of no meaning for OOD sets)."""

    outputs: Outputs
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Material:
    """What one method may fit on: the roles it declared, and nothing else.

    Attributes:
        network: whose outputs these are; its classifier's weights are what some methods need.
        head: how the paper's calibration head is trained.
        sets: outputs by role; ``ood:NAME`` for each OOD set that may calibrate.
    """

    network: ResNet18
    head: HeadConfig
    sets: Mapping[str, Labelled]

    def __getitem__(self, role: str) -> Labelled:
        if role not in self.sets:
            known = ", ".join(self.sets) or "nothing"
            raise UsageError(
                f"This method declared that it fits on {known}, and asked for {role!r}. Name it in "
                "the method's fits_on, so that the table can say so."
            )
        return self.sets[role]

    @property
    def ood(self) -> dict[str, Outputs]:
        """The OOD sets that may calibrate, by name."""
        return {
            role.removeprefix("ood:"): labelled.outputs
            for role, labelled in self.sets.items()
            if role.startswith("ood:")
        }


@dataclass(frozen=True, eq=False)
class Method:
    """One row of the benchmark.

    Attributes:
        key: its name in results and on the command line.
        title: its name in tables.
        fit: makes something that scores.
        kind: its section in the table.
        network: whose outputs it reads: a name in ``bench.NETWORKS``, or ``ensemble``.
        fits_on: what it may see: training images, ID images for calibration, OOD images.
        view: what the network is shown: the images, the images perturbed as ODIN does, or the
            images and their mirror images.
    """

    key: str
    title: str
    fit: Callable[[Material], Scores]
    kind: Kind = "other"
    network: str = "standard"
    fits_on: tuple[Role, ...] = ("train",)
    view: View = "plain"

    @property
    def answers_to(self) -> View:
        """What the classifier's own answer is given to: a perturbation is for the score alone."""
        return "plain" if self.view == "perturbed" else self.view

    @property
    def uses_ood(self) -> bool:
        """Whether OOD images helped to make it."""
        return "ood" in self.fits_on


@dataclass(frozen=True, eq=False)
class Judged:
    """A gate's scorer as something that scores."""

    scorer: Scorer

    def score(self, outputs: Outputs) -> Tensor:
        """What the scorer makes of its cues."""
        return self.scorer.judge(self.scorer.cues(outputs))[0]


def _goen(material: Material) -> Judged:
    density = Density().fit(*material["train"])
    ood = {name: density.cues(outputs) for name, outputs in material.ood.items()}
    head = None
    if ood:
        head, _ = train_head(density.cues(material["calibration"].outputs), ood, material.head)
    return Judged(Goen(density, head))


def _goen_m(material: Material) -> Judged:
    scorer = Monotone(SCALES).update(*material["train"])
    ood = {name: scorer.cues(outputs) for name, outputs in material.ood.items()}
    return Judged(scorer.calibrate(scorer.cues(material["calibration"].outputs), ood))


def _on(role: Role, make: Callable[[], _Detector]) -> Callable[[Material], _Detector]:
    return lambda material: make().fit(*material[role])


def _with_weights(
    make: Callable[[Tensor, Tensor], _Detector],
) -> Callable[[Material], _Detector]:
    def fit(material: Material) -> _Detector:
        linear = material.network.classifier.state_dict()
        return make(linear["weight"].cpu(), linear["bias"].cpu()).fit(*material["train"])

    return fit


def _nothing(make: Callable[[], _Detector]) -> Callable[[Material], _Detector]:
    return lambda material: make()


def _own_word(key: str, title: str, network: str) -> Method:
    """A network that has a word for its own doubt."""
    return Method(key, title, _nothing(Uncertainty), "predictive", network, ())


_ALL = (
    Method("softmax", "Softmax", _nothing(MaxSoftmax), "predictive", fits_on=()),
    Method(
        "temperature_scaling",
        "Temperature scaling",
        _on("calibration", TemperatureScaling),
        "predictive",
        fits_on=("calibration",),
    ),
    _own_word("mc_dropout", "MC dropout", "dropout"),
    _own_word("deep_ensemble", "Deep ensemble", "ensemble"),
    _own_word("evidential", "Evidential", "evidential"),
    _own_word("epinet", "EpiNet", "epinet"),
    _own_word("mixture_of_experts", "Mixture of experts", "experts"),
    Method("energy", "Energy", _nothing(Energy), "post-hoc", fits_on=()),
    Method("odin", "ODIN", _nothing(ODIN), "post-hoc", fits_on=(), view="perturbed"),
    Method("mahalanobis", "Mahalanobis", _on("train", Mahalanobis), "post-hoc"),
    Method("knn", "KNN", _on("train", KNN), "post-hoc"),
    Method("max_logit", "Max logit", _nothing(MaxLogit), "newer", fits_on=()),
    Method("gen", "GEN", _nothing(GEN), "newer", fits_on=()),
    Method(
        "relative_mahalanobis", "Relative Mahalanobis", _on("train", RelativeMahalanobis), "newer"
    ),
    Method(
        "mahalanobis_pp",
        "Mahalanobis++",
        _on("train", lambda: Mahalanobis(normalise=True)),
        "newer",
    ),
    Method("vim", "ViM", _with_weights(lambda w, b: ViM(weight=w, bias=b)), "newer"),
    Method("react", "ReAct", _with_weights(lambda w, b: ReAct(weight=w, bias=b)), "newer"),
    Method("fdbd", "fDBD", _with_weights(lambda w, b: FDBD(weight=w, bias=b)), "newer"),
    Method("knn_multi_scale", "KNN, multi-scale", _on("train", KNN), "newer", "goen"),
    Method("goen_distance", "GOEN, distance only", _goen, "goen", "goen"),
    Method("goen", "GOEN", _goen, "goen", "goen", ("train", "calibration", "ood")),
    Method(
        "goen_m_plain",
        "goen-m, ordinary network",
        _goen_m,
        "goen",
        fits_on=("train", "calibration"),
    ),
    Method("goen_m", "goen-m", _goen_m, "goen", "goen", ("train", "calibration")),
    Method(
        "goen_m_mirrored",
        "goen-m, mirrored",
        _goen_m,
        "goen",
        "goen",
        ("train", "calibration"),
        view="mirrored",
    ),
    Method(
        "goen_m_ood", "goen-m, calibrated", _goen_m, "goen", "goen", ("train", "calibration", "ood")
    ),
)

METHODS: Mapping[str, Method] = {method.key: method for method in _ALL}
"""Every method, in the order of the table."""


def labels_of(array: object) -> Tensor:
    """Labels as the tensor that detectors take."""
    return torch.as_tensor(array).to(torch.int64)
