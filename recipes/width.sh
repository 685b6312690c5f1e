#!/bin/sh
# The paper's width: GOEN's network of width 64 with CenterLoss and without, preset wide-bf16, one seed:
#   recipes/width.sh SEED [DATA-DIR]
# On one core with instructions for bfloat16: a hundred minutes of training for each of two networks,
# and twenty-five for its passes, which are in float32.
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
export OMP_NUM_THREADS=1
goen ablate --data cifar10 --extra tiny-imagenet mnist textures places --data-dir "$data" --seed "$seed" \
  --preset wide-bf16 --out "runs/cifar10-width-$seed" --variants default no_center_loss
python recipes/keep.py "runs/cifar10-width-$seed" "width-$seed"
