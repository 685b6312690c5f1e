#!/bin/sh
# Every method that scores one of two networks, an ordinary one and GOEN's, preset short:
#   recipes/board.sh SEED [DATA-DIR]
# Two trainings of 25 minutes on one core, half an hour of passes (ODIN's and AdaSCALE's most of it).
set -eu
seed=$1 data=${2:-${GOEN_DATA:?name the folder of image sets}}
export OMP_NUM_THREADS=1
methods=$(python -c "from goen.studies import METHODS; print(*(m.key for m in METHODS.values() \
  if m.network in ('standard', 'goen') and m.section != 'tuned' and m.key != 'flow'))")
goen bench --data cifar10 --extra cifar100-rest tiny-imagenet mnist textures places --data-dir "$data" \
  --seed "$seed" --preset short --out "runs/cifar10-board-$seed" --methods $methods
python recipes/keep.py "runs/cifar10-board-$seed" "board-$seed"
