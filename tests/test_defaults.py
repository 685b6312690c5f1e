"""Defaults and constants are these: changing one is a decision."""

import importlib
import inspect
import math
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest

import goen
from goen.cli.main import COMMANDS
from goen.errors import UsageError
from goen.metrics import bootstrap, ood_metrics, over_seeds
from goen.models import NetworkConfig
from goen.monitor.state import Guarantee
from goen.serve.settings import BatchLimits, ServeSettings
from goen.training.config import TrainingConfig

PUBLIC = ("goen", "goen.data", "goen.detectors", "goen.metrics", "goen.models")
# Settings beside the public names: what the commands hand on.
SETTINGS = {
    "cli.evaluate": ["EvaluateOptions"],
    "cli.options.fit_inputs": ["FitOptions"],
    "cli.options.model": ["RateOptions"],
    "cli.options.own_model": ["ModelOptions"],
    "cli.options.score": ["OutputOptions"],
    "cli.options.study": ["TableOptions"],
    "detectors.calibration_head": ["HeadConfig"],
    "gate.adapters": ["GateEstimator"],
    "serve.settings": ["BatchLimits", "Limits", "ServeSettings"],
    "studies.ablate": ["AblateConfig"],
    "studies.bench": ["BenchConfig"],
    "studies.robust": ["RobustConfig"],
    "studies.run": ["RunConfig"],
    "training.config": ["TrainingConfig"],
}
DEFAULTS = """
goen.DeclaredShift: largest=0.0
goen.DeclaredShift.from_classes: false_alarm_rate=0.05
goen.DeclaredShift.from_table: false_alarm_rate=0.05
goen.Gate: per_class=False
goen.Gate.export: any_size=True, overwrite=False
goen.Gate.fit: false_alarm_rate=0.05, flip_averaging=False, batch_size=128
goen.Gate.fit_outputs: false_alarm_rate=0.05, batch_size=4096
goen.Gate.group_flagged: batch_size=256
goen.Gate.nearest: count=3, batch_size=256
goen.Gate.predict: batch_size=256
goen.Gate.save: overwrite=False
goen.Gate.update: batch_size=128
goen.Gate.with_error_rate: confidence=0.95
goen.Gate.with_per_class: per_class=True
goen.LinearClassifier.of: scale=1.0
goen.Monitor: seed=0, properties=True
goen.Monitor.from_scores: seed=0
goen.Monitor.save: overwrite=False
goen.Prediction: grouped=False, weighted=False
goen.Prediction.explain: row=0
goen.Prediction.show: most=20
goen.Protocol: flip=True
goen.Protocol.from_folder: flip=True
goen.Protocol.from_openood: full_spectrum=False
goen.Protocol.from_plan: evaluates=True
goen.Protocol.from_sets: flip=True
goen.bench: tune=False, batch_size=256
goen.extract: batch_size=256
goen.list_layers: every=False
goen.data.Protocol: flip=True
goen.data.Protocol.from_folder: flip=True
goen.data.Protocol.from_openood: full_spectrum=False
goen.data.Protocol.from_plan: evaluates=True
goen.data.Protocol.from_sets: flip=True
goen.data.load_set: download=False
goen.data.protocol: download=False
goen.detectors.GEN: gamma=0.1, top=100
goen.detectors.KNN: rows=100000
goen.detectors.LTS: percentile=95.0
goen.detectors.MCM: temperature=1.0
goen.detectors.NAC: bins=24, enough=0.05, rows=1000
goen.detectors.NCI: alpha=0.0
goen.detectors.NECO: variance=0.9, max_logit=True
goen.detectors.ODIN: epsilon=0.0014, temperature=1000.0, one_value=False
goen.detectors.SCALE: percentile=85.0
goen.detectors.VRA: low=60.0, high=90.0
goen.detectors.AdaSCALE: low=75.0, high=85.0, epsilon=0.125, share=0.05
goen.detectors.ClassMixture: components=4
goen.detectors.Energy: temperature=1.0
goen.detectors.Flow: transforms=3, seed=0
goen.detectors.Goen: ridge=1e-05
goen.detectors.GoenM: rows=5000
goen.detectors.Mahalanobis: normalise=False, ridge=1e-06
goen.detectors.MultilayerMahalanobis: num_layers=3
goen.detectors.NNGuide: k=10, rows=5000
goen.detectors.NegLabel: temperature=0.01, share=0.15, quantile=0.95, groups=100
goen.detectors.NegLabel.with_words: temperature=0.01, share=0.15, quantile=0.95, groups=100
goen.detectors.OpenMax: tail=20, alpha=3
goen.detectors.OptFS: bins=100
goen.detectors.Perturbed: epsilon=0.0014, temperature=1000.0, one_value=False
goen.detectors.ReAct: percentile=90.0
goen.detectors.Relation: power=1.0, threshold=0.03, rows=5000
goen.detectors.RelativeMahalanobis: normalise=False, ridge=1e-06
goen.metrics.OODMetrics: level=0.95
goen.metrics.bootstrap: num_resamples=1000, level=0.95, seed=0
goen.metrics.id_metrics: num_bins=15
goen.metrics.ood_calibration: num_bins=15
goen.metrics.ood_metrics: level=0.95
goen.metrics.over_seeds: level=0.95
goen.metrics.paired_auroc_test: level=0.95
goen.metrics.paired_mean_auroc_test: level=0.95
goen.metrics.reliability_curve: num_bins=15
goen.metrics.selective_metrics: level=0.95
goen.models.Classifier.loss: label_smoothing=0.0, progress=1.0
goen.models.NetworkConfig: num_classes=10, width=64, stem_stride=1, temperature=1.0, rotations=False
goen report: paper=False, board=False
goen fit: overwrite=False
goen extract: unlabelled=False, overwrite=False
goen serve: port=8000, restart=False, keep_most=1000, alarm_probability=0.01, batch_size=64,
    wait_ms=5.0, queue=512, max_mb=32, max_pixels=50000000, max_images=64, quiet=False
goen watch: once=False, keep_going=False, restart=False, every=2.0
goen check: json_=False
goen export: fixed_size=False, overwrite=False
goen data list: json_=False
goen data new: overwrite=False
goen data show: overwrite=False
EvaluateOptions: per_class=False, reuse=False, batch_size=128, json_=False
FitOptions: false_alarm_rate=0.05, flip_averaging=False
RateOptions: per_class=False
ModelOptions: batch_size=128
OutputOptions: flagged_only=False, overwrite=False
TableOptions: size=0, flip=True, json_=False
HeadConfig: epochs=20, batch_size=128, learning_rate=0.001, patience=5, held_out=0.2, seed=42
GateEstimator: false_alarm_rate=0.05, held_out_share=0.3
BatchLimits: most=64, wait=0.005, capacity=512
Limits: body=33554432, bodies=268435456, pixels=50000000, images=64, images_at_full_size=16,
    connections=512, connections_per_address=256, header_seconds=10.0, body_seconds=30.0,
    idle_seconds=30, drain_seconds=30
ServeSettings: restart=False, keep_most=1000, alarm_probability=0.01
AblateConfig: seed=42
BenchConfig: tune=False, from_scratch=False, seed=42
RobustConfig: images=0, false_alarm_rate=0.05, seed=42
RunConfig: center_loss=0.0, head_epochs=0, false_alarm_rate=0.05, from_scratch=False, seed=42
TrainingConfig: epochs=40, batch_size=128, learning_rate=0.1, momentum=0.9, weight_decay=0.0005,
    label_smoothing=0.1, center_loss=0.0, padding=4, seed=42, norm_bias_rate=1.0, look_ahead=0,
    early_epochs=3, cutout=0, logit_norm=0.0, feature_norm=False, pixmix=0.0, rotation_loss=0.0,
    rotated=0.25, outlier_loss=0.0
"""


# What results depend on, and limits on what comes from outside. Not: numbers that decide only speed
# or layout.
NUMBERS = """
cli.main: _SIGNALLED=128, _SECONDS_TO_END=5.0
cli.score: _MOST_CLASSES=10
cli.watch: ALARM=3
data.images.array_files: _MOST_LABELS=268435456
data.images.data_urls: _EXACT_SIDE=64, _JPEG_QUALITY=80
data.images.formats: HEAD_BYTES=16, _SCAN_BYTES=5, IMAGE_SIDES=(256, 257), TILE_SIDES=(322, 323)
data.images.limits: MAX_PIXELS=178956970, MAX_SCANS=200, MAX_RUN_LENGTH_PIXELS=10000000,
    DECODING_BYTES=536870912
data.images.tiff_bands: _MOST_BYTES=1073741824, _MOST_PARTS=131072
data.input_spec: _PROBES=2, _MOST_COLOURS=4
data.protocols.generated: SPLIT_SEED=42, VALIDATION_SEED=7, MOST_GENERATED=5000
data.protocols.near_copies: TOLERANCE=0.0196078431372549, _FLAT=0.03137254901960784, _SIDE=16
data.protocols.opening: SMALLEST_SIDE=32, LARGEST_SIDE=96, PRETRAINED_SIDE=224, _LOOKED_AT=200,
    _MULTIPLE=8
data.protocols.plan_file: _MOST_BYTES=1048576
data.protocols.splits: _FEWEST_VALIDATION=50, _FEWEST_TEST=20, _USUAL=0.15,
    _LARGEST_VALIDATION=0.5, _LARGEST_TEST=0.2
data.sets.embedded: _SIDE=32
data.sets.fetch: _TIMEOUT_SECONDS=30, _NPM_TIMEOUT_SECONDS=1800
data.sets.image_lists: _MOST_BYTES=268435456
data.sets.readers: _MOST_CLASSES=100000, _MOST_MEMBER_BYTES=268435456, _MOST_PACKED_BYTES=67108864
data.sets.store: _FORM=1
data.transforms._weather: _NUM_PANES=5, _SIDE=256, _NUCLEI=50
data.transforms.corruptions: SEVERITIES=(1, 2, 3, 4, 5)
data.transforms.fractals: _POINTS=4000, _UNSETTLED=20, _MAPS=4
data.transforms.pixmix: ROUNDS=4, STRENGTH=3.0, SEVERITY=3.0, _LEVELS=10
data.transforms.strong: _GRID=4, _GREY=128
detectors._bank: ROWS=5000, _SHARE=0.02, _SEED=0, _LENGTH_TOLERANCE=0.0001, _MOST_SEEN=2147483648
detectors.adascale: _SUMMED=5, _SHIFTED=1, _SHIFT_WEIGHT=10.0
detectors.calibration_head: TARGET_ID=0.05, TARGET_OOD=0.95
detectors.class_mixture: _PRIOR_ROWS=5, _ROWS_PER_COMPONENT=10, _LEAST_VARIANCE=1e-12,
    _RIDGE=1e-06
detectors.flow: _SLOPE=0.001, _RIDGE=1e-06, _BATCH=512, _ROUND_BATCHES=100, _ROUNDS=100,
    _PATIENCE=5, _LEARNING_RATE=0.002, _LARGEST_GRADIENT=5.0, _STOPPING=0.1, _MOST_STOPPING=10000,
    _FEWEST_ROWS=20, _FEWEST_HIDDEN=64, _MOST_HIDDEN=256
detectors.goen: _MOST_ROWS=8589934592
detectors.goen_m: _CUE_TOLERANCE=1e-06, _LARGEST_ENERGY=1e+30
detectors.knn: _SHARE=0.1111111111111111, _FARTHEST=50
detectors.masf: _FEWEST=10, _MOST_ROWS=1099511627776
detectors.openmax: _SHIFT=10000.0
detectors.optfs: _LOW=0.1, _HIGH=99.9
detectors.temperature_scaling: TEMPERATURES=(0.01, 100.0)
detectors.tuned: SEARCHED={'ash': {'percentile': (65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)},
    'ash_b': {'percentile': (65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)}, 'ash_p': {'percentile':
    (65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)}, 'dice': {'percentile': (10.0, 30.0, 50.0, 70.0,
    90.0)}, 'gen': {'gamma': (0.01, 0.1, 0.5), 'top': (10, 100, 1000)}, 'knn': {'k': (1, 5, 10,
    20, 50, 100, 200, 500, 1000)}, 'lts': {'percentile': (65.0, 70.0, 75.0, 80.0, 85.0, 90.0,
    95.0)}, 'nci': {'alpha': (0.0, 0.0001, 0.001, 0.01, 0.1)}, 'nnguide': {'k': (1, 5, 10, 20, 50,
    100, 200, 500, 1000)}, 'react': {'percentile': (85.0, 90.0, 95.0, 99.0)}, 'residual': {'dim':
    (4, 8, 16, 32, 64, 128, 256, 512, 1000)}, 'scale': {'percentile': (65.0, 70.0, 75.0, 80.0,
    85.0, 90.0, 95.0)}, 'vim': {'dim': (4, 8, 16, 32, 64, 128, 256, 512, 1000)}, 'vra': {'low':
    (50.0, 60.0, 70.0), 'high': (85.0, 90.0, 95.0)}}
features.image_config: _NEVER_CROPPED=384, _BILINEAR=2, _LEVELS=255
features.package_networks: _MEAN=(0.4980392156862745, 0.4980392156862745, 0.4980392156862745),
    _STD=(0.5019607843137255, 0.5019607843137255, 0.5019607843137255)
features.precomputed: NEVER=-1e+30
features.preprocess: _LEAST_VARIANCE=1e-07
features.hugging_face_checks: _LARGEST=20000000, _MOST_LAYERS=2000, _TIMES_WEIGHTS=8,
    _SMALL_MODEL=67108864, _LARGEST_MODEL=8589934592
functional._rows: PIXEL_SLACK=0.02
functional.conformal: _LEAST_RATE=1e-12
functional.cues: _LOG_OF_ZERO=-1000.0
functional.fusion: PULL=0.01, EVENNESS=0.3, _FLAT=1e-06
functional.grouping: NONE=-1, _LEAST_ROWS=20, _LEAST_IN_GROUP=5, _MOST_GROUPS=10, _DIMENSIONS=16,
    _SAMPLE=500, _MOST_COMPARED=2000, _CLOUDS=19
functional.image_properties: _LUMINANCE=(0.299, 0.587, 0.114), _LEVELS=64, _LINES=32
functional.martingales: _EVEN_IMAGES=10000, _TAILS=((1.0, 0.5), (1.0, 0.75), (1.0, 0.9), (0.1,
    0.1), (0.01, 0.1)), _INTERVALS=((0.1, 0.0, 0.25), (0.1, 0.25, 0.5), (0.1, 0.5, 0.75), (0.1,
    0.75, 1.0), (0.1, 0.0, 0.125), (0.1, 0.125, 0.25), (0.1, 0.25, 0.375), (0.1, 0.375, 0.5),
    (0.1, 0.5, 0.625), (0.1, 0.625, 0.75), (0.1, 0.75, 0.875), (0.1, 0.875, 1.0), (0.2, 0.25,
    0.75))
functional.near_copies: MOST_HELD_OUT=1000, _QUANTILE=0.01, _LEVEL=0.0001, _WIDEST=256,
    _NARROWEST=8, _REFERENCE=2000
functional.neighbours: ROUNDING=1e-06
functional.online_conformal: _BITS=52, _WORDS=4
functional.selective: CANDIDATES=20
functional.shaping: PERCENTILES=(5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80,
    85, 90, 95), _KEPT=0.99
functional.weighted_conformal: _FOLDS=5, _LARGEST=20.0
gate.base: _MOST_CLASSES=10
gate.engine: _EVERY=5
gate.export.comparison: _PROBABILITY_TOLERANCE=0.0001, _BATCH=64, _RESIZED=4
gate.export.traceable: _UNMEASURED=1e-05
gate.fitting.fit: _LOW_ACCURACY=0.5
gate.fitting.sets: CALIBRATION_SHARE=0.6, _FEWEST=6, _COPIES=0.05
gate.flagged: LABEL_FIRST=20, MOST_TYPICAL=8
gate.shift: _LEAST_EFFECTIVE=5, _LEAST_SAMPLE=50
gate.storage.network: _SAME=0.05
gate.threshold: COMPARED_IMAGES=8, TOLERANCE=1e-05
io.artifacts: FORM=2, _BETWEEN_RENAMES=0.05
io.files: _STALE_SECONDS=86400
io.limits: CLASSES=1048576, IMAGE_PIXELS=4194304, INPUT_VALUES=16777216, JSON_BYTES=8388608,
    JSON_DEPTH=32, MEMBERS=16, NETWORK_WORK=268435456, ROWS_BYTES=268435456, ROW_BYTES=1048576,
    TENSOR_BYTES=34359738368, UNPACKED_BYTES=1073741824, UNPACKED_TIMES=100
metrics._inputs: ROW_SUM_TOLERANCE=0.001
metrics._ranking: SIGNIFICANCE=0.05
models.backbone: CIFAR10_MEAN=(0.4914, 0.4822, 0.4465), CIFAR10_STD=(0.2023, 0.1994, 0.201),
    STEM_STRIDES=(1, 2, 4), TURNS=4
models.classifiers: NUM_SAMPLES=20, SAMPLES_SEED=0, INDEX_SIZE=8, EPINET_HIDDEN=50,
    TRAINING_INDICES=4, PRIOR_SCALE=1.0, ANNEALED_AT=0.5, NUM_EXPERTS=5, EXPERT_HIDDEN=64
models.fast_cnn: PATCH=2, _RIDGE=0.0005, _SCALE=0.1111111111111111
models.repooled: GAMMA=1.0
monitor.feeds: _SETTLED=1.0, _PATIENCE=60.0
monitor.saving: FORM=1
monitor.state: FLAGGED_WINDOW=1000
monitor.streams: LEAST_HELD_OUT=20, _SHARE=20, _MOST=20, _ORDER_NUMBERS=4611686018427387904,
    _RESOLUTION=512
notebook: MOST_ROWS=20, _LONGEST=40
report.comparison: _FAR=0.05
report.five_panels: _FEW=2
report.pages.fit: MOST_SUSPICIOUS=5, _MOST_CLASSES=100
report.pages.score: MOST_IMAGES=2000, MOST_UNREADABLE=200, _MOST_CLASSES=50
report.pages.watch: _BINS=10, _MOST_WINDOWS=30, _LEAST_WINDOW=100, _EXAMPLES=12, _MOST_CLASSES=30
scoring.flagged_copies: _LONGEST_NAME=200, _LONGEST_SUFFIX=20
scoring.pipeline: DEFAULT_BATCH_SIZE=128, FEWEST_FOR_ONNXRUNTIME=5000
scoring.ray_workers: _RETRIES=2
scoring.score_folder: _FORM=1
scoring.shards: _MOST_COPIED=68719476736
scoring.sources: DEFAULT_SHARD_SIZE=4096, _LONGEST_NAME=8192
scoring.tar_stream: _READS_AT_END=100, _MOST_PADDING=67108864
scoring.urls: _ATTEMPTS=3, _SECONDS_BETWEEN=1.0, MOST_BYTES=536870912,
    _MOST_LISTED_BYTES=67108864, _DEEPEST=32, _MOST_FOLDERS=100000, _SECONDS=300.0,
    _SILENT_SECONDS=60.0, _GONE=(404, 410), _LATER=(408, 429)
serve.guard: _LONGEST_PATH=200, _GONE=499
serve.metrics: _RECENT=2000, _MOST_MOMENTS=450, _SECONDS=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
    0.2, 0.5, 1.0, 2.0, 5.0, 10.0), _IMAGES=(1, 2, 4, 8, 16, 32, 64, 128, 256)
serve.rejection: STATUS={'bad_request': 400, 'broken_image': 422, 'busy': 503, 'forbidden': 403,
    'internal': 500, 'method': 405, 'not_an_image': 415, 'not_found': 404, 'slow': 408,
    'too_large': 413, 'too_many_images': 413, 'too_many_pixels': 413, 'unauthorized': 401}
serve.server: _ACCEPTED_AT_ONCE=16, _HEADER_BYTES=16384, _RESERVE=32, _LINGER_SECONDS=1.0,
    _BACKLOG=1024, _READ_BYTES=32768, _FREE_CHUNKS=64, _LEAST_CHUNK=64
serve.service: _TICK_SECONDS=2.0
serve.threads: LARGE=4000000
studies.ablate: CENTER_LOSS=0.01
studies.adapting: _SIDE=32, _MEASURED=2000, _SMALLEST_STD=0.01, _PASSES=1620000,
    _FEWEST_EPOCHS=12, _USUAL_EPOCHS=60, _MOST_EPOCHS=300, _STEPS=900, _BATCHES=((6000, 128),
    (1500, 64), (500, 32), (0, 16))
studies.gate_evaluation: _MOST_MISTAKES=500, _MAP_POINTS=500
studies.experiment: _PAPER_EPOCHS=2.5
studies.given_network: _SEED=0
studies.networks: _TRAINING_REVISION=1, _OUTPUTS_REVISION=1
studies.given_gate: TOO_MANY=0.05
studies.pretrained: _REVISION=1
studies.published: SAME_FILES=0.0005, OTHER_FILES=0.005
training.backbone: PATIENCE=10, _PREPARING=5000, _PIXELS=1024
training.batches: TURNS=4, _FRACTALS=2000
training.fine_tuning: _LAST_SHARE=0.25, _SHIFT=8, _DECAY=0.05
training.precision: _CAPABILITY=(8, 0)
training.probe: BATCH_SIZE=32, STRENGTHS=(0.24, 0.8, 2.4, 8.0, 24.0, 80.0, 240.0, 800.0, 2400.0),
    _ITERATIONS=300, _LEAST_SIZE=160
"""

# What a setting must be.
BOUNDS = """
detectors.ASH: percentile: a number, at least 0 and below 100
detectors.AdaSCALE: low: a number, at least 0
detectors.AdaSCALE: high: a number, above 75.0 and below 100
detectors.AdaSCALE: epsilon: a number, at least 0 and below 1
detectors.AdaSCALE: share: a number, above 0 and at most 1
detectors.ClassMixture: components: an integer, at least 1
detectors.DICE: percentile: a number, at least 0 and below 100
detectors.Energy: temperature: a number, above 0
detectors.Flow: transforms hidden: an integer, at least 1
detectors.GEN: gamma: a number, above 0 and below 1
detectors.GEN: top: an integer, at least 1
detectors.Goen: ridge: a number, at least 0
detectors.GoenM: rows: an integer, at least 1
detectors.KNN: k rows: an integer, at least 1
detectors.LTS: percentile: a number, at least 0 and below 100
detectors.MCM: temperature: a number, above 0
detectors.Mahalanobis: ridge: a number, at least 0
detectors.MultilayerMahalanobis: num_layers: an integer, at least 1
detectors.NAC: steepness: a number, above 0
detectors.NAC: bins: an integer, at least 2
detectors.NAC: enough: a number, above 0 and at most 1
detectors.NAC: rows: an integer, at least 1
detectors.NCI: alpha: a number, at least 0
detectors.NECO: variance: a number, above 0 and at most 1
detectors.NNGuide: k rows: an integer, at least 1
detectors.NegLabel: temperature: a number, above 0
detectors.NegLabel: share: a number, above 0 and at most 1
detectors.NegLabel: quantile: a number, at least 0 and at most 1
detectors.NegLabel: groups: an integer, at least 1
detectors.ODIN: epsilon: a number, at least 0 and below 1
detectors.ODIN: temperature: a number, above 0
detectors.OpenMax: tail: an integer, at least 2
detectors.OpenMax: alpha: an integer, at least 1
detectors.OptFS: bins: an integer, at least 1
detectors.ReAct: percentile: a number, above 0 and at most 100
detectors.Relation: power: a number, above 0
detectors.Relation: threshold: a number, at least 0 and below 1
detectors.Relation: rows: an integer, at least 1
detectors.RelativeMahalanobis: ridge: a number, at least 0
detectors.Residual: dim: an integer, at least 0
detectors.SCALE: percentile: a number, at least 0 and below 100
detectors.VRA: low: a number, at least 0 and below 100
detectors.VRA: high: a number, above 0 and at most 100
detectors.ViM: dim: an integer, at least 0
detectors.calibration_head.HeadConfig: epochs batch_size patience: an integer, at least 1
detectors.calibration_head.HeadConfig: learning_rate: a number, above 0
detectors.calibration_head.HeadConfig: held_out: a number, above 0 and below 1
models.NetworkConfig: num_classes width: an integer, at least 1
models.NetworkConfig: temperature: a number, above 0
monitor.state.Guarantee: alarm_probability: a number, at least 1e-12 and below 1
scoring.pipeline.ScoreSettings: threads: an integer, at least 1
studies.run.RunConfig: center_loss: a number, at least 0
studies.run.RunConfig: head_epochs: an integer, at least 0
training.config.TrainingConfig: epochs patience: an integer, at least 1
training.config.TrainingConfig: batch_size: an integer, at least 2
training.config.TrainingConfig: padding look_ahead early_epochs cutout: an integer, at least 0
training.config.TrainingConfig: learning_rate norm_bias_rate: a number, above 0
training.config.TrainingConfig: weight_decay center_loss: a number, at least 0
training.config.TrainingConfig: logit_norm rotation_loss outlier_loss: a number, at least 0
training.config.TrainingConfig: momentum: a number, at least 0 and below 1
training.config.TrainingConfig: label_smoothing pixmix: a number, at least 0 and at most 1
training.config.TrainingConfig: rotated: a number, above 0 and at most 3
training.fine_tuning.FineTuning: epochs batch_size: an integer, at least 1
training.fine_tuning.FineTuning: learning_rate: a number, above 0
"""


def defaults(function: Callable[..., Any]) -> str:
    """The parameters whose default is a number, ``True`` or ``False``."""
    found = inspect.signature(function).parameters.values()
    return ", ".join(f"{p.name}={p.default}" for p in found if isinstance(p.default, float | int))


def own_methods(place: str, of: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods that are goen's own, by name."""
    for name in dir(of):
        method = None if name.startswith("_") else getattr(of, name)
        if inspect.isroutine(method) and method.__module__.startswith("goen"):
            yield f"{place}.{name}", method


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, classes and their methods, by name."""
    for place in PUBLIC:
        module = importlib.import_module(place)
        for name in module.__all__:
            found = getattr(module, name)
            if callable(found):
                yield f"{place}.{name}", found
            if isinstance(found, type):
                yield from own_methods(f"{place}.{name}", found)


def commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions that are called for a command or a subcommand."""
    for command in COMMANDS:
        module = importlib.import_module(f"goen.cli.{command}")
        found = getattr(module, "SUBCOMMANDS", None) or {"": getattr(module, f"{command}_command")}
        for name, function in found.items():
            yield f"goen {command} {name}".strip(), function


def settings() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, classes in SETTINGS.items():
        module = importlib.import_module(f"goen.{name}")
        yield from ((each, getattr(module, each)) for each in classes)


def test_defaults() -> None:
    found = [(name, defaults(call)) for name, call in chain(public(), commands(), settings())]
    lines = [f"{name}: {text}" for name, text in found if text]
    assert lines == DEFAULTS.replace("\n    ", " ").strip().splitlines()


def test_numbers() -> None:
    for line in NUMBERS.replace("\n    ", " ").strip().splitlines():
        place, _, numbers = line.partition(": ")
        module = importlib.import_module(f"goen.{place}")
        names = re.findall(r"(\w+)=", numbers)
        assert ", ".join(f"{name}={getattr(module, name)}" for name in names) == numbers


@pytest.mark.parametrize("line", BOUNDS.strip().splitlines())
def test_bounds(line: str) -> None:
    place, names, bounds = line.split(": ")
    module, _, made = place.rpartition(".")
    make = getattr(importlib.import_module(f"goen.{module}"), made)
    for name in names.split():
        with pytest.raises(UsageError, match=f"^{name} must be {bounds}; got nan"):
            make(**{name: math.nan})


def test_every_bound_of_a_detector_is_in_the_list() -> None:
    listed = {tuple(line.split(": ")[:2]) for line in BOUNDS.strip().splitlines()}
    names = {(place, name) for place, several in listed for name in several.split()}
    missing = []
    for name in dir(goen.detectors):
        made = getattr(goen.detectors, name)
        if not isinstance(made, type) or not issubclass(made, goen.detectors.Detector):
            continue
        source = inspect.getsource(made)
        for checked in re.findall(r'check_number\("(\w+)"', source):
            if (f"detectors.{name}", checked) not in names:
                missing.append(f"{name}: {checked}")
    assert not missing


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Guarantee(None, 9), "an integer, at least 10 and at most 1000000000000; got 9"),
        (lambda: ServeSettings(BatchLimits(wait=2)), "a number, at least 0 and at most 1; got 2"),
        (lambda: NetworkConfig(std=(1, 1, 0)), "Each std must be a number, above 0; got 0"),
        (lambda: TrainingConfig(sizes=((1, 0),)), "side .* must be an integer, at least 1; got 0"),
        (lambda: ood_metrics([0.0], [1.0], level=1), "level must be a number, above 0 and below 1"),
        (lambda: bootstrap([0.0], [1.0], level=1), "level must be a number, above 0 and below 1"),
        (lambda: bootstrap([0.0], [1.0], num_resamples=0), "an integer, at least 1; got 0"),
        (lambda: over_seeds([0.0, 1.0], level=1), "level must be a number, above 0 and below 1"),
    ],
)
def test_bounds_within(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
