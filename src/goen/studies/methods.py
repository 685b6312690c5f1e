"""Every method of the benchmark: its network, the data it is fitted on, and its detector."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

from goen.detectors import (
    FDBD,
    GEN,
    KNN,
    ODIN,
    Detector,
    Energy,
    Goen,
    GoenM,
    Mahalanobis,
    MaSF,
    MaxLogit,
    MaxSoftmax,
    MultilayerMahalanobis,
    ReAct,
    RelativeMahalanobis,
    TemperatureScaling,
    Uncertainty,
    ViM,
)
from goen.detectors._bank import ROWS
from goen.detectors.calibration_head import HeadConfig
from goen.detectors.goen_m import LogitCue
from goen.errors import UsageError, unknown
from goen.models import Backbone
from goen.outputs import Outputs

TableSection = Literal["predictive", "post-hoc", "newer", "goen", "other"]
Network = Literal[
    "standard", "dropout", "evidential", "epinet", "experts", "goen", "ensemble", "preset"
]
Role = Literal["train", "calibration", "ood"]
ForwardMode = Literal["plain", "perturbed", "flip_averaged", "last_map_max", "last_map_mean_std"]
_Detector = TypeVar("_Detector", bound=Detector)


class Labelled(NamedTuple):
    """The network's outputs for a set, and the set's labels (meaningless for OOD sets)."""

    outputs: Outputs
    labels: Tensor


@dataclass(frozen=True, eq=False)
class FitData:
    """The outputs a method may be fitted on: those of the roles it declares, and no others.

    Attributes:
        network: of these outputs.
        head: the training of the paper's calibration head.
        sets: outputs by role; ``ood:NAME`` for each OOD set for calibration.
    """

    network: Backbone
    head: HeadConfig
    sets: Mapping[str, Labelled]

    def __getitem__(self, role: str) -> Labelled:
        if role not in self.sets:
            declared = ", ".join(self.sets) or "nothing"
            if role == "ood" and self.ood:
                raise UsageError(
                    f"There may be several OOD sets ({', '.join(self.ood)}): use data.ood, "
                    "their outputs by name, in place of data['ood']."
                )
            raise UsageError(
                f"The method is fitted on {role!r} but declares {declared} in its fits_on. Add "
                f"{role!r} there: the tables report what a method was fitted on."
            )
        return self.sets[role]

    @property
    def ood(self) -> dict[str, Outputs]:
        """The OOD sets for calibration, by name."""
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
        fit: returns a fitted detector.
        section: its section in the table.
        network: that it scores the outputs of: in ``experiment.NETWORKS``, ``ensemble``, or
            ``preset`` for one that is trained as the preset says.
        fits_on: the data for its fit: training images, ID images for calibration, OOD images.
        forward_mode: how the network sees the images: as they are, perturbed as in ODIN, with their
            horizontal flips, averaged (flip averaging), or with its last map pooled as in DAVIS.
    """

    key: str
    title: str
    fit: Callable[[FitData], Detector]
    section: TableSection = "other"
    network: Network = "standard"
    fits_on: tuple[Role, ...] = ("train",)
    forward_mode: ForwardMode = "plain"

    def __post_init__(self) -> None:
        if isinstance(self.fits_on, str):
            raise UsageError(
                f"fits_on is a tuple of roles, such as ('train',), got {self.fits_on!r}."
            )
        for what, known, names in (
            ("section", TableSection, (self.section,)),
            ("network", Network, (self.network,)),
            ("role in fits_on", Role, self.fits_on),
            ("forward mode", ForwardMode, (self.forward_mode,)),
        ):
            for name in names:
                if name not in get_args(known):
                    raise unknown(what, name, get_args(known))

    @property
    def classification_mode(self) -> ForwardMode:
        """That which accuracy is measured on; only flip averaging is for labels, too."""
        return self.forward_mode if self.forward_mode == "flip_averaged" else "plain"

    @property
    def uses_ood(self) -> bool:
        """Whether it is fitted with OOD images."""
        return "ood" in self.fits_on


def _goen(data: FitData) -> Detector:
    held_out = data["calibration"].outputs if data.ood else None
    return Goen(feature="z", head=data.head).fit(*data["train"], held_out=held_out, ood=data.ood)


def goen_m_for(network: Backbone, rows: int = ROWS) -> GoenM:
    """goen-m with the cues that were selected for this kind of network; not fitted.

    Selected as docs/methods/goen-m.md describes, and for the fast network docs/results.md.

    Args:
        network: of goen.
        rows: how many training images to keep.
    """
    if network.config.architecture == "fast_cnn":
        logit_cues: tuple[LogitCue, ...] = ("entropy", "energy")
        return GoenM(("block2", "block3.conv1"), rows=rows, logit_cues=logit_cues)
    return GoenM(network.two_scales, rows=rows)


def _goen_m(data: FitData) -> Detector:
    return goen_m_for(data.network).fit(
        *data["train"], held_out=data["calibration"].outputs, ood=data.ood
    )


def _on_scales(
    make: Callable[[tuple[str, ...]], _Detector],
) -> Callable[[FitData], _Detector]:
    def fit(data: FitData) -> _Detector:
        scales = tuple(scale.name for scale in data.network.scales)
        return make(scales).fit(*data["train"])

    return fit


def _on(role: Role, make: Callable[[], _Detector]) -> Callable[[FitData], _Detector]:
    return lambda data: make().fit(*data[role])


def _nothing(make: Callable[[], _Detector]) -> Callable[[FitData], _Detector]:
    return lambda data: make()


def _own_uncertainty(key: str, title: str, network: Network) -> Method:
    """A network that provides its own uncertainty estimate."""
    return Method(key, title, _nothing(Uncertainty), "predictive", network, ())


_ALL = (
    Method("max_softmax", "Max softmax", _nothing(MaxSoftmax), "predictive", fits_on=()),
    Method(
        "temperature_scaling",
        "Temperature scaling",
        _on("calibration", TemperatureScaling),
        "predictive",
        fits_on=("calibration",),
    ),
    _own_uncertainty("mc_dropout", "MC dropout", "dropout"),
    _own_uncertainty("deep_ensemble", "Deep ensemble", "ensemble"),
    _own_uncertainty("evidential", "Evidential", "evidential"),
    _own_uncertainty("epinet", "EpiNet", "epinet"),
    _own_uncertainty("mixture_of_experts", "Mixture of experts", "experts"),
    Method("energy", "Energy", _nothing(Energy), "post-hoc", fits_on=()),
    Method("odin", "ODIN", _nothing(ODIN), "post-hoc", fits_on=(), forward_mode="perturbed"),
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
    Method("vim", "ViM", _on("train", ViM), "newer"),
    Method("react", "ReAct", _on("train", ReAct), "newer"),
    Method("fdbd", "fDBD", _on("train", FDBD), "newer"),
    Method(
        "davis",
        "DAVIS, maximum",
        _nothing(Energy),
        "newer",
        fits_on=(),
        forward_mode="last_map_max",
    ),
    Method(
        "davis_std",
        "DAVIS, mean + standard deviation",
        _nothing(Energy),
        "newer",
        fits_on=(),
        forward_mode="last_map_mean_std",
    ),
    Method("masf", "MaSF", _on_scales(lambda s: MaSF(feature=s)), "newer", "goen"),
    Method(
        "mm_pp", "MM++", _on_scales(lambda s: MultilayerMahalanobis(feature=s)), "newer", "goen"
    ),
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
        "goen_m_flip_averaged",
        "goen-m, flip-averaged",
        _goen_m,
        "goen",
        "goen",
        ("train", "calibration"),
        forward_mode="flip_averaged",
    ),
    Method(
        "goen_m_ood",
        "goen-m, fitted with OOD",
        _goen_m,
        "goen",
        "goen",
        ("train", "calibration", "ood"),
    ),
)

METHODS: Mapping[str, Method] = {method.key: method for method in _ALL}
"""Every method, in the order of the table."""


def labels_of(array: object) -> Tensor:
    """Labels as the tensor that detectors expect."""
    return torch.as_tensor(array, dtype=torch.int64, device="cpu")
