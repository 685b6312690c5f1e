from collections.abc import Callable

import pytest
import torch

from goen.detectors import FDBD, Detector, GoenM, ReAct, ViM
from goen.errors import UsageError
from goen.outputs import LinearClassifier, Outputs
from tests.detectors.centre import CLASSES, LABELS, MEASURING, WIDTH, measuring, outputs


@measuring
def test_the_last_feature_of_the_fit_is_measured(make: Callable[..., Detector]) -> None:
    detector = make().fit(outputs("a b"), LABELS)
    alone = make().fit(outputs("b"), LABELS)
    named = make(feature="b").fit(outputs("a b"), LABELS)
    probe = outputs("a b", seed=1)
    assert torch.equal(detector.score(probe), named.score(probe))
    assert torch.equal(detector.score(probe), alone.score(probe))
    assert not torch.equal(detector.score(probe), make(feature="a").fit(probe, LABELS).score(probe))


@measuring
def test_it_stays_that_feature_for_outputs_with_others(make: Callable[..., Detector]) -> None:
    detector = make().fit(outputs("a b"), LABELS)
    probe, further = outputs("a b", seed=1), outputs("a b c", seed=1)
    assert torch.equal(detector.score(further), detector.score(probe))
    turned = Outputs(probe.logits, {name: probe.features[name] for name in ("b", "a")})
    assert torch.equal(detector.score(turned), detector.score(probe))
    with pytest.raises(UsageError, match="Unknown feature 'b'"):
        detector.score(outputs("a c"))
    refitted = detector.fit(outputs("a b c"), LABELS)
    assert torch.equal(
        refitted.score(further), make(feature="c").fit(outputs("c"), LABELS).score(further)
    )


@measuring
def test_a_named_feature_wins(make: Callable[..., Detector]) -> None:
    detector = make(feature="a").fit(outputs("a b"), LABELS)
    alone = make().fit(outputs("a"), LABELS)
    probe = outputs("a b", seed=1)
    assert torch.equal(detector.score(probe), alone.score(probe))
    for missing in (outputs("b"), outputs("b c")):
        with pytest.raises(UsageError, match="Unknown feature 'a'"):
            make(feature="a").fit(missing, LABELS)


@measuring
@pytest.mark.parametrize("feature", [3, 3.5, ("a", 3)], ids=str)
def test_a_feature_is_named_by_a_string(make: Callable[..., Detector], feature: object) -> None:
    with pytest.raises(UsageError, match=r"(named by a string|by its name|one feature).*, got"):
        make(feature=feature).fit(outputs("a b"), LABELS)


@pytest.mark.parametrize("make", [make for name, make in MEASURING.items() if name != "knn"])
def test_one_feature_is_measured_not_two(make: Callable[..., Detector]) -> None:
    with pytest.raises(UsageError, match=r"[Oo]ne feature.*got .*\('a', 'b'\)"):
        make(feature=("a", "b")).fit(outputs("a b"), LABELS)


@measuring
def test_logits_alone_are_refused_by_what_measures_a_feature(
    make: Callable[..., Detector],
) -> None:
    with pytest.raises(UsageError, match="these outputs have logits alone"):
        make().fit(outputs(""), LABELS)


@pytest.mark.parametrize("make", [ViM, ReAct, FDBD])
def test_the_feature_of_the_classifier_is_measured(make: Callable[[], Detector]) -> None:
    def classified(feature: str, seed: int = 0) -> Outputs:
        given = outputs("a b", seed)
        weight = torch.eye(CLASSES, WIDTH)
        classifier = LinearClassifier(weight, torch.zeros(CLASSES), feature)
        return Outputs(given.features[feature] @ weight.T, given.features, classifier=classifier)

    for feature, other in ("ab", "ba"):
        detector = make().fit(classified(feature), LABELS)
        assert detector.features == (feature,)
        probe = classified(feature, 1)
        alone = Outputs(probe.logits, {feature: probe.features[feature]})
        assert torch.equal(detector.score(probe), detector.score(alone))
        with pytest.raises(UsageError, match=f"Unknown feature '{feature}'"):
            detector.score(Outputs(probe.logits, {other: probe.features[other]}))


def test_goen_m_measures_all_layers_of_the_fit() -> None:
    detector = GoenM().fit(outputs("a b"), LABELS)
    assert detector.features == ("a", "b")
    probe, further = outputs("a b", seed=1), outputs("a b c", seed=1)
    assert torch.equal(detector.score(further), detector.score(probe))
    assert GoenM(["a"]).fit(outputs("a b"), LABELS).features == ("a",)
    with pytest.raises(UsageError, match="Unknown feature 'a'"):
        GoenM(["a"]).fit(outputs("b c"), LABELS)
    with pytest.raises(UsageError, match="Unknown feature 'b'"):
        detector.score(outputs("a c"))
