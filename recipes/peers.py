"""Detectors of OpenOOD and pytorch-ood on the outputs that goen's are fitted on and scored by.

    python recipes/peers.py --openood FOLDER

Prints, for every method with a peer, Spearman's correlation of the two scores over all ID and OOD
images, both AUROCs, and the reason where they differ. goen's detector has the peer's settings, so
that a difference is one of definition or precision; goen's own defaults are in the docstrings.

Needs an environment of its own beside goen's (goen needs none of it):

    pip install goen pytorch-ood==0.4.0 faiss-cpu statsmodels tqdm
    git clone https://github.com/Jingkang50/OpenOOD FOLDER     (its code is read, not installed)

Either peer is left out where it is not there. The network is that of ``goen bench`` on the digits,
trained in half a minute; OpenOOD's postprocessors are given its features in place of images, with a
network that only has the last layer. They ask for CUDA; here a tensor stays where it is.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

import goen
from goen import detectors as own
from goen.data import Protocol
from goen.features.preprocess import perturbed_by
from goen.io.stages import Stages
from goen.metrics import ood_metrics
from goen.outputs import Outputs
from goen.studies.experiment import Experiment

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.torchvision_import import import_torchvision

BATCH = 256
ALL = 10**9
"""Rows of a bank that keeps all training images, as the peers do."""


@dataclass(frozen=True)
class Data:
    """What every detector is given."""

    train: Outputs
    labels: Tensor
    held_out: Outputs
    test: Outputs
    ood: Outputs

    @property
    def scored(self) -> Outputs:
        return Outputs.concatenate([self.test, self.ood])


Score = Callable[[Outputs], Tensor]
"""A fitted peer."""
PytorchOod = Callable[[ModuleType, "Head", Data], Score]
"""Fits a detector of the module ``pytorch_ood.detector``."""


@dataclass(frozen=True)
class Case:
    """A method, and how each peer is run; ``reason`` is why the numbers differ."""

    detector: own.Detector
    openood: tuple[str, str, dict[str, Any]] | None = None
    pytorch_ood: PytorchOod | None = None
    reason: dict[str, str] | None = None


class Head(nn.Module):
    """A network whose images are features already: the last layer, with OpenOOD's methods."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        classifier = data.train.classifier
        assert classifier is not None
        self.fc = nn.Linear(*classifier.weight.T.shape)
        self.fc.weight.data, self.fc.bias.data = classifier.weight.clone(), classifier.bias.clone()
        self.feature_size = classifier.weight.shape[1]

    def forward(self, x: Tensor, return_feature: bool = False) -> Any:
        logits = self.fc(x.flatten(1))
        return (logits, x) if return_feature else logits

    def get_fc(self) -> tuple[np.ndarray, np.ndarray]:
        return self.fc.weight.detach().numpy(), self.fc.bias.detach().numpy()

    def get_fc_layer(self) -> nn.Linear:
        return self.fc


# -- OpenOOD -------------------------------------------------------------------------------------


class Loader:
    """Batches as OpenOOD's data loaders have them."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.features, self.labels = features, labels
        self.batch_size, self.dataset = BATCH, features

    def __len__(self) -> int:
        return -(-len(self.features) // BATCH)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for start in range(0, len(self.features), BATCH):
            part = slice(start, start + BATCH)
            # A copy, since some postprocessors write into what they are given.
            yield {"data": self.features[part].clone(), "label": self.labels[part]}


def openood_modules(folder: Path) -> None:
    """Make single modules of OpenOOD importable, without its packages' long list of imports."""
    for part in ("", ".postprocessors", ".networks", ".utils", ".preprocessors"):
        name = f"openood{part}"
        package = ModuleType(name)
        package.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = package
    torch.Tensor.cuda = nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]


def openood_fitted(module: str, name: str, args: dict[str, Any], data: Data) -> Score:
    """Minus the confidence of an OpenOOD postprocessor, which is fitted here."""
    info = importlib.import_module("openood.postprocessors.info")
    info.num_classes_dict["goen"] = data.train.logits.shape[1]
    wrapper = args.get("net")
    head = Head(data).eval()
    network = head
    if wrapper is not None:
        networks, of_network = wrapper
        network = getattr(importlib.import_module(f"openood.networks.{networks}"), of_network)(head)
        network.fc = head.fc
    config = SimpleNamespace(
        dataset=SimpleNamespace(name="goen"),
        postprocessor=SimpleNamespace(
            postprocessor_args=SimpleNamespace(**args), postprocessor_sweep={}
        ),
    )
    made = getattr(importlib.import_module(f"openood.postprocessors.{module}"), name)(config)
    fits = {"train": data.train, "val": data.held_out, "test": data.held_out}
    fits |= {"val": data.train} if args.get("val_is_train") else {}
    loaders = {
        role: Loader(outputs.features["z"], _labels(outputs)) for role, outputs in fits.items()
    }
    made.setup(network, loaders, {})

    def score(outputs: Outputs) -> Tensor:
        batches = outputs.features["z"].split(BATCH)
        found = [made.postprocess(network, rows.clone())[1] for rows in batches]
        return -torch.cat([torch.as_tensor(part) for part in found]).double()

    return score


def _labels(outputs: Outputs) -> Tensor:
    return outputs.logits.argmax(1) if outputs.labels is None else outputs.labels


# -- pytorch-ood ---------------------------------------------------------------------------------


def on_features(name: str, **settings: Any) -> PytorchOod:
    """A detector of pytorch-ood with an encoder and a head."""

    def fit(peers: ModuleType, head: Head, data: Data) -> Score:
        made = getattr(peers, name)(None, head.fc, **settings)
        if hasattr(made, "fit_features"):
            made.fit_features(data.train.features["z"], data.labels)
        return lambda outputs: made.predict_features(outputs.features["z"])

    return fit


def on_weights(name: str, *first: Any, **settings: Any) -> PytorchOod:
    """A detector of pytorch-ood that is given the weights of the last layer."""

    def fit(peers: ModuleType, head: Head, data: Data) -> Score:
        weights = {"w": head.fc.weight.detach(), "b": head.fc.bias.detach()}
        made = getattr(peers, name)(None, *first, **weights, **settings)
        made.fit_features(data.train.features["z"], data.labels)
        return lambda outputs: made.predict_features(outputs.features["z"])

    return fit


def on_features_alone(name: str, **settings: Any) -> PytorchOod:
    """A detector of pytorch-ood with an encoder and no head."""

    def fit(peers: ModuleType, head: Head, data: Data) -> Score:
        made = getattr(peers, name)(None, **settings)
        made.fit_features(data.train.features["z"], data.labels)
        return lambda outputs: made.predict_features(outputs.features["z"])

    return fit


def on_texts(peers: ModuleType, head: Head, data: Data) -> Score:
    """MCM of pytorch-ood, with the last layer's weights as the embeddings of the class names."""
    made = peers.MCM(None, head.fc.weight.detach())
    return lambda outputs: made.predict_features(outputs.features["z"])


def on_maps(name: str, **settings: Any) -> PytorchOod:
    """A detector of pytorch-ood for feature maps, given maps of one pixel."""

    def fit(peers: ModuleType, head: Head, data: Data) -> Score:
        made = getattr(peers, name)(None, head, **settings)
        if hasattr(made, "fit_feature_maps"):
            made.fit_feature_maps(data.train.features["z"][:, :, None, None], data.labels)
        return lambda outputs: made.predict_feature_maps(
            outputs.features["z"][:, :, None, None].clone()
        )

    return fit


def on_logits(name: str, *, fit: bool = False, **settings: Any) -> PytorchOod:
    """A detector of pytorch-ood for logits."""

    def fitted(peers: ModuleType, head: Head, data: Data) -> Score:
        made = getattr(peers, name)(None, **settings)
        if name in ("KLMatching", "TemperatureScaling"):
            with torch.enable_grad():
                made.fit_logits(data.held_out.logits, _labels(data.held_out))
        elif fit:
            made.fit_logits(data.train.logits, data.labels)
        return lambda outputs: made.predict_logits(outputs.logits)

    return fitted


def gradnorm(peers: ModuleType, head: Head, data: Data) -> Score:
    """GradNorm of pytorch-ood, with the gradient of the last layer's weights."""
    made = peers.GradNorm(head, param_filter=lambda name: name == "fc.weight")

    def score(outputs: Outputs) -> Tensor:
        return torch.cat([made.predict(rows) for rows in outputs.features["z"].split(BATCH)])

    return score


# -- the comparison ------------------------------------------------------------------------------

RIDGE = "goen's ridge of 1e-6; the peer inverts in float32"
CLIPPED = "another function: small entries are raised to the low percentile, not set to 0"


def cases(width: int) -> dict[str, Case]:
    """Every method that a peer has, with the peer's default settings."""
    half = width // 2
    none: dict[str, Any] = {}
    return {
        "max_softmax": Case(
            own.MaxSoftmax(), ("base_postprocessor", "BasePostprocessor", none),
            on_logits("MaxSoftmax"),
            {"*": "the peer's probability ties at 1 in float32"},
        ),
        "max_logit": Case(
            own.MaxLogit(), ("maxlogit_postprocessor", "MaxLogitPostprocessor", none),
            on_logits("MaxLogit"),
        ),
        "energy": Case(
            own.Energy(), ("ebo_postprocessor", "EBOPostprocessor", {"temperature": 1}),
            on_logits("EnergyBased"),
        ),
        "entropy": Case(
            own.Entropy(), None, on_logits("Entropy"),
            {"*": "the peer's entropies near 0 tie in float32"},
        ),
        "gen": Case(
            own.GEN(), ("gen_postprocessor", "GENPostprocessor", {"gamma": 0.1, "M": 100}),
            on_logits("GEN", M=100), {"*": "the peer's 1 - p is rounded to 0 in float32",
             "pytorch-ood": "the peer's p lies in 1e-7 .. 1 - 1e-7"},
        ),
        "kl_matching": Case(
            own.KLMatching(), ("kl_matching_postprocessor", "KLMatchingPostprocessor", none),
            on_logits("KLMatching"), {"*": "the peer's divergences near 0 are float32 rounding"},
        ),
        "temperature_scaling": Case(
            own.TemperatureScaling(), None, on_logits("TemperatureScaling"),
            {"*": "the peer's L-BFGS stops after 50 steps of 0.01"},
        ),
        "openmax": Case(
            own.OpenMax(tail=25, alpha=10), None, on_logits("OpenMax", fit=True),
            {"*": "the peer's probability ties at 1 in float64; it fits all rows, right or wrong"},
        ),
        "mcm": Case(
            own.MCM(), None, on_texts, {"*": "the peer's probability ties in float32"},
        ),
        "gradnorm": Case(
            own.GradNorm(), ("gradnorm_postprocessor", "GradNormPostprocessor", none), gradnorm
        ),
        "she": Case(
            own.SHE(), ("she_postprocessor", "SHEPostprocessor", {"metric": "inner_product"}),
            on_features("SHE"),
        ),
        "she_cosine": Case(
            own.SHE(similarity="cosine"),
            ("she_postprocessor", "SHEPostprocessor", {"metric": "cosine"}),
        ),
        "nci": Case(
            own.NCI(), ("nci_postprocessor", "NCIPostprocessor", {"alpha": 0.0}),
            on_features("NCI"),
        ),
        "fdbd": Case(
            own.FDBD(),
            ("fdbd_postprocessor", "fDBDPostprocessor", {"distance_as_normalizer": True}),
            on_features("fDBD"),
        ),
        "nnguide": Case(
            own.NNGuide(rows=ALL), ("nnguide_postprocessor", "NNGuidePostprocessor",
                                    {"K": 10, "alpha": 2.0}),
            on_features("NNGuide"),
        ),
        "knn": Case(
            own.KNN(k=50), ("knn_postprocessor", "KNNPostprocessor", {"K": 50}),
            on_features_alone("KNN", k=50),
        ),
        "relation": Case(
            own.Relation(rows=ALL), ("relation_postprocessor", "RelationPostprocessor", {"pow": 1})
        ),
        "vim": Case(
            own.ViM(dim=half), ("vim_postprocessor", "VIMPostprocessor", {"dim": half}),
            on_weights("ViM", half),
        ),
        "residual": Case(
            own.Residual(dim=half),
            ("residual_postprocessor", "ResidualPostprocessor",
             {"dim": half, "val_is_train": True}),
        ),
        "mahalanobis": Case(
            own.Mahalanobis(), ("mds_postprocessor", "MDSPostprocessor", none),
            on_features_alone("Mahalanobis"), {"*": RIDGE},
        ),
        "relative_mahalanobis": Case(
            own.RelativeMahalanobis(), ("rmds_postprocessor", "RMDSPostprocessor", none),
            on_features_alone("RMD"), {"*": RIDGE},
        ),
        "react": Case(
            own.ReAct(), ("react_postprocessor", "ReactPostprocessor",
                          {"percentile": 90, "val_is_train": True,
                           "net": ("react_net", "ReactNet")}),
            on_maps("ReAct", percentile=0.9),
        ),
        "ash": Case(
            own.ASH(percentile=65), None, on_maps("ASH", variant="ash-s", percentile=0.65)
        ),
        "ash_b": Case(
            own.ASH(treatment="binarise", percentile=65),
            ("ash_postprocessor", "ASHPostprocessor",
             {"percentile": 65, "net": ("ash_net", "ASHNet")}),
            on_maps("ASH", variant="ash-b", percentile=0.65),
        ),
        "ash_p": Case(
            own.ASH(treatment="prune", percentile=65), None,
            on_maps("ASH", variant="ash-p", percentile=0.65),
        ),
        "scale": Case(
            own.SCALE(percentile=65),
            ("scale_postprocessor", "ScalePostprocessor",
             {"percentile": 65, "net": ("scale_net", "ScaleNet")}),
            on_maps("SCALE", percentile=0.65),
        ),
        "lts": Case(own.LTS(), None, on_features("LTS")),
        "dice": Case(
            own.DICE(percentile=70), ("dice_postprocessor", "DICEPostprocessor", {"p": 70}),
            on_weights("DICE", p=0.7),
        ),
        "vra": Case(
            own.VRA(low=60, high=90),
            ("vra_postprocessor", "VRAPostprocessor",
             {"percentile_low": 60, "percentile_high": 90, "val_is_train": True}),
            on_maps("VRA", lower_percentile=0.6, upper_percentile=0.9),
            {"*": CLIPPED},
        ),
    }  # fmt: skip


def trained() -> tuple[Experiment, Protocol]:
    """The standard network of ``goen bench`` on the digits, and the images."""
    protocol = goen.data.protocol("digits")
    return Experiment("digits", "full", 42, protocol, Stages(Path("runs/stages"))), protocol


def outputs() -> Data:
    """Of that network."""
    experiment, protocol = trained()

    def of(images: Any) -> Outputs:
        found, _ = experiment.outputs("standard", images)
        return found

    ood = [of(each.images) for each in protocol.evaluation.values()]
    labels = torch.as_tensor(protocol.train.labels, dtype=torch.int64)
    train = of(protocol.train)
    train = Outputs(train.logits, train.features, classifier=train.classifier, labels=labels)
    held_out = of(protocol.calibration_id)
    numbers = torch.as_tensor(protocol.calibration_id.labels, dtype=torch.int64)
    held_out = Outputs(held_out.logits, held_out.features, labels=numbers)
    return Data(train, labels, held_out, of(protocol.test), Outputs.concatenate(ood))


# -- methods that move images ---------------------------------------------------------------------


class Network(nn.Module):
    """goen's network with OpenOOD's methods; images are floats in [0, 1]."""

    def __init__(self, network: nn.Module, head: Head) -> None:
        super().__init__()
        self.network, self.fc, self.feature_size = network, head.fc, head.feature_size

    def forward(self, x: Tensor, return_feature: bool = False) -> Any:
        outputs = self.network(x)
        return (outputs.logits, outputs.features["z"]) if return_feature else outputs.logits

    def get_fc_layer(self) -> nn.Linear:
        return self.fc


def image_cases() -> dict[str, tuple[own.Detector, str, str, dict[str, Any]]]:
    """OpenOOD divides ODIN's step by a standard deviation, of an unknown dataset 0.5."""
    odin = {"temperature": 1000, "noise": 0.0007}
    # 1 % of 64 entries are none in OpenOOD, and at least one in goen, as 2 % are.
    ada = {"percentile": (75, 85), "k1": 5, "k2": 2, "lmbda": 10, "o": 0.05}
    of_ada = ("adascale_postprocessor", "AdaScalePostprocessor")
    return {
        "odin": (own.ODIN(), "odin_postprocessor", "ODINPostprocessor", odin),
        "i_odin": (own.ODIN(one_value=True), "iodin_postprocessor", "IODINPostprocessor", odin),
        "adascale": (own.AdaSCALE(epsilon=0.5), *of_ada, {**ada, "net": "AdaScaleANet"}),
        "adascale_l": (
            own.AdaSCALE(epsilon=0.5, scaled="logits"), *of_ada, {**ada, "net": "AdaScaleLNet"}
        ),
    }  # fmt: skip


def image_rows(data: Data, chosen: list[str] | None) -> Iterator[str]:
    """The rows of methods that move images, on the same images and network."""
    experiment, protocol = trained()
    network = experiment.members("standard")[0].network.eval()
    plain = Network(network, Head(data))
    sets = [protocol.test, *(each.images for each in protocol.evaluation.values())]
    held_out, *scored = (
        torch.from_numpy(images.read()) / 255 for images in (protocol.calibration_id, *sets)
    )
    for name, (detector, module, cls, args) in image_cases().items():
        if chosen and name not in chosen:
            continue
        running = detector.prepare_network(network)
        with perturbed_by(0.5):
            held, ours = goen.extract(running, held_out), goen.extract(running, torch.cat(scored))
        if detector.needs_fit:
            detector.fit(data.train, data.labels, held_out=held)
        config = SimpleNamespace(
            dataset=SimpleNamespace(name="goen"),
            postprocessor=SimpleNamespace(
                postprocessor_args=SimpleNamespace(**args), postprocessor_sweep={}
            ),
        )
        made = getattr(importlib.import_module(f"openood.postprocessors.{module}"), cls)(config)
        peer: nn.Module = plain
        if "net" in args:
            nets = importlib.import_module("openood.networks.adascale_net")
            peer = getattr(nets, args["net"])(plain)
        with perturbed_by(0.5):
            made.setup(peer, {"val": Loader(held_out, held_out[:, 0, 0, 0])}, {})
            if "net" in args:
                made.set_hyperparam([args[key] for key in ("percentile", "k1", "k2", "lmbda", "o")])
            batches = torch.cat(scored).split(BATCH)
            found = [made.postprocess(peer, rows.clone())[1].detach() for rows in batches]
        reason = "images moved in float32: ties of gradients and ranks fall otherwise"
        yield compared(name, "OpenOOD", detector.score(ours), -torch.cat(found), data, reason)


def compared(name: str, peer: str, ours: Tensor, theirs: Tensor, data: Data, reason: str) -> str:
    """A row of the table."""
    split = len(data.test)
    values = [
        ood_metrics(s[:split].numpy(), s[split:].numpy()).auroc for s in (ours, theirs.double())
    ]
    rank = spearmanr(ours.numpy(), theirs.double().numpy()).statistic
    difference = values[1] - values[0]
    agree = rank > 0.99999 and abs(difference) < 1e-5
    return (
        f"| {name} | {peer} | {rank:.5f} | {values[0]:.4f} | {values[1]:.4f} "
        f"| {difference:+.5f} | {'' if agree else reason or 'NOT EXPLAINED'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--openood", type=Path, help="a checkout of OpenOOD")
    parser.add_argument("--methods", nargs="*", help="keys of goen.detectors; all if none is given")
    arguments = parser.parse_args()
    data = outputs()
    head = Head(data).eval()
    peers: ModuleType | None = None
    try:
        import_torchvision()
        peers = importlib.import_module("pytorch_ood.detector")
    except ImportError:
        print("pytorch-ood is not installed: left out.", file=sys.stderr)
    if arguments.openood is not None:
        openood_modules(arguments.openood)
    print("| method | peer | Spearman | AUROC goen | AUROC peer | difference | reason |")
    print("|---|---|---|---|---|---|---|")
    for name, case in cases(data.train.feature("z").shape[1]).items():
        if arguments.methods and name not in arguments.methods:
            continue
        ours = case.detector.fit(data.train, data.labels, held_out=data.held_out).score(data.scored)
        fits: dict[str, Callable[[], Score]] = {}
        if case.openood is not None and arguments.openood is not None:
            module, cls, args = case.openood
            fits["OpenOOD"] = lambda m=module, c=cls, a=args: openood_fitted(m, c, a, data)
        if case.pytorch_ood is not None and peers is not None:
            fits["pytorch-ood"] = lambda p=peers, fit=case.pytorch_ood: fit(p, head, data)
        for peer, fit in fits.items():
            reasons = case.reason or {}
            reason = reasons.get(peer, reasons.get("*", ""))
            with torch.no_grad():
                theirs = fit()(data.scored)
            print(compared(name, peer, ours, torch.as_tensor(theirs), data, reason), flush=True)
    if arguments.openood is not None:
        for row in image_rows(data, arguments.methods):
            print(row, flush=True)


if __name__ == "__main__":
    main()
