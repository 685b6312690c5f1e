#!/bin/sh
# goen-m's published relatives beside it, preset short, on an ordinary network and on GOEN's:
#   recipes/relatives.sh SEED [DATA-DIR]
# Two trainings of 25 minutes on one core, ten minutes of passes. The other methods: recipes/baselines.sh.
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
export OMP_NUM_THREADS=1
goen bench --data cifar10 --extra tiny-imagenet mnist textures places --data-dir "$data" --seed "$seed" \
  --preset short --out "runs/cifar10-relatives-$seed" \
  --methods energy davis davis_std masf goen_m_plain mm_pp goen_m
python recipes/keep.py "runs/cifar10-relatives-$seed" "relatives-$seed"
