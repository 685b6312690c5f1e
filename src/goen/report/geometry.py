"""The page of a study of the feature space's shape."""

from collections.abc import Sequence

from markupsafe import Markup

from goen.report.blocks import Block, Drawing, Gallery, Numbers, Page, Section, Words, slug
from goen.report.figures.geometry import measure_bars, over_epochs
from goen.report.run_folder import RunFolder

_WORDS = {
    "inter_intra_ratio": "inter/intra class ratio",
    "total_top_share": "top component's share of the variance",
    "top_component_share": "top component's share of the variance",
    "condition_number": "condition number",
    "condition_number_normalised": "condition number, normalised",
    "condition_number_ridged": "condition number with the ridge",
    "total_effective_rank": "effective rank",
    "nc1": "NC1: spread within classes (0 = collapsed)",
    "nc2_equinorm": "NC2: equal lengths (0 = collapsed)",
    "nc2_equiangularity": "NC2: equal angles (0 = collapsed)",
    "nc2_simplex": "NC2: distance from the simplex (0 = collapsed)",
    "nc3": "NC3: weights against means (0 = collapsed)",
    "nc4": "NC4: agreement with the nearest mean (1 = collapsed)",
}
# The feature that the distance is measured in, and the classifier reads.
_MAIN = "z"
_TRAINING = frozenset(
    "variant epoch loss accuracy validation_loss validation_accuracy learning_rate seconds".split()
)


def geometry_page(run: RunFolder, beside: Sequence[RunFolder]) -> Page:
    """Bars per variant, lines by epoch, and every number."""
    del beside
    variants = list(dict.fromkeys(r.method for r in run.results))
    lead = Markup(
        "The shape of the features of {} variants trained on {}: how tight the classes are, how far"
        " apart, how flat the whole, and whether it has collapsed."
    ).format(len(variants), run.summary["data"])
    words = (
        "The paper's argument is that CenterLoss compresses the classes and that this hurts "
        "detection. Compare variants with and without it. Raw is the feature as it is, unit the "
        "same scaled to length one."
    )
    sections = [
        Section("After training", _bars(run)),
        Section("During training", _lines(run)),
        Section("The numbers", list(map(Numbers, run.tables()))),
    ]
    summary = [Words(lead, "lead"), Words(words)]
    return Page(f"Geometry on {run.summary['data']}", summary, sections)


def split_metric(metric: str) -> tuple[str, str]:
    """The feature and the measure of a metric; the feature is empty where none is named.

    Example:
        >>> split_metric("z/raw/nc1"), split_metric("nc1")
        (('z raw', 'nc1'), ('', 'nc1'))
    """
    feature, _, measure = metric.rpartition("/")
    return feature.replace("/", " "), measure


def _bars(run: RunFolder) -> list[Block]:
    features = dict.fromkeys(split_metric(r.metric)[0] for r in run.results)
    shown = [f for f in features if f.startswith(_MAIN)] or list(features)
    drawings = []
    for measure, words in _WORDS.items():
        by_variant: dict[str, dict[str, float]] = {}
        for r in run.results:
            feature, name = split_metric(r.metric)
            if name == measure and r.dataset == "train" and feature in shown:
                by_variant.setdefault(run.label(r.method), {})[feature] = r.value
        if by_variant:
            told = "; ".join(
                f"{variant}: {', '.join(f'{f} {v:.3g}'.strip() for f, v in values.items())}"
                for variant, values in by_variant.items()
            )
            figure = measure_bars(words, by_variant)
            drawings.append(Drawing(f"geometry-{slug(measure)}", figure, f"{words}. {told}."))
    if not drawings:
        return [Words("There are no numbers on training images.", "warn")]
    words = f"On the training images; features: {', '.join(shown)}. The tables have the others."
    return [Words(words), Gallery(tuple(drawings))]


def _lines(run: RunFolder) -> list[Block]:
    measures = list(dict.fromkeys(k for row in run.story for k in row if k not in _TRAINING))
    drawings = []
    for measure in measures:
        by_variant: dict[str, list[tuple[int, float]]] = {}
        for row in run.story:
            if row.get(measure) is not None:
                name = run.label(str(row.get("variant", "")))
                by_variant.setdefault(name, []).append((row["epoch"] + 1, row[measure]))
        words = _WORDS.get(split_metric(measure)[1], measure)
        told = "; ".join(f"{n} ends at {points[-1][1]:.3g}" for n, points in by_variant.items())
        figure = over_epochs(words, by_variant)
        drawings.append(Drawing(f"epochs-{slug(measure)}", figure, f"{words} by epoch: {told}."))
    if not drawings:
        return [Words("Nothing was measured between the epochs of these trainings.", "warn")]
    return [Gallery(tuple(drawings))]
