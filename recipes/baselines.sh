#!/bin/sh
# Every method that needs one ordinary network, beside GOEN's, preset short:
#   recipes/baselines.sh SEED [DATA-DIR] [more options of goen bench]
# Twenty minutes of training on one core for each of the two networks.
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
shift $(( $# < 2 ? $# : 2 ))
export OMP_NUM_THREADS=1
goen bench --data cifar10 --extra tiny-imagenet mnist textures places --data-dir "$data" --seed "$seed" \
  --preset short --out "runs/cifar10-baselines-$seed" \
  --methods softmax temperature_scaling energy odin mahalanobis knn max_logit gen relative_mahalanobis \
  mahalanobis_pp vim react fdbd knn_multi_scale goen_distance goen goen_m_plain goen_m goen_m_mirrored goen_m_ood "$@"
python recipes/keep.py "runs/cifar10-baselines-$seed" "baselines-$seed"
