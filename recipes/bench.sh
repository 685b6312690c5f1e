#!/bin/sh
# The methods on GOEN's network, one seed: recipes/bench.sh SEED [DATA-DIR] [more options of goen bench]
# Eighty minutes on one core, most of it training; two seeds at once on two cores take hardly longer.
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
shift $(( $# < 2 ? $# : 2 ))
export OMP_NUM_THREADS=1
goen bench --data cifar10 --extra tiny-imagenet mnist textures places cifar100-rest --data-dir "$data" --seed "$seed" \
  --out "runs/cifar10-bench-$seed" \
  --methods goen_distance goen goen_m goen_m_flip_averaged goen_m_ood knn_multi_scale "$@"
python recipes/keep.py "runs/cifar10-bench-$seed" "bench-$seed"
