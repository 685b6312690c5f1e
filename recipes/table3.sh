#!/bin/sh
# The paper's Table 3: GOEN-Default, which has CenterLoss, a head of ten epochs, five seeds; preset short:
#   recipes/table3.sh [DATA-DIR]
# Two trainings on one core after recipes/table2.sh of seeds 42, 123 and 2024, else five.
set -eu
data=${1:-${GOEN_DATA:?name the folder of image sets}}
export OMP_NUM_THREADS=1
goen seeds --data cifar10 --extra tiny-imagenet mnist textures places --data-dir "$data" \
  --preset short --center-loss 0.01 --head-epochs 10 --seeds 42 123 2024 777 314 --out runs/cifar10-table3
python recipes/keep.py runs/cifar10-table3 table3
