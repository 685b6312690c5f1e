#!/bin/sh
# CenterLoss, the number of scales, SVHN in calibration, one seed, preset short:
#   recipes/ablate.sh SEED [DATA-DIR]
# Twenty minutes of training on one core for each of three networks, ten for the passes.
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
export OMP_NUM_THREADS=1
goen ablate --data cifar10 --extra tiny-imagenet mnist textures places --data-dir "$data" --seed "$seed" \
  --preset short --out "runs/cifar10-ablate-$seed" \
  --variants default no_center_loss single_scale_no_center_loss no_svhn_no_center_loss
python recipes/keep.py "runs/cifar10-ablate-$seed" "ablate-$seed"
