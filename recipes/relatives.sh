#!/bin/sh
# goen-m and its nearest published relatives (MaSF, MM++, DAVIS) on the networks of preset short:
#   recipes/relatives.sh SEED [DATA-DIR]
# Two trainings of 20 minutes on one core that recipes/baselines.sh makes as well, then the passes.
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
export OMP_NUM_THREADS=1
goen bench --data cifar10 --extra tiny-imagenet mnist textures places --data-dir "$data" --seed "$seed" \
  --preset short --out "runs/cifar10-relatives-$seed" \
  --methods max_softmax energy knn masf mm_pp davis davis_std goen_m_plain goen_m
python recipes/keep.py "runs/cifar10-relatives-$seed" "relatives-$seed"
