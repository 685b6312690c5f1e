#!/bin/sh
# Fifteen corruptions at five severities of all test images, the networks of recipes/table1.sh:
#   recipes/corrupted.sh SEED [DATA-DIR]
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
export OMP_NUM_THREADS=1
goen robust --data cifar10 --data-dir "$data" --seed "$seed" --preset short \
  --out "runs/cifar10-corrupted-$seed" --methods max_softmax temperature_scaling mc_dropout \
  deep_ensemble evidential epinet mixture_of_experts energy mahalanobis knn goen_distance goen goen_m
python recipes/keep.py "runs/cifar10-corrupted-$seed" "corrupted-$seed"
