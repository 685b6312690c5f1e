"""The networks of a study."""

from goen.studies.experiment import NETWORKS, variant_of

from ..tiny import TINY


def test_the_papers_budget_trains_baselines_longer_and_stops_early() -> None:
    standard = variant_of(TINY, "standard", "paper")
    assert (standard.training.epochs, standard.network.representation) == (8, "plain")
    assert standard.training.label_smoothing == 0
    goen = variant_of(TINY, "goen", "paper")
    assert (goen.training.epochs, goen.training.label_smoothing) == (3, 0.1)
    same = {variant_of(TINY, name, "full").training.epochs for name in NETWORKS}
    assert same == {3}
