#!/bin/sh
# Every method on an ordinary network beside those on GOEN's, preset short:
#   recipes/baselines.sh SEED [DATA-DIR]
# Twenty-five minutes of training on one core for each of the two networks, fifteen for the passes. Seed 42
# has all of the paper's baselines: eight networks more that only one method needs.
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
own=
[ "$seed" != 42 ] || own="mc_dropout deep_ensemble evidential epinet mixture_of_experts"
export OMP_NUM_THREADS=1
# shellcheck disable=SC2086  # a list of names
goen bench --data cifar10 --extra tiny-imagenet mnist textures places --data-dir "$data" --seed "$seed" \
  --preset short --out "runs/cifar10-baselines-$seed" \
  --methods softmax temperature_scaling $own energy odin mahalanobis knn max_logit gen relative_mahalanobis \
  mahalanobis_pp vim react fdbd knn_multi_scale goen_distance goen goen_m_plain goen_m goen_m_mirrored goen_m_ood
python recipes/keep.py "runs/cifar10-baselines-$seed" "baselines-$seed"
