#!/bin/sh
# The paper's method over three seeds: recipes/seeds.sh [DATA-DIR]
# The networks are those of recipes/bench.sh.
set -eu
data=${1:-${GOEN_DATA:?name the folder of image sets}}
export OMP_NUM_THREADS=1
goen seeds --data cifar10 --extra tiny-imagenet mnist textures places --data-dir "$data" \
  --seeds 42 123 2024 --out runs/cifar10-seeds
python recipes/keep.py runs/cifar10-seeds seeds
