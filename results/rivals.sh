#!/bin/bash
# The rivals of SPIDER on its protocol, one seed, for spider.md: about two hours of two cores.
#   FEDTAILOR_DATA=... RUNS=runs/rivals bash results/rivals.sh       after results/spider.sh has written its base.toml
# The same command goes on after an interruption. 1,000 images are the server's in all runs, so that silos have the
# same ones with every method; FedAvg and kNN-Per train the whole supernet.
BASE=${BASE:-runs/spider/base.toml}; OUT=${RUNS:-runs/rivals}; mkdir -p $OUT/logs
one() { # NAME OVERRIDES...
  local name=$1; shift
  if [ -e $OUT/$name/run.db ]; then fedtailor resume $OUT/$name > $OUT/logs/$name.log 2>&1
  else fedtailor run $BASE data.public=1000 algorithm.finetune_lr=0.01 "$@" --out $OUT/$name > $OUT/logs/$name.log 2>&1; fi
}
one spider
one fedavg algorithm.name=fedavg algorithm.finetune_epochs=10 data.join_val=true
one fednas-milenas algorithm.name=fednas algorithm.searcher=milenas
one fednas-perturbation algorithm.name=fednas algorithm.searcher=perturbation data.join_val=true
one fedrlnas algorithm.name=fedrlnas space.form=path
one knnper algorithm.name=knnper
one spider-milenas algorithm.searcher=milenas algorithm.search_rounds=24
fedtailor compare fedavg=$OUT/fedavg spider=$OUT/spider fednas-milenas=$OUT/fednas-milenas \
  fednas-perturbation=$OUT/fednas-perturbation fedrlnas=$OUT/fedrlnas knnper=$OUT/knnper spider-milenas=$OUT/spider-milenas
