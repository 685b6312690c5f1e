#!/bin/sh
# Fifteen corruptions at five severities of 2,000 test images: recipes/robust.sh SEED [DATA-DIR]
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
export OMP_NUM_THREADS=1
goen robust --data cifar10 --data-dir "$data" --seed "$seed" --images 2000 --out "runs/cifar10-robust-$seed" \
  --methods goen_distance goen goen_m
python recipes/keep.py "runs/cifar10-robust-$seed" "robust-$seed"
