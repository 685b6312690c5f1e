"""Every method of the benchmark: its network, the data it is fitted on, and its detector."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from goen.checks import check_choice
from goen.data.protocol import Protocol
from goen.detectors import (
    Detector,
    Goen,
    GoenM,
    MaSF,
    MultilayerMahalanobis,
    make_detector,
    needs_of,
)
from goen.detectors._bank import ROWS
from goen.detectors.calibration_head import HeadConfig
from goen.detectors.tuned import SEARCHED, TUNED
from goen.errors import UsageError
from goen.models import Backbone
from goen.outputs import Outputs

TableSection = Literal["predictive", "post-hoc", "newer", "training", "tuned", "goen", "other"]
Network = Literal[
    "standard",
    "dropout",
    "evidential",
    "epinet",
    "experts",
    "logit_norm",
    "t2fnorm",
    "pixmix",
    "rotations",
    "rotations_pixmix",
    "outliers",
    "goen",
    "ensemble",
    "preset",
    "given",
]
Role = Literal["train", "calibration", "ood"]
ForwardMode = (
    Literal["plain", "flip_averaged", "rotated", "last_map_max", "last_map_mean_std"] | Detector
)
"""How a network sees the images; a detector: as it prepares the network for itself."""
_MODES = get_args(get_args(ForwardMode)[0])
_GATE_NETWORKS = ("standard", "goen")
_WITHOUT_TRAINING = (*_GATE_NETWORKS, "preset", "given")
_GATE_MODES = ("plain", "flip_averaged")


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

    network: nn.Module
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


def _nothing() -> None:
    """What a method requires that needs no library beside goen's own."""


@dataclass(frozen=True, eq=False)
class Method:
    """One row of the benchmark.

    Attributes:
        key: its name in results and on the command line.
        title: its name in tables.
        fit: returns a fitted detector.
        section: its section in the table.
        network: that it scores the outputs of: in ``experiment.NETWORKS``, ``ensemble``, or
            ``preset`` for one that is trained as the preset says, ``given`` for a user's own.
        fits_on: the data for its fit: training images, ID images for calibration, OOD images.
        forward_mode: how the network sees the images: as they are, with their horizontal flips,
            averaged (flip averaging), in four rotations, whose prediction is its uncertainty, or
            with its last map pooled as in DAVIS; or a detector that prepares the network for
            itself, such as ODIN.
        require: raises an ``ExtraMissing`` if its fit needs a library that is not here.
        detector: the name of its detector; empty if it is none of goen's.
    """

    key: str
    title: str
    fit: Callable[[FitData], Detector]
    section: TableSection = "other"
    network: Network = "standard"
    fits_on: tuple[Role, ...] = ("train",)
    forward_mode: ForwardMode = "plain"
    require: Callable[[], None] = _nothing
    detector: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.fits_on, str):
            raise UsageError(
                f"fits_on is a tuple of roles, such as ('train',), got {self.fits_on!r}."
            )
        for what, known, names in (
            ("section", TableSection, (self.section,)),
            ("network", Network, (self.network,)),
            ("role in fits_on", Role, self.fits_on),
        ):
            for name in names:
                check_choice(what, name, get_args(known))
        if not isinstance(self.forward_mode, Detector):
            check_choice("forward mode", self.forward_mode, _MODES)

    @property
    def uses_ood(self) -> bool:
        """Whether it is fitted with OOD images."""
        return "ood" in self.fits_on

    @property
    def needs(self) -> tuple[str, ...]:
        """What it needs beside training images and their logits, as its detector declares it.

        Example:
            >>> METHODS["goen"].needs, METHODS["evidential"].needs
            (('feature', 'OOD images'), ('own training',))
        """
        found = needs_of(make_detector(self.detector)) if self.detector else ()
        further = ["OOD images"] if self.uses_ood else []
        further += [] if self.network in _WITHOUT_TRAINING else ["own training"]
        return (*(name for name in found if not further or name != "logits"), *further)


def check_calibration(methods: Iterable[Method], protocol: Protocol) -> None:
    """Raise a ``UsageError`` if one is fitted with OOD images and none are there to calibrate."""
    for method in methods:
        if method.uses_ood and not protocol.calibration_ood:
            raise UsageError(
                f"{method.title} is fitted with OOD images, and no set calibrates. Name some with "
                "--calibration-ood (Python: protocol(..., calibration=...)), or choose a method "
                "without them, such as goen_distance or goen_m."
            )


def can_be_in_a_gate(method: Method) -> bool:
    """Whether it can score the network that a preset trains, in a gate."""
    mode = method.forward_mode
    return method.network in _GATE_NETWORKS and (isinstance(mode, Detector) or mode in _GATE_MODES)


def goen_m_for(network: Backbone, rows: int = ROWS) -> GoenM:
    """goen-m with the cues that were selected for this kind of network; not fitted.

    Selected as docs/methods/goen-m.md describes, and for the fast network docs/results.md.

    Args:
        network: of goen.
        rows: how many training images to keep.
    """
    if network.config.architecture == "fast_cnn":
        layers = ("block2", "block3.conv1")
        return GoenM(layers, rows=rows, logit_cues=("entropy", "energy"))
    return GoenM(network.two_scales, rows=rows)


def _make(name: str, data: FitData) -> Detector:
    """The detector of this name for the network of these outputs; not fitted."""
    network = data.network
    if not isinstance(network, Backbone):
        return Goen(head=data.head) if name == "goen" else make_detector(name)
    scales = tuple(scale.name for scale in network.scales)
    made: Mapping[str, Callable[[], Detector]] = {
        "goen": lambda: Goen(feature="z", head=data.head),
        "goen_m": lambda: goen_m_for(network),
        "masf": lambda: MaSF(feature=scales),
        "mm_pp": lambda: MultilayerMahalanobis(feature=scales),
    }
    return made[name]() if name in made else make_detector(name)


def fit_detector(detector: str | Detector, data: FitData) -> Detector:
    """The detector, fitted on the roles that its method declares.

    Without training images it is fitted on those for calibration; without any it needs no fit.
    """
    made = _make(detector, data) if isinstance(detector, str) else detector
    if "train" in data.sets:
        held_out = data["calibration"].outputs if "calibration" in data.sets else None
        return made.fit(*data["train"], held_out=held_out, ood=data.ood)
    return made.fit(*data["calibration"]) if "calibration" in data.sets else made


def _method(
    key: str,
    title: str,
    section: TableSection,
    network: Network = "standard",
    fits_on: tuple[Role, ...] = ("train",),
    *,
    detector: str | None = None,
    forward_mode: ForwardMode = "plain",
) -> Method:
    """A method with the detector of this name, or of its own key."""
    name = detector or key
    made = make_detector(name)
    mode = made if made.needs_gradient else forward_mode
    fit = partial(fit_detector, name)
    return Method(key, title, fit, section, network, fits_on, mode, made.require_library, name)


# A network that provides its own uncertainty estimate.
_uncertainty = partial(_method, section="predictive", fits_on=(), detector="uncertainty")
# A network whose training makes max softmax a better score.
_training = partial(_method, section="training", fits_on=(), detector="max_softmax")
_rotations = partial(_uncertainty, section="training", forward_mode="rotated")
_davis = partial(_method, section="newer", fits_on=(), detector="energy")
_adascale = partial(_method, section="newer", fits_on=("train", "calibration"))
_WITH_OOD: tuple[Role, ...] = ("train", "calibration", "ood")
_goen_m = partial(_method, section="goen", detector="goen_m", fits_on=("train", "calibration"))

_ALL = (
    _method("max_softmax", "Max softmax", "predictive", fits_on=()),
    _method("temperature_scaling", "Temperature scaling", "predictive", fits_on=("calibration",)),
    _uncertainty("mc_dropout", "MC dropout", network="dropout"),
    _uncertainty("deep_ensemble", "Deep ensemble", network="ensemble"),
    _uncertainty("evidential", "Evidential", network="evidential"),
    _uncertainty("epinet", "EpiNet", network="epinet"),
    _uncertainty("mixture_of_experts", "Mixture of experts", network="experts"),
    _method("energy", "Energy", "post-hoc", fits_on=()),
    _method("odin", "ODIN", "post-hoc", fits_on=()),
    _method("mahalanobis", "Mahalanobis", "post-hoc"),
    _method("knn", "KNN", "post-hoc"),
    _method("max_logit", "Max logit", "newer", fits_on=()),
    _method("gen", "GEN", "newer", fits_on=()),
    _method("relative_mahalanobis", "Relative Mahalanobis", "newer"),
    _method("mahalanobis_pp", "Mahalanobis++", "newer"),
    _method("vim", "ViM", "newer"),
    _method("react", "ReAct", "newer"),
    _method("fdbd", "fDBD", "newer"),
    _method("entropy", "Entropy", "newer", fits_on=()),
    _method("kl_matching", "KL matching", "newer", fits_on=("calibration",)),
    _method("gradnorm", "GradNorm", "newer"),
    _method("i_odin", "i-ODIN", "newer", fits_on=()),
    _adascale("adascale", "AdaSCALE-A"),
    _adascale("adascale_l", "AdaSCALE-L"),
    _method("ash_p", "ASH-P", "newer"),
    _method("ash_b", "ASH-B", "newer"),
    _method("ash", "ASH-S", "newer"),
    _method("scale", "SCALE", "newer"),
    _method("lts", "LTS", "newer"),
    _method("vra", "VRA-P", "newer"),
    _method("dice", "DICE", "newer"),
    _method("optfs", "OptFS", "newer"),
    _method("openmax", "OpenMax", "newer"),
    _method("she", "SHE, inner product", "newer"),
    _method("she_cosine", "SHE, cosine", "newer"),
    _method("ctm", "CTM", "newer"),
    _method("mcm", "MCM, classifier weights", "newer"),
    _method("nac", "NAC, last layer", "newer"),
    _method("nci", "NCI", "newer"),
    _method("neco", "NECO", "newer"),
    _method("residual", "Residual", "newer"),
    _method("nnguide", "NNGuide", "newer"),
    _method("relation", "Relation", "newer"),
    _method("relative_mahalanobis_pp", "Relative Mahalanobis++", "newer"),
    _davis("davis", "DAVIS, maximum", forward_mode="last_map_max"),
    _davis("davis_std", "DAVIS, mean + standard deviation", forward_mode="last_map_mean_std"),
    _training("logit_norm", "LogitNorm", network="logit_norm"),
    _training("t2fnorm", "T2FNorm", network="t2fnorm"),
    _training("pixmix", "PixMix", network="pixmix"),
    _rotations("rotation_prediction", "Rotation prediction", network="rotations"),
    _rotations(
        "rotation_prediction_pixmix",
        "Rotation prediction with PixMix",
        network="rotations_pixmix",
    ),
    _training("outlier_exposure", "Outlier exposure", network="outliers", fits_on=("ood",)),
    _method("masf", "MaSF", "newer", "goen"),
    _method("mm_pp", "MM++", "newer", "goen"),
    _method("knn_multi_scale", "KNN, multi-scale", "newer", "goen", detector="knn"),
    _method("class_mixture", "Class mixtures", "newer", "goen"),
    _method("flow", "Normalising flow", "newer", "goen"),
    _method("goen_distance", "GOEN, distance only", "goen", "goen", detector="goen"),
    _method("goen", "GOEN", "goen", "goen", _WITH_OOD),
    _goen_m("goen_m_plain", "goen-m, ordinary network"),
    _goen_m("goen_m", "goen-m", network="goen"),
    _method("goen_m_last", "goen-m, last layer", "goen", "goen", fits_on=("train", "calibration")),
    _goen_m(
        "goen_m_flip_averaged",
        "goen-m, flip-averaged",
        network="goen",
        forward_mode="flip_averaged",
    ),
    _goen_m(
        "goen_m_ood",
        "goen-m, fitted with OOD",
        network="goen",
        fits_on=_WITH_OOD,
    ),
)

_TUNED = tuple(
    _method(method.key + TUNED, f"{method.title}, tuned on OOD", "tuned", fits_on=_WITH_OOD)
    for method in _ALL
    if method.key in SEARCHED
)
METHODS: Mapping[str, Method] = {method.key: method for method in (*_ALL, *_TUNED)}
"""Every method, in the order of the table."""


def with_tuned(names: Iterable[str]) -> list[str]:
    """These methods, and after them those whose parameters OOD images can choose, so chosen."""
    chosen = list(names)
    return [*chosen, *(name + TUNED for name in chosen if name in SEARCHED)]


def labels_of(array: object) -> Tensor:
    """Labels as the tensor that detectors expect."""
    return torch.as_tensor(array, dtype=torch.int64, device="cpu")
