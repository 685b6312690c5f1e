"""``Gate``: fit it, use it, save it, export it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from torch import nn

from goen.batch import take
from goen.data.input_spec import ImageInputs, InputsOption
from goen.data.inputs import Array, Images
from goen.detectors import Detector, make_detector
from goen.extraction import load_extractor
from goen.features.extractor import FeatureExtractor
from goen.features.loaded_model import LoadedModel
from goen.features.loading import as_loaded
from goen.features.pooling import Layout, Tokens
from goen.features.precomputed import Features
from goen.features.preprocess import InputPreprocessing, Preprocessing
from goen.features.reading import ModelReading
from goen.gate.base import BaseGate
from goen.gate.engine import choose_engine
from goen.gate.export.onnx import write_onnx
from goen.gate.fitting.features import GivenFeatures, fit_to_features
from goen.gate.fitting.fit import fit_gate, gate_network, own_classes, read_own_features
from goen.gate.fitting.groups import Groups
from goen.gate.fitting.sets import FitSets, open_paths
from goen.gate.fitting.update import update_gate
from goen.gate.group_p_values import group_p_values
from goen.gate.storage.pickling import Pickled, gate_contents, read_contents
from goen.gate.storage.saving import load_gate, save_gate
from goen.models.placement import full_precision


class Gate(BaseGate):
    """Classifies images, scores them, and flags OOD inputs at a false-alarm rate you choose.

    ``Gate.fit`` makes one for a classifier you have, ``goen.load`` loads a saved one. ``BaseGate``
    describes its parts.

    Example:
        >>> import goen, numpy as np
        >>> train, held_out = np.split(np.random.default_rng(0).normal(5, 1, (299, 4)), [200])
        >>> gate = goen.Gate.fit_outputs(train, None, held_out, detector="knn")
        >>> gate.predict_outputs(-held_out[:1]).p_value
        array([0.01])
    """

    @classmethod
    def fit(
        cls,
        model: nn.Module | FeatureExtractor | LoadedModel,
        train: Images | None,
        held_out: Images,
        *,
        detector: str | Detector = "goen_m",
        calibration: Images | float | None = None,
        layers: str | Sequence[str] = "auto",
        ood: Images | Mapping[str, Images] | None = None,
        false_alarm_rate: float = 0.05,
        groups: Groups | None = None,
        logits: str | int | None = None,
        preprocess: Preprocessing | InputPreprocessing | None = None,
        tokens: Tokens = "mean",
        layout: Layout = "auto",
        classes: Sequence[str] | None = None,
        flip_averaging: bool = False,
        batch_size: int = 128,
        inputs: InputsOption = "auto",
    ) -> Self:
        """A gate for a classifier you already have; its weights are not touched.

        Every set passes through the model once; no image is kept. The model is left as it was
        found, and stays the gate's network: train it further, and the gate must be fitted again.
        ``docs/own-model.md`` and ``docs/inputs.md`` have examples of everything below.

        Args:
            model: images in, logits (or something that holds them) out; or a ``FeatureExtractor``,
                or what ``goen.load_model`` returns.
            train: what it was trained on, with labels: a folder of class folders, an ``ImageSet``,
                a pair (images, labels), or an iterable of such batches, a ``DataLoader`` for one.
                Images are ``(N, C, H, W)``, uint8, uint16 or floats in [0, 1], before any
                normalisation. For other models, the tensors, tuples or dicts that they take.
                ``None`` for a detector that learns nothing from them, such as ``energy``.
            held_out: ID images it was not trained on, in the same forms, or files; labels are not
                needed. They set the threshold; a share may calibrate, see ``calibration``.
            detector: a name in ``goen.detectors.DETECTORS``, ``"best"`` for the one that separates
                the ``ood`` images best, ``"pytorch_ood.NAME"``, or a ``Detector``, of which a copy
                is fitted.
            calibration: ID images for the detector's own calibration, or the share of the held-out
                images that is used for it: by default 0.6 if it needs them (goen-m), else none.
            layers: the features that the detector can read; ``goen.list_layers`` lists them.
                ``"auto"``: the layer at half of the depth and the last before the classifier.
            ood: images that should be flagged, or a mapping of several kinds by name. They weight
                the cues and give a probability; with ``"best"`` they choose the detector.
            false_alarm_rate: the share of ID images that may be flagged.
            groups: the scene, patient or video of each held-out image, if images of one depend on
                each other. Each group then counts once.
            logits: their key, attribute or index in the model's output, if that is ambiguous.
            preprocess: of images in [0, 1], before they enter the model: ``goen.Preprocess`` or a
                function. Of other inputs: a function of them.
            tokens: of transformers: ``mean`` of all tokens, or the first (``class``).
            layout: of feature maps, where their shape is ambiguous; see ``FeatureExtractor``.
            classes: their names, in the order of the logits.
            flip_averaging: average over each image and its mirror image, at twice the time.
            batch_size: of sets and arrays; iterables have their own.
            inputs: ``images``, ``tensors`` that go into the model as they are, or ``auto``: one
                tensor of four axes is images.

        Raises:
            UsageError: invalid layers, labels, images or settings, or an unsuitable model.
            FitError: too few held-out images, or OOD images that no cue separates.
            LeakError: an image in two of the sets.
        """
        chosen = copy.deepcopy(make_detector(detector))
        loaded = as_loaded(model)
        reading = ModelReading(loaded, preprocess, tuple(() if classes is None else classes))
        sets = FitSets.open(
            chosen,
            *open_paths(reading, train, held_out, calibration, ood, batch_size, inputs),
            false_alarm_rate=false_alarm_rate,
            batch_size=batch_size,
            inputs=inputs,
        ).in_groups(groups)
        names = tuple(() if classes is None else classes) or own_classes(
            loaded.classes, sets.streams.get("train")
        )
        extractor = load_extractor(
            loaded,
            take(sets.first, slice(2)),
            images=isinstance(sets.spec, ImageInputs),
            layers=layers,
            logits=logits,
            preprocess=preprocess,
            tokens=tokens,
            layout=layout,
            reads=chosen.feature_names,
        )
        with full_precision():
            kind = type(extractor.model)
            network = gate_network(extractor, flip_averaging, sets.spec)
            if extractor not in network.modules():
                read_own_features(chosen, extractor.layers)
            return fit_gate(
                cls,
                network,
                chosen,
                sets,
                classes=names,
                made_from=f"{kind.__module__}:{kind.__qualname__}",
            )

    @classmethod
    def fit_outputs(
        cls,
        train: Features,
        labels: Array | None,
        held_out: Features,
        *,
        detector: str | Detector | None = None,
        calibration: Features | float | None = None,
        held_out_labels: Array | None = None,
        ood: Features | Mapping[str, Features] | None = None,
        false_alarm_rate: float = 0.05,
        groups: Groups | None = None,
        classes: Sequence[str] | None = None,
        batch_size: int = 4096,
    ) -> Self:
        """A gate for features you already have: embeddings on disk, or the outputs of any model.

        With logits it decides as a gate of the whole classifier would. Without them there is no
        entropy among its cues, and the label is that of the nearest class: of the class whose mean
        unit vector of the last feature is nearest. Without labels either, there is one class: it is
        a novelty detector, which says whether an embedding is like those it was fitted on.

        ``predict_outputs`` takes features of the same names and widths; so does ``update``, as
        dicts. The gate needs no model to load, and can be exported.

        Args:
            train: ``Outputs``, an array ``(N, D)``, or a dict of arrays by name, where ``logits``
                are the classifier's.
            labels: ``(N,)`` whole numbers; ``None``: the classifier's own, or one class.
            held_out: of ID inputs that trained nothing, in the same form.
            detector: as for ``fit``; goen-m if not given, without logits with its distances alone.
            calibration: as for ``fit``.
            held_out_labels: of those, if they are known: for the accuracy.
            ood: of inputs that should be flagged, or several kinds of them by name.
            false_alarm_rate: the share of ID inputs that may be flagged.
            groups: of the held-out rows, as for ``fit``.
            classes: their names.
            batch_size: rows that are measured at once.

        Raises:
            UsageError: features of different names or widths, invalid labels or settings.
            FitError: too few held-out rows, or OOD rows that no cue separates.
            LeakError: a row in two of the sets.
        """
        chosen = None if detector is None else copy.deepcopy(make_detector(detector))
        with full_precision():
            return fit_to_features(
                cls,
                GivenFeatures(train, labels, held_out, held_out_labels, calibration, ood, groups),
                chosen,
                false_alarm_rate=false_alarm_rate,
                classes=classes,
                batch_size=batch_size,
            )

    # Functions of their own modules, which document them.
    update = update_gate
    with_engine = choose_engine
    group_p_values = group_p_values
    save = save_gate
    export = write_onnx

    def __reduce__(self) -> tuple[Callable[..., Gate], Pickled]:
        """For pickles: checked bytes and the user's own model."""
        return _unpickled, gate_contents(self)


def load(
    folder: Path | str,
    model: nn.Module | LoadedModel | None = None,
    preprocess: Preprocessing | None = None,
) -> Gate:
    """The gate that was saved in this folder or in the folder of a run, or a bundled gate.

    Args:
        folder: of the gate, or of a run; or, as a string that names no folder, a bundled gate, such
            as ``"cifar10-w16"``.
        model: for a gate of ``Gate.fit``: the model, freshly built by your own code. The saved
            weights are loaded into it. No code is ever loaded from the folder. A gate with goen's
            own network needs no model. What ``goen.load_model`` returns is a model, too.
        preprocess: if the gate was fitted with a function of your own, that function.

    Raises:
        ArtifactError: there is no gate, it is damaged or of another version, or the model is
            missing, a different one, or not needed.

    Example:
        >>> load("cifar10-w16").classes[:3]
        ('airplane', 'automobile', 'bird')
    """
    return load_gate(Gate, folder, model, preprocess)


def _unpickled(
    files: dict[str, bytes], model: nn.Module | None, preprocess: Preprocessing | None
) -> Gate:
    """The gate of these files, loaded as ``load`` loads it, on the CPU."""
    return read_contents(Gate, files, model, preprocess)
