#!/bin/sh
# The shape of the features, with CenterLoss and without, the networks of recipes/ablate.sh:
#   recipes/geometry.sh SEED [DATA-DIR]
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
export OMP_NUM_THREADS=1
goen geometry --data cifar10 --data-dir "$data" --seed "$seed" --preset short \
  --out "runs/cifar10-geometry-$seed" --variants default no_center_loss single_scale_no_center_loss
python recipes/keep.py "runs/cifar10-geometry-$seed" "geometry-$seed"
