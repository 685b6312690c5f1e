#!/bin/sh
# The paper's Table 2, its four rows as it has them, one seed, preset short:
#   recipes/table2.sh SEED [DATA-DIR] [more variants of goen ablate, such as concat]
# Three trainings on one core, one more for concat, then the passes.
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
shift $(( $# < 2 ? $# : 2 ))
export OMP_NUM_THREADS=1
goen ablate --data cifar10 --extra tiny-imagenet mnist textures places --data-dir "$data" --seed "$seed" \
  --preset short --out "runs/cifar10-table2-$seed" --variants default no_center_loss single_scale no_svhn "$@"
python recipes/keep.py "runs/cifar10-table2-$seed" "table2-$seed"
