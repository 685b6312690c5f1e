from collections.abc import Iterator

import pytest
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score, roc_curve

from goen.data.protocols.openood import BENCHMARKS
from goen.errors import ArtifactError
from goen.io.results import Result
from goen.metrics import ood_metrics
from goen.report.openood_csv import openood_csv, openood_rows, spread

ROWS = ("cifar100", "tin", "nearood", "mnist", "svhn", "texture", "places365", "farood")
ID = [0.1, 0.2, 0.3, 0.6]
OOD = {
    name: [0.4 + number / 10, 0.8 - number / 8, 0.25]
    for number, name in enumerate(BENCHMARKS["cifar10"].near + BENCHMARKS["cifar10"].far)
}
METRICS = ("fpr95_ood_positive", "auroc", "aupr_in_trapezoid", "aupr_out_trapezoid")


def result(dataset: str, metric: str, value: float) -> Result:
    group = "id" if dataset == "test" else "near"
    return Result(
        "knn", "given", 0, dataset, group, metric, value, None, None, False, (), (), "n", None
    )


def results() -> Iterator[Result]:
    yield result("test", "accuracy", 0.9123)
    for name, scores in OOD.items():
        found = ood_metrics(ID, scores)
        for metric in METRICS:
            yield result(name, metric, getattr(found, metric))


def test_metrics_and_order_are_those_of_its_evaluator() -> None:
    rows = openood_rows(results(), "knn", "cifar10")
    assert tuple(rows) == ROWS
    for name, scores in OOD.items():
        is_ood, both = [0] * 4 + [1] * 3, [*ID, *scores]
        rate, found, _ = roc_curve(is_ood, both, drop_intermediate=False)
        first = next(i for i, caught in enumerate(found) if caught >= 0.95)
        assert rows[name]["FPR@95"] == pytest.approx(100 * rate[first])
        assert rows[name]["AUROC"] == pytest.approx(100 * roc_auc_score(is_ood, both))
        for column, positive, sign in (("AUPR_OUT", is_ood, 1), ("AUPR_IN", [1] * 4 + [0] * 3, -1)):
            precision, recall, _ = precision_recall_curve(positive, [sign * s for s in both])
            assert rows[name][column] == pytest.approx(100 * auc(recall, precision))
        assert rows[name]["ACC"] == pytest.approx(91.23)
    near = (rows["cifar100"]["AUROC"] + rows["tin"]["AUROC"]) / 2
    assert rows["nearood"]["AUROC"] == pytest.approx(near)
    # By hand: below cifar100's scores .4, .8 and .25 lie 3, 4 and 2 of the four ID scores.
    assert rows["cifar100"]["AUROC"] == pytest.approx(100 * 9 / 12)
    assert rows["cifar100"]["FPR@95"] == pytest.approx(50.0)


def test_the_csv_has_its_rows_and_the_spread_of_its_runs() -> None:
    rows = openood_rows(results(), "knn", "cifar10")
    other = {name: {column: v + 2 for column, v in row.items()} for name, row in rows.items()}
    lines = openood_csv({"knn": [rows]}).splitlines()
    assert lines[0] == "method,dataset,FPR@95,AUROC,AUPR_IN,AUPR_OUT,ACC"
    assert [line.split(",")[1] for line in lines[1:]] == [*ROWS]
    assert lines[1].startswith("knn,cifar100,50.00,75.00,")
    two = openood_csv({"knn": [rows, other]}).splitlines()
    assert two[1].startswith("knn,cifar100,51.00 ± 1.00,76.00 ± 1.00,")  # not the sample's, 1.41
    assert spread([1.0, 2.0, 6.0]) == "3.00 ± 2.16"


def test_a_set_that_is_missing_is_named() -> None:
    few = [r for r in results() if r.dataset != "svhn"]
    with pytest.raises(ArtifactError, match=r"knn has no result \('svhn', 'fpr95_ood_positive'\)"):
        openood_rows(few, "knn", "cifar10")
