"""Detectors by name: those that a gate, a study or a command can be asked for."""

from collections.abc import Callable, Mapping
from functools import partial

from goen.detectors._bank import NearestImages
from goen.detectors._base import Detector
from goen.detectors.adascale import AdaSCALE
from goen.detectors.ash import ASH
from goen.detectors.best import Best
from goen.detectors.class_mixture import ClassMixture
from goen.detectors.ctm import CTM
from goen.detectors.dice import DICE
from goen.detectors.energy import Energy
from goen.detectors.entropy import Entropy
from goen.detectors.fdbd import FDBD
from goen.detectors.flow import Flow
from goen.detectors.gen import GEN
from goen.detectors.goen import Goen
from goen.detectors.goen_m import GoenM
from goen.detectors.gradnorm import GradNorm
from goen.detectors.kl_matching import KLMatching
from goen.detectors.knn import KNN
from goen.detectors.mahalanobis import Mahalanobis
from goen.detectors.masf import MaSF
from goen.detectors.max_logit import MaxLogit
from goen.detectors.max_softmax import MaxSoftmax
from goen.detectors.mcm import MCM
from goen.detectors.multilayer_mahalanobis import MultilayerMahalanobis
from goen.detectors.nac import NAC
from goen.detectors.nci import NCI
from goen.detectors.neco import NECO
from goen.detectors.neg_label import NegLabel
from goen.detectors.nnguide import NNGuide
from goen.detectors.odin import ODIN, Perturbed
from goen.detectors.openmax import OpenMax
from goen.detectors.optfs import OptFS
from goen.detectors.pytorch_ood import PytorchOod, pytorch_ood
from goen.detectors.react import ReAct
from goen.detectors.relation import Relation
from goen.detectors.relative_mahalanobis import RelativeMahalanobis
from goen.detectors.residual import Residual
from goen.detectors.scale import LTS, SCALE
from goen.detectors.she import SHE
from goen.detectors.temperature_scaling import TemperatureScaling
from goen.detectors.tuned import SEARCHED, TUNED, tuned
from goen.detectors.uncertainty import Uncertainty
from goen.detectors.vim import ViM
from goen.detectors.vra import VRA
from goen.errors import UsageError, quoted, unknown
from goen.io.limits import CLASSES
from goen.io.manifest import JsonObject, Manifest
from goen.io.tensors import Tensors

__all__ = [
    "ASH",
    "CTM",
    "DETECTORS",
    "DICE",
    "FDBD",
    "GEN",
    "KNN",
    "LTS",
    "MCM",
    "NAC",
    "NCI",
    "NECO",
    "ODIN",
    "SCALE",
    "SHE",
    "VRA",
    "AdaSCALE",
    "Best",
    "ClassMixture",
    "Detector",
    "Energy",
    "Entropy",
    "Flow",
    "Goen",
    "GoenM",
    "GradNorm",
    "KLMatching",
    "MaSF",
    "Mahalanobis",
    "MaxLogit",
    "MaxSoftmax",
    "MultilayerMahalanobis",
    "NNGuide",
    "NearestImages",
    "NegLabel",
    "OpenMax",
    "OptFS",
    "Perturbed",
    "PytorchOod",
    "ReAct",
    "Relation",
    "RelativeMahalanobis",
    "Residual",
    "TemperatureScaling",
    "Uncertainty",
    "ViM",
    "load_detector",
    "make_detector",
    "needs_of",
]

DETECTORS: Mapping[str, Callable[[], Detector]] = {
    "adascale": AdaSCALE,
    "adascale_l": partial(AdaSCALE, scaled="logits"),
    "ash": ASH,
    "ash_b": partial(ASH, treatment="binarise"),
    "ash_p": partial(ASH, treatment="prune"),
    "class_mixture": ClassMixture,
    "ctm": CTM,
    "dice": DICE,
    "energy": Energy,
    "entropy": Entropy,
    "fdbd": FDBD,
    "flow": Flow,
    "gen": GEN,
    "goen": Goen,
    "goen_m": GoenM,
    "goen_m_last": partial(GoenM, layers="last"),
    "gradnorm": GradNorm,
    "i_odin": partial(ODIN, one_value=True),
    "kl_matching": KLMatching,
    "knn": KNN,
    "lts": LTS,
    "mahalanobis": Mahalanobis,
    "mahalanobis_pp": partial(Mahalanobis, normalise=True),
    "masf": MaSF,
    "max_logit": MaxLogit,
    "max_softmax": MaxSoftmax,
    "mcm": MCM,
    "mm_pp": MultilayerMahalanobis,
    "nac": NAC,
    "nci": NCI,
    "neco": NECO,
    "nnguide": NNGuide,
    "odin": ODIN,
    "openmax": OpenMax,
    "optfs": OptFS,
    "react": ReAct,
    "relation": Relation,
    "relative_mahalanobis": RelativeMahalanobis,
    "relative_mahalanobis_pp": partial(RelativeMahalanobis, normalise=True),
    "residual": Residual,
    "scale": SCALE,
    "she": SHE,
    "she_cosine": partial(SHE, similarity="cosine"),
    "temperature_scaling": TemperatureScaling,
    "uncertainty": Uncertainty,
    "vim": ViM,
    "vra": VRA,
}
"""Every detector with its default settings, by name."""

BEST = "best"
"""In place of a name: the one that separates given OOD images best, see ``Best``."""
_NOT_COMPARED = ("uncertainty",)


def candidates() -> dict[str, Callable[[], Detector]]:
    """Detectors that score plain outputs of any classifier, which ``best`` chooses from."""
    return {
        name: make
        for name, make in DETECTORS.items()
        if name not in _NOT_COMPARED and not make().needs_gradient
    }


# NegLabel has no name for commands: only Python can give it words.
_CLASSES: Mapping[str, type[Detector]] = {
    make.name: make
    for make in (*DETECTORS.values(), NegLabel)
    if isinstance(make, type) and issubclass(make, Detector)
}
_PYTORCH_OOD = "pytorch_ood."


def make_detector(detector: str | Detector) -> Detector:
    """The detector of this name, not fitted; a ``Detector`` is returned as it is.

    Args:
        detector: a name in ``DETECTORS``, ``best`` for the one that separates given OOD images
            best, such a name with ``_tuned`` behind it for the parameters that do so,
            ``pytorch_ood.NAME`` for a class of pytorch-ood, or a detector.

    Example:
        >>> make_detector("mahalanobis_pp")
        Mahalanobis(normalise=True)
    """
    if isinstance(detector, Detector):
        return detector
    if not isinstance(detector, str):
        raise UsageError(
            "A detector is a name, such as 'knn', or an object, such as goen.detectors.KNN(k=5); "
            f"got {detector!r}."
        )
    if detector.startswith(_PYTORCH_OOD):
        return pytorch_ood(detector.removeprefix(_PYTORCH_OOD))
    if detector == BEST:
        return Best.among(candidates())
    name = detector.removesuffix(TUNED)
    if name != detector and name in SEARCHED:
        return tuned(name, DETECTORS[name])
    if detector not in DETECTORS:
        raise unknown("detector", detector, [*DETECTORS, BEST, *(s + TUNED for s in SEARCHED)])
    return DETECTORS[detector]()


def needs_of(detector: Detector) -> tuple[str, ...]:
    """What a detector reads beside the training images and their logits; ``logits`` if nothing.

    Example:
        >>> needs_of(GoenM()), needs_of(Energy())
        (('feature', 'held-out'), ('logits',))
    """
    found = {
        "classifier": detector.needs_classifier,
        "feature": hasattr(detector, "feature") and not detector.needs_classifier,
        "held-out": detector.calibrates(with_ood=False),
        "gradient": detector.needs_gradient,
    }
    return tuple(name for name, needed in found.items() if needed) or ("logits",)


def detector_manifest(detector: Detector) -> JsonObject:
    """Everything of a fitted detector that is no tensor.

    Raises:
        UsageError: it is not one of goen's, so nothing could load it.
    """
    if _CLASSES.get(detector.name) is not type(detector):
        raise UsageError(
            f"{detector} is not among the detectors of goen, so a gate with it could be saved but "
            "not loaded. Add its class to goen.detectors, see docs/methods/adding.md."
        )
    return {
        "name": detector.name,
        "settings": detector.settings(),
        "features": list(detector.widths_ or {}),
        "widths": list((detector.widths_ or {}).values()),
        "num_classes": detector.num_classes_,
    }


def load_detector(manifest: Manifest, tensors: Tensors) -> Detector:
    """The detector that ``detector_manifest`` and ``Detector.state`` describe.

    Raises:
        ValueError: they do not describe a fitted detector; the message says where.
    """
    manifest.check_names(["name", "settings", "features", "widths", "num_classes"])
    name = manifest.text("name")
    if name not in _CLASSES:
        raise ValueError(f"its detector {quoted(name)} is unknown")
    detector = _CLASSES[name].from_settings(manifest.part("settings").content)
    features, widths = manifest.texts("features"), manifest.counts("widths")
    classes = manifest.integer("num_classes")
    if not 0 <= classes <= CLASSES or len({*features}) != len(widths):
        raise ValueError(f"its detector was fitted on {classes} classes and {features[:5]}")
    wanted = getattr(detector, "feature", None)
    if wanted is not None and features != ((wanted,) if isinstance(wanted, str) else wanted):
        raise ValueError(f"its detector should read {wanted}, got {features[:5]}")
    return detector.load_state(tensors, dict(zip(features, widths, strict=True)), classes)
