#!/bin/sh
# The OOD sets that calibrate GOEN's head: SVHN and noise as in the paper; places (one half) and noise;
# noise alone; and with ID images under strong augmentations. One network for all, preset short:
#   recipes/calibration_sets.sh SEED [DATA-DIR]
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
export OMP_NUM_THREADS=1
calibrated() {
  name=$1
  shift
  goen run --data cifar10 --extra tiny-imagenet mnist textures places --data-dir "$data" --seed "$seed" \
    --preset short --stages runs/stages --out "runs/cifar10-calibrated-$name-$seed" --calibration-ood "$@"
  python recipes/keep.py "runs/cifar10-calibrated-$name-$seed" "calibrated-$name-$seed"
}
calibrated svhn svhn noise
calibrated places places noise
calibrated augmented svhn noise augmented
calibrated noise noise
calibrated noise-augmented noise augmented
