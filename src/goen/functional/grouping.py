"""Groups of images by their features, and the few that stand for all of them."""

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_samples, silhouette_score

from goen.functional.ranking import Floats

NONE = -1
_LEAST_ROWS, _LEAST_IN_GROUP = 20, 5
_MOST_GROUPS = 10
_DIMENSIONS = 16
# Rows that decide the number of groups: the silhouette of n rows costs n² distances.
_SAMPLE = 500
# Rows of which each is compared with each other one: 32 MB of distances.
_MOST_COMPARED = 2000
# Of the distances between all rows, those that are in memory at once, in MB.
_DISTANCES = 64
# Clouds that the rows are compared with: the level of the test is 1 / (1 + this).
_CLOUDS = 19


def group_rows(features: Floats, seed: int = 0) -> NDArray[np.int64]:
    """The group of each row, ``(N,)``, counted from 0 for the largest; -1 for those in none.

    k-means of the rows' directions on their first principal axes; the number of groups has the
    largest mean silhouette. There are groups only if that silhouette is larger than that of each of
    19 single Gaussian clouds of as many rows with the same variances, treated in the same way: rows
    of one such cloud are split with probability 1/20. A row nearer to another group, and groups of
    fewer than five rows, are in none.

    Args:
        features: ``(N, D)``, finite; fewer than 20 rows have no groups.
        seed: of k-means and the clouds.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> rows = np.repeat([[5.0, 0, 0], [0, 5, 0]], [60, 40], axis=0) + rng.normal(size=(100, 3))
        >>> np.bincount(1 + group_rows(rows)).tolist()[1:]
        [60, 40]
    """
    if len(features) < _LEAST_ROWS:
        return np.full(len(features), NONE)
    rng = np.random.default_rng(seed)
    rows = _principal(unit_rows(features), seed)
    sample = rows[np.sort(rng.permutation(len(rows))[:_SAMPLE])]
    silhouette, number = _best_number(sample, seed)
    for _ in range(_CLOUDS):
        cloud = rng.normal(size=sample.shape) * sample.std(axis=0)
        if _best_number(cloud, seed)[0] >= silhouette:
            return np.full(len(rows), NONE)
    found = _k_means(rows, number, seed, attempts=5)
    with config_context(working_memory=_DISTANCES):
        found[silhouette_samples(rows, found) < 0] = NONE
    sizes = np.bincount(found[found >= 0], minlength=number)
    order = np.argsort(-sizes, kind="stable")
    names = np.full(number + 1, NONE)
    for place, group in enumerate(order):
        if sizes[group] >= _LEAST_IN_GROUP:
            names[group] = place
    return names[found]


def unit_rows(features: Floats) -> Floats:
    """Each row divided by its length; a row of zeros stays."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.where(lengths > 0, lengths, 1.0), dtype=np.float64)


def representatives(features: Floats, count: int, seed: int = 0) -> list[int]:
    """The rows that together lie nearest to all rows, the most important first.

    Each lowers the sum of squared distances between directions, from every row to the nearest one
    chosen, by as much as any row can (greedy k-medoids): the first is the most typical row, the
    others stand for what is far from those before them. Of more than 2,000 rows as many, drawn at
    random, stand for all.

    Args:
        features: ``(N, D)``.
        count: how many, at most 2,000; all rows if there are fewer.
        seed: of the draw.

    Example:
        >>> representatives(np.array([[1.0, 0], [1, 0.1], [1, -0.1], [0, 1]]), 2)
        [1, 3]
    """
    if len(features) > _MOST_COMPARED:
        order = np.random.default_rng(seed).permutation(len(features))
        drawn = np.sort(order[:_MOST_COMPARED])
        return [int(drawn[row]) for row in representatives(features[drawn], count)]
    rows = unit_rows(features)
    distances = np.maximum(2 - 2 * rows @ rows.T, 0)
    if not len(rows):
        return []
    chosen = [int(distances.sum(axis=0).argmin())]
    nearest = distances[chosen[0]]
    while len(chosen) < min(count, len(rows)):
        gains = np.maximum(nearest[:, None] - distances, 0).sum(axis=0)
        gains[chosen] = -1
        chosen.append(int(gains.argmax()))
        nearest = np.minimum(nearest, distances[chosen[-1]])
    return chosen[:count]


def _principal(rows: Floats, seed: int) -> Floats:
    """The rows on their first principal axes."""
    axes = PCA(min(_DIMENSIONS, *rows.shape), random_state=seed)
    return np.asarray(axes.fit_transform(rows), dtype=np.float64)


def _best_number(rows: Floats, seed: int) -> tuple[float, int]:
    """The largest mean silhouette of two groups or more, and their number."""
    found = [(-1.0, 2)]
    for number in range(2, min(_MOST_GROUPS, len(rows) // _LEAST_IN_GROUP) + 1):
        labels = _k_means(rows, number, seed, attempts=1)
        if len(np.unique(labels)) > 1:
            found.append((float(silhouette_score(rows, labels)), number))
    return max(found)


def _k_means(rows: Floats, number: int, seed: int, attempts: int) -> NDArray[np.int64]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than groups
        means = KMeans(number, n_init=attempts, random_state=seed).fit(rows)
    return np.asarray(means.labels_, dtype=np.int64)
