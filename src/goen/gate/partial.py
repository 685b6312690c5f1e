"""What a fit keeps of some rows of the training set: parts of it merge in any order."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from goen.data.imageset import DIGEST, Digests, fingerprint_of
from goen.data.inputs import BatchStream
from goen.data.kinds import InputKind, TensorInputs
from goen.detectors import GoenM
from goen.detectors._bank import ROWS, Bank
from goen.errors import ArtifactError, GoenError, UsageError
from goen.extraction import run_network
from goen.gate._inputs import inputs_manifest, read_inputs
from goen.gate._network import agree, record_outputs
from goen.models.precomputed import Precomputed
from goen.runs.json_files import parse_object
from goen.runs.manifest import JsonObject, Manifest
from goen.runs.tensors import Tensors


@dataclass(frozen=True, eq=False, repr=False)
class PartialFit:
    """What a fit keeps of some rows of the training set.

    Everything in it is a choice by row number, a whole number or a list in the order of the rows,
    so parts merge to the same bytes however the set was cut and in whatever order they arrive.

    Attributes:
        bank: the features that may be kept.
        spans: the rows: first and one past the last of each run of them, in order.
        digests: a hash of each image, in the order of the rows.
        labels: of the images, in the same order.
        right: how many the classifier got right; ``None`` without a classifier.
        kind: what the inputs are.
        name: of the training set.
        classes: their names, where the images are an ``ImageSet``.
        recorded: the network's outputs for a fixed pattern, to compare networks by, if there are
            several parts.
        sums: of the unit vectors of each class, for a gate of features without a classifier.
    """

    bank: Bank
    spans: tuple[tuple[int, int], ...]
    digests: Digests
    labels: NDArray[np.int64]
    right: int | None
    kind: InputKind
    name: str
    classes: tuple[str, ...] | None = None
    recorded: tuple[Tensor, ...] = ()
    sums: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"PartialFit({self.name}: rows {_shown(self.spans)}, {self.bank})"

    @property
    def accuracy(self) -> float | None:
        """Of the classifier on these images, if there is one."""
        return None if self.right is None else self.right / len(self)

    def as_stream(self) -> BatchStream:
        """The name, the number and the hashes of the images, which are not read again."""
        return BatchStream(
            self.name, lambda: iter(()), len(self), digests=lambda: self.digests, kind=self.kind
        )

    def describe(self) -> JsonObject:
        """The name, the size and, for an ``ImageSet``, the fingerprint, for the manifest."""
        described: JsonObject = {"name": self.name, "images": len(self)}
        if self.classes is None or isinstance(self.kind, TensorInputs):
            return described
        shape = (self.kind.channels, self.kind.height, self.kind.width)
        found = fingerprint_of(shape, self.classes, self.digests, self.labels)
        return {**described, "fingerprint": found}

    def require_whole(self) -> None:
        """Raise a UsageError if rows from 0 to the last are missing."""
        ends = [0, *(end for _, end in self.spans[:-1])]
        gaps = [(a, b) for a, (b, _) in zip(ends, self.spans, strict=True) if a != b]
        if gaps:
            raise UsageError(
                f"Rows {_shown(gaps)} of the training set are missing: merge the parts that were "
                "fitted on them too. A part's first_row is the number of its first image in the "
                "whole set."
            )

    def to_bytes(self) -> bytes:
        """For a file or another process; ``from_bytes`` reads it."""
        tensors = {f"bank.{name}": values for name, values in self.bank.state().items()}
        tensors |= {f"recorded.{i}": values for i, values in enumerate(self.recorded)}
        tensors |= {f"sums.{name}": values for name, values in self.sums.items()}
        digests = np.frombuffer(np.ascontiguousarray(self.digests).tobytes(), np.uint8)
        tensors |= {
            "digests": torch.from_numpy(digests.copy()).view(-1, DIGEST.itemsize),
            "labels": torch.from_numpy(self.labels),
            "spans": torch.tensor(self.spans),
        }
        settings: JsonObject = {
            "layers": list(self.bank.layers),
            "right": self.right,
            "name": self.name,
            "classes": None if self.classes is None else list(self.classes),
            **inputs_manifest(self.kind),
        }
        plain = {name: values.contiguous() for name, values in tensors.items()}
        return save(plain, metadata={"part": json.dumps(settings)})

    @classmethod
    def from_bytes(cls, content: bytes) -> "PartialFit":
        """What ``to_bytes`` gave.

        Raises:
            ArtifactError: it is damaged, or something else.
        """
        try:
            tensors, settings = _read(content)
            spans = tensors.integers("spans", ("runs", 2), low=0).tolist()
            bank = Bank(settings.texts("layers"))
            bank.load_state(tensors.part("bank."), next_row=spans[-1][1])
            labels = tensors.integers("labels", ("images",), low=0, high=bank.num_classes - 1)
            _check_spans(spans, len(labels))
            digests = tensors.of_shape("digests", (len(labels), DIGEST.itemsize), torch.uint8)
            recorded, sums = tensors.part("recorded."), tensors.part("sums.")
            return cls(
                bank,
                tuple((start, end) for start, end in spans),
                np.frombuffer(digests.numpy().tobytes(), DIGEST),
                labels.numpy(),
                settings.integer("right") if "right" in settings else None,
                read_inputs(settings),
                settings.text("name"),
                settings.texts("classes") if "classes" in settings else None,
                tuple(recorded[str(number)] for number in range(len(recorded))),
                dict(sums),
            )
        except (GoenError, SafetensorError, LookupError, RuntimeError, ValueError) as error:
            raise ArtifactError(
                f"This is not a part of a fit that this goen can read: {str(error)[:200]}."
            ) from error

    def add_to(self, detector: GoenM, network: nn.Module) -> None:
        """Add these images to a detector and to the class means of a network of features.

        Raises:
            UsageError: another network than that which read them.
        """
        detector.add_bank(self.bank)
        if self.recorded and not agree(self.recorded, record_outputs(network, self.kind)):
            raise _other_network()
        if isinstance(network, Precomputed):
            network.add_sums(self.sums)


def read_training(
    network: nn.Module,
    layers: Sequence[str],
    train: BatchStream,
    *,
    first_row: int = 0,
    rows: int = ROWS,
) -> PartialFit:
    """One pass over consecutive rows of the training set.

    Args:
        network: gives ``Outputs``; of a ``Precomputed`` only the form is used, not the means.
        layers: whose features to keep.
        train: with labels; its kind is known.
        first_row: the number of its first image in the whole set.
        rows: of the bank.
    """
    if first_row < 0:
        raise UsageError(f"first_row is the number of an image, from 0, got {first_row}.")
    bank, labels = Bank(layers, rows), [np.zeros(0, np.int64)]
    right, next_row = 0, first_row
    means = network.emptied() if isinstance(network, Precomputed) else None
    for outputs, given in run_network(means or network, train, name=train.name, total=train.count):
        if given is None:
            raise UsageError(
                f"{train.name} needs integer labels: the stored features are drawn evenly from "
                "every class. Give a pair (images, labels), or batches of them."
            )
        bank.update(outputs, given, first_row=next_row)
        next_row += len(given)
        if means is not None:
            means.add(outputs.features, given)
        known = given.cpu()
        labels.append(known.numpy().astype(np.int64))
        right += int((outputs.logits.argmax(dim=1) == known).sum())
    numbers = np.concatenate(labels)
    assert train.kind is not None
    return PartialFit(
        bank,
        ((first_row, next_row),),
        train.digests(),
        numbers,
        None if means is not None and not means.has_logits else right,
        train.kind,
        train.name,
        None if train.images is None else train.images.classes,
        sums={} if means is None else means.class_sums(),
    )


def merge(parts: Iterable[PartialFit]) -> PartialFit:
    """One part of all the rows, whatever the order; give it to ``Gate.fit`` as ``train``.

    Merges of merges are merges: a tree of workers may do it.

    Raises:
        UsageError: none, a row in two of the parts, or parts of different sets or networks.
    """
    given = sorted(parts, key=lambda part: part.spans)
    if not given:
        raise UsageError("There are no parts to merge.")
    for part in given[1:]:
        _check_alike(given[0], part)
    runs = sorted((run for part in given for run in _runs(part)), key=lambda run: run[0])
    spans = [span for span, _, _ in runs]
    _check_disjoint(spans)
    right = [part.right for part in given if part.right is not None]
    return replace(
        given[0],
        bank=reduce(Bank.merged, (part.bank for part in given)),
        spans=_joined(spans),
        digests=np.concatenate([digests for _, digests, _ in runs]),
        labels=np.concatenate([labels for _, _, labels in runs]),
        right=sum(right) if len(right) == len(given) else None,
        sums={
            name: torch.stack([part.sums[name] for part in given]).sum(dim=0)
            for name in given[0].sums
        },
    )


def _read(content: bytes) -> tuple[Tensors, Manifest]:
    """The tensors and the settings; safetensors gives the latter from its header only."""
    size = int.from_bytes(content[:8], "little")
    header = Manifest(parse_object(content[8 : 8 + size]))
    settings = parse_object(header.part("__metadata__").text("part").encode())
    return Tensors(load(content)), Manifest(settings)


def _check_spans(spans: Sequence[Sequence[int]], count: int) -> None:
    """Raise a ValueError unless these are so many rows, in order."""
    ends = [row for span in spans for row in span]
    rows = sum(end - start for start, end in spans)
    if rows != count or any(a >= b for a, b in spans) or ends != sorted(ends):
        raise ValueError(f"its spans should be those of {count} rows, in order, got {spans[:5]}")


def _runs(part: PartialFit) -> Iterator[tuple[tuple[int, int], Digests, NDArray[np.int64]]]:
    """Each run of consecutive rows, with its hashes and labels."""
    begin = 0
    for start, end in part.spans:
        rows = slice(begin, begin + end - start)
        yield (start, end), part.digests[rows], part.labels[rows]
        begin = rows.stop


def _check_disjoint(spans: Sequence[tuple[int, int]]) -> None:
    for (_, end), (start, stop) in pairwise(spans):
        if start < end:
            raise UsageError(
                f"Rows {_shown([(start, min(end, stop))])} of the training set are in two parts: "
                "was a part merged twice, or its first_row left out? It is the number of its "
                "first image in the whole set."
            )


def _check_alike(one: PartialFit, two: PartialFit) -> None:
    if (one.name, one.classes) != (two.name, two.classes):
        raise UsageError(
            "Parts are of one training set, with one name and the same classes; got "
            f"{one.name} and {two.name}."
        )
    # Texts have their own length in each part, and outputs of other lengths cannot be compared.
    if one.kind == two.kind:
        alike = agree(one.recorded, two.recorded)
    else:
        alike = isinstance(one.kind, TensorInputs) and isinstance(two.kind, TensorInputs)
    if not alike:
        raise _other_network()


def _other_network() -> UsageError:
    return UsageError(
        "The parts were read with another network than this: with other weights, layers, "
        "preprocessing, flip averaging or inputs. Load the same weights in every worker and name "
        "the layers."
    )


def _joined(spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Sorted spans, of which those that touch are one.

    Example:
        >>> _joined([(0, 4), (4, 6), (8, 9)])
        ((0, 6), (8, 9))
    """
    joined = [spans[0]]
    for start, end in spans[1:]:
        if start == joined[-1][1]:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)


def _shown(spans: Sequence[tuple[int, int]]) -> str:
    shown = [f"{start:,} to {end - 1:,}" for start, end in spans[:5]]
    return ", ".join(shown) + (", ..." if len(spans) > 5 else "")
