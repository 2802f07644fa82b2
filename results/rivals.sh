#!/bin/bash
# The rivals of SPIDER on its protocol, one seed, for spider.md: about two hours of two cores.
#   FEDTAILOR_DATA=... RUNS=runs/rivals bash results/rivals.sh       after results/spider.sh: BASE=runs/spider/base.toml
# The same command goes on after an interruption; ONLY=tables prints the table of what is finished. 1,000 images are
# the server's in all runs, so that silos have the same ones with every method; FedAvg and kNN-Per train the whole
# supernet. SPIDER is there already: search-0 beside BASE, whose choice of lambda (strength.txt) counts here, too.
set -u
F=fedtailor; BASE=${BASE:-runs/spider/base.toml}; OUT=${RUNS:-runs/rivals}; mkdir -p $OUT/logs
[ -f $BASE ] || { echo "$BASE is not there: run results/spider.sh first, or say where it is: BASE=..." >&2; exit 2; }
chosen() { local found; found=$(cat $(dirname $BASE)/$1.txt 2> /dev/null); echo "algorithm.$1=${found:-$2}"; }
L=$(chosen strength 0.01)
finished() { [ -f $1/run.db ] && $F show $1 --json 2> /dev/null | grep -q '"finished": true'; }
DONE=(); finished $(dirname $BASE)/search-0 && DONE+=("spider=$(dirname $BASE)/search-0")
one() { # NAME OVERRIDES...
  local name=$1; shift
  if ! finished $OUT/$name && [ "${ONLY:-}" != tables ]; then
    echo "$(date +%T) begin $name $*"
    if [ -f $OUT/$name/run.db ]; then $F resume $OUT/$name > $OUT/logs/$name.log 2>&1
    else $F run $BASE algorithm.finetune_lr=0.01 "$@" --out $OUT/$name > $OUT/logs/$name.log 2>&1; fi
    local code=$?; echo "$(date +%T) end $name ($code)"
  fi
  finished $OUT/$name && DONE+=("$name=$OUT/$name")
}
one fedavg algorithm.name=fedavg algorithm.finetune_epochs=10 data.join_val=true
one fednas-milenas algorithm.name=fednas algorithm.searcher=milenas
one fednas-perturbation algorithm.name=fednas algorithm.searcher=perturbation data.join_val=true
one fedrlnas algorithm.name=fedrlnas space.form=path
one knnper algorithm.name=knnper
one spider-milenas algorithm.searcher=milenas $L
[ ${#DONE[@]} -gt 0 ] && $F compare "${DONE[@]}"
