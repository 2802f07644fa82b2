#!/bin/bash
# The experiments of PerFedSDE-NAS whose tables belong into perfedsde.md: about 200 minutes of two cores.
#   FEDTAILOR_DATA=... RUNS=runs/perfedsde bash results/perfedsde.sh [supernets|frozen|factorial|options|merge|tables]
# Left out, all of them in this order. The same command goes on after an interruption: what is finished is skipped.
# DARTS_TWICE=1 adds a second seed of the frozen search in darts.
OUT=${RUNS:-runs/perfedsde}; mkdir -p $OUT/logs
F=fedtailor; P=python
WARM=$OUT/mobilenetv3-supernet.safetensors; WARMD=$OUT/darts-supernet.safetensors

# configs
cat > $OUT/main.toml <<'TOML'
seed = 0
rounds = 40
cohort = 5
eval_every = 40        # every test of all clients costs as much as five client-rounds; tuning, forty
save_models = false

[algorithm]
name = "perfedsde"
iterations = 2         # n_e: two local epochs a round, as of all methods
epochs = 1
population = 60
archive = 10
candidates = 50
offspring = 10
batch = 32
lr = 0.05
momentum = 0.9
schedule = "cosine"
finetune_epochs = 10
finetune_lr = 0.003

[space]
name = "mobilenetv3"
preset = "cpu"
arch = "middle"        # what methods train that do not search

[data]
name = "cifar10"
clients = 20
partition = "dirichlet"
alpha = 0.3
per_client = 500       # 375 to train, 125 for validation
split = "official"
test_per_client = 500
augment = ["crop", "flip"]

[budget]
speed = 5e8

[engine]
workers = 2
TOML

# Weights stand still, so the head must fit: the 10,000 test images of CIFAR-100, which neither the
# supernet nor the generator has seen; 100 images for the embedding and statistics, 125 to search by.
cat > $OUT/frozen.toml <<TOML
seed = 0
rounds = 1
eval_every = 1
save_models = false

[algorithm]
name = "perfedsde"
epochs = 0
iterations = 10
population = 60
archive = 10
candidates = 50
offspring = 10
statistics = "own"     # merged ones are an average network's and would decide
finetune_epochs = 0

[space]
name = "mobilenetv3"
preset = "cpu"

[data]
path = "$OUT/cifar100-test.npz"
clients = 20
partition = "dirichlet_equal"
alpha = 0.3
per_client = 500
fractions = [0.2, 0.25, 0.55]
mean = [0.5071, 0.4865, 0.4409]
std = [0.2673, 0.2564, 0.2762]

[engine]
workers = 2
TOML

# how to run
one() { # NAME CONFIG OVERRIDES...
  local name=$1 config=$2; shift 2
  echo "$(date +%T) $name"
  if [ -e $OUT/$name/run.db ]; then $F resume $OUT/$name > $OUT/logs/$name.log 2>&1
  else $F run $OUT/$config "$@" --out $OUT/$name > $OUT/logs/$name.log 2>&1; fi
  local rc=$?; [ $rc = 0 ] || { echo "$(date +%T) $name: rc $rc, see $OUT/logs/$name.log"; exit $rc; }
}
main()   { local name=$1 seed=$2; shift 2; one $name-$seed main.toml seed=$seed space.init=$WARM "$@"; }
frozen() { # NAME SEED OVERRIDES: in mobilenetv3, and in darts for the first seed
  local name=$1 seed=$2; shift 2
  one fz-$name-$seed frozen.toml seed=$seed data.seed=$seed space.init=$WARM "$@"
  if [ $seed = 0 ] || [ -n "$DARTS_TWICE" ]; then
    one fd-$name-$seed frozen.toml seed=$seed data.seed=$seed space.name=darts space.preset=cpu space.init=$WARMD "$@"; fi
}
BRED="algorithm.proposer=evolution algorithm.surrogate=none"

# parts
supernets() { # stage (a) of the shipped generators again; stopped, it goes on; there, it is skipped
  [ -e $OUT/cifar100-test.npz ] || $P - $OUT/cifar100-test.npz <<'PY'
import sys

import numpy as np

from fedtailor.data.load import load_source
from fedtailor.data.options import DataOptions

source = load_source(DataOptions(name="cifar100", split="official"))
np.savez(sys.argv[1], x=source.test_images, y=source.test_labels)
PY
  for s in mobilenetv3 darts; do
    [ -e $OUT/$s-supernet.safetensors ] && continue
    echo "$(date +%T) supernet of $s"
    $F pretrain --space $s --data cifar100 --supernet $OUT/$s-supernet.safetensors > $OUT/logs/supernet-$s.log 2>&1 || exit 1
  done
}
frozens() { # 1: is the proposer better, apart from weights?
  for seed in 0 1; do
    frozen data-rbf $seed
    frozen evolution $seed $BRED
    frozen both-rbf $seed algorithm.guide=both
    frozen evolution-rbf $seed algorithm.proposer=evolution
    frozen both $seed algorithm.guide=both algorithm.surrogate=none
    frozen scores $seed algorithm.guide=scores algorithm.surrogate=none
    frozen effects $seed algorithm.proposer=effects algorithm.surrogate=none
    frozen random $seed algorithm.proposer=random algorithm.surrogate=none
  done
}
factorial() { # 2: (diffusion + RBF | evolution) x (archive 10 | 0), and two rivals
  for seed in 0 1; do
    main sde $seed
    main bred $seed $BRED
    main sde-all $seed algorithm.archive=0
    main bred-all $seed $BRED algorithm.archive=0
    main rl $seed algorithm.name=perfedrlnas algorithm.epochs=2 algorithm.lambda_time=0
    main avg $seed algorithm.name=fedavg algorithm.epochs=2
  done
}
options() { # 3: one seed each
  main both 0 algorithm.guide=both
  main reevaluate 0 algorithm.reevaluate=iteration
  main likelihood 0 algorithm.fitness=likelihood
  main ontest 0 algorithm.accuracy=test
}
merges() { # 4: where Eq. 5 can differ: 40,000 images are left with the server, so that 20 clients share
           # 10,000 unequally (131 to 681 to train on)
  for rule in count fedavg; do
    one merge-$rule-0 main.toml space.name=darts space.preset=cpu space.init=$WARMD algorithm.archive=3 algorithm.merge=$rule \
      data.public=40000 data.min_size=40 data.per_client=2500
  done
}
tables() {
  cmp() { $F compare "$@"; }
  seeds() { for n in "$@"; do local r=""; for s in 0 1; do [ -e $OUT/$n-$s/run.db ] && r="$r,$OUT/$n-$s"; done; [ -n "$r" ] && echo "${n#f?-}=${r#,}"; done; }
  {
    K="evolution data-rbf both-rbf evolution-rbf both scores effects random"
    for s in fz fd; do echo "## 1 frozen ($s)"; cmp $(seeds $(for k in $K; do echo $s-$k; done)) \
      --effect "data + RBF minus evolution + RBF=data-rbf/evolution-rbf" --effect "RBF=both-rbf,evolution-rbf/both,evolution"; done
    echo "## 2 factorial"; cmp $(seeds bred sde sde-all bred-all rl avg) \
      --effect "diffusion + RBF=sde,sde-all/bred,bred-all" --effect "archive=sde,bred/sde-all,bred-all" \
      --effect "archive where diffusion=sde/sde-all" --effect "PerFedSDE-NAS minus PerFedRLNAS=sde/rl" --effect "... minus FedAvg=sde/avg"
    echo "## 3 options, seed 0"; cmp sde=$OUT/sde-0 both=$OUT/both-0 reevaluate=$OUT/reevaluate-0 likelihood=$OUT/likelihood-0 ontest=$OUT/ontest-0
    echo "## 4 merge"; cmp fedavg=$OUT/merge-fedavg-0 count=$OUT/merge-count-0
  } > $OUT/tables.md; echo "$(date +%T) wrote $OUT/tables.md"
}
case "${1:-all}" in
  supernets) supernets ;; frozen) supernets; frozens ;; factorial) supernets; factorial ;;
  options) supernets; options ;; merge) supernets; merges ;; tables) tables ;;
  all) supernets; frozens; factorial; options; merges; tables ;;
esac
