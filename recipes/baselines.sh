#!/bin/sh
# The methods but MaSF, MM++ and DAVIS, on an ordinary network beside those on GOEN's, preset short:
#   recipes/baselines.sh SEED [DATA-DIR]
# Seed 42 has them all: ten trainings of 25 minutes on one core, half an hour of passes. Another seed has
# what one pass of two networks gives: two trainings, ten minutes.
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
set -- max_softmax temperature_scaling energy mahalanobis knn max_logit gen relative_mahalanobis \
  mahalanobis_pp vim react fdbd knn_multi_scale goen_distance goen goen_m_plain goen_m goen_m_ood
if [ "$seed" = 42 ]; then
  set -- "$@" mc_dropout deep_ensemble evidential epinet mixture_of_experts odin goen_m_flip_averaged
fi
export OMP_NUM_THREADS=1
goen bench --data cifar10 --extra tiny-imagenet mnist textures places --data-dir "$data" --seed "$seed" \
  --preset short --out "runs/cifar10-baselines-$seed" --methods "$@"
python recipes/keep.py "runs/cifar10-baselines-$seed" "baselines-$seed"
