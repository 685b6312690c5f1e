#!/bin/sh
# The paper's Table 1, its twelve methods, one seed, preset short:
#   recipes/table1.sh SEED [DATA-DIR]
# Ten trainings on one core for the first seed, four for another (the ensemble is of the same five
# networks for every seed; GOEN's is that of recipes/table2.sh), then the passes.
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
export OMP_NUM_THREADS=1
goen bench --data cifar10 --extra tiny-imagenet mnist textures places --data-dir "$data" --seed "$seed" \
  --preset short --out "runs/cifar10-table1-$seed" --methods max_softmax temperature_scaling mc_dropout \
  deep_ensemble evidential epinet mixture_of_experts energy odin mahalanobis knn goen_distance goen
python recipes/keep.py "runs/cifar10-table1-$seed" "table1-$seed"
