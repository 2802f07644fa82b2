#!/bin/bash
# The experiments of SPIDER whose tables belong into spider.md, in the order of what they are worth: about 220 minutes
# of two cores.
#   FEDTAILOR_DATA=... RUNS=runs/spider bash results/spider.sh       from the project's folder
# The same command goes on after an interruption: what is finished is skipped.
#   MINUTES=150   after so many minutes nothing new is begun (tables are printed all the same)
#   ONLY=tables   print the tables of what there is
#   GAIN_EPOCHS=10   of tuning in a gain; the paper's 30 take three times as long
# Before a start, echo loss > $RUNS/searcher.txt and echo 0.1 > $RUNS/strength.txt overrule what the first two
# experiments would choose.
set -u
F=fedtailor; P=python; R=${RUNS:-runs/spider}; E=examples
MINUTES=${MINUTES:-150}; GAIN_EPOCHS=${GAIN_EPOCHS:-10}; BEGAN=$SECONDS
TUNED="algorithm.finetune_epochs=10 algorithm.finetune_lr=0.01"
mkdir -p $R/logs

cat > $R/base.toml <<'TOML'
# All runs of the experiments; every other value is given on the command line.
seed = 0
rounds = 40
eval_every = 10

[algorithm]
name = "spider"
strength = 0.01
searcher = "accuracy"
warmup = 4             # t = 4, 6, ..., 30: 14 searches
recovery = 2
epochs = 1
batch = 32
lr = 0.03              # of the paper's grid, 0.01 and 0.03; the same for every method
momentum = 0.9
weight_decay = 1e-3
schedule = "cosine"

[space]
name = "darts"
channels = 8           # C and L of the preset "cpu", but 32 pixels and a stem of stride 2, for every method
cells = 3
stem_stride = 2
operations = "s2"
form = "relaxed"
arch = "largest"

[data]
name = "cifar10"
seed = 0               # never varied
clients = 8
partition = "dirichlet"
alpha = 0.2
balance = true
per_client = 1000      # 750 to train, 250 for validation
split = "official"
test_per_client = 1000
public = 1000          # the server's; only `fednas` of rivals.sh uses them, but silos must have the same images
augment = ["crop", "flip", "cutout"]

[engine]
workers = 2
TOML

say() { echo "$(date +%T) $*"; }
finished() { [ -f $R/$1/run.db ] && $F show $R/$1 --json 2> /dev/null | grep -q '"finished": true'; }
late() { [ $(( (SECONDS - BEGAN) / 60 )) -ge $MINUTES ] || [ "${ONLY:-}" = tables ]; }
go() {  # NAME key=value ...: run, resume or skip
    local name=$1; shift
    if finished $name; then say "there: $name"; return 0; fi
    if late; then say "no time: $name"; return 1; fi
    say "begin $name $*"
    if [ -f $R/$name/run.db ]; then $F resume $R/$name > $R/logs/$name.log 2>&1
    else $F run $R/base.toml "$@" --out $R/$name > $R/logs/$name.log 2>&1; fi
    local code=$?; say "end $name ($code)"; return $code
}
gain() {  # NAME theirs|global
    finished $1 || return 1
    if late && [ ! -f $R/gain-$1-$2-$GAIN_EPOCHS.txt ]; then say "no time: gain $1 $2"; return 1; fi
    if [ ! -s $R/gain-$1-$2-$GAIN_EPOCHS.txt ]; then
        say "begin gain $1 $2"
        $F gain $R/$1 --weights $2 --epochs $GAIN_EPOCHS > $R/gain-$1-$2.tmp 2> $R/logs/gain-$1-$2.log && mv $R/gain-$1-$2.tmp $R/gain-$1-$2-$GAIN_EPOCHS.txt
        say "end gain $1 $2"
    fi
}
majority() { $P $E/spider_architectures.py --majority $R/$1 | tr -d ' '; }

# Experiment 1: is there signal in removals? (3 minutes; the rate of a 40-round cosine hardly falls in 4)
go warm rounds=4 eval_every=4 algorithm.schedule=constant
if finished warm && [ ! -s $R/removals.md ]; then
    $P $E/removals.py $R/warm > $R/removals.tmp 2> $R/logs/removals.log && mv $R/removals.tmp $R/removals.md
fi
if [ -s $R/removals.md ]; then
    cat $R/removals.md
    # `loss` where its halves agree clearly more, beyond chance
    [ -s $R/searcher.txt ] || awk -F'|' '/\| accuracy/ {a=$8-$9} /\| likelihood/ {l=$8-$9}
        END {print (l > a + 0.05) ? "loss" : "accuracy"}' $R/removals.md > $R/searcher.txt
fi
SEARCHER=$(cat $R/searcher.txt 2> /dev/null || echo accuracy); say "searcher: $SEARCHER"
S="algorithm.searcher=$SEARCHER"

# Experiment 2: lambda at 12 rounds by validation accuracy (edges are still undecided, so it is held out)
for strength in 0.01 0.1 1; do go lambda-$strength rounds=12 eval_every=12 $S algorithm.strength=$strength; done
if finished lambda-0.01 && finished lambda-0.1 && finished lambda-1; then
    $P - $R > $R/lambda.md <<'PY'
import sys

from fedtailor import Run
from fedtailor.runs.summary import spread
rows = {s: spread(Run(f"{sys.argv[1]}/lambda-{s}"), 12, "untuned", "accuracy", "val") for s in ("0.01", "0.1", "1")}
print("| lambda | validation accuracy after 12 rounds | std over silos |\n|---|---|---|")
for s, one in rows.items():
    print(f"| {s} | {100 * one['mean']:.2f} | {100 * one['std']:.2f} |")
best = max(rows, key=lambda s: rows[s]["mean"])
print(f"best {best}")
PY
    cat $R/lambda.md
    [ -s $R/strength.txt ] || sed -n 's/^best //p' $R/lambda.md > $R/strength.txt
fi
STRENGTH=$(cat $R/strength.txt 2> /dev/null); STRENGTH=${STRENGTH:-0.01}; say "lambda: $STRENGTH"
L="algorithm.strength=$STRENGTH"

go search-0 $S $L seed=0
go random-0 algorithm.searcher=random $L seed=0
go search-1 $S $L seed=1
go random-1 algorithm.searcher=random $L seed=1
if finished search-1; then
    COMMON="space.arch=$(majority search-1)"; say "common: $COMMON"
    go common-0 algorithm.searcher=none $L $COMMON seed=0
fi

# Experiment 3: would another silo's network do as well? And the rest of experiment 2
gain search-0 global
if finished search-1; then
    go fedavg-0 algorithm.name=fedavg $TUNED $COMMON data.join_val=true seed=0
    go ditto-0 algorithm.name=ditto $L $COMMON data.join_val=true seed=0
fi
go whole-0 algorithm.searcher=none $L seed=0
gain random-0 global
# Two attempts to mend: decided by t = 15, so that more rounds are left for what is found; tuned in the end as FedAvg is
go early-0 $S $L algorithm.warmup=2 algorithm.recovery=1 seed=0
go tuned-0 $S $L $TUNED seed=0
gain search-1 global
if finished search-0; then
    COMMON="space.arch=$(majority search-0)"
    go common-1 algorithm.searcher=none $L $COMMON seed=1
    go fedavg-1 algorithm.name=fedavg $TUNED $COMMON data.join_val=true seed=1
fi
gain search-0 theirs
go alone-0 $S algorithm.strength=0 seed=0
# Networks by chance that are as large as the searched ones, where these have other shares of convolutions
if finished search-0 && finished search-1 && finished random-0; then
    SHARES=$(PYTHONPATH=$E $P - $R <<'PY'
import sys
import numpy as np
from spider_architectures import Silos, skips
def shares(*names):
    each = [skips(one.space, arch) for one in (Silos(f"{sys.argv[1]}/{n}") for n in names) for arch in one.archs.values()]
    return 1 - np.mean(each, axis=0) / 14
found, chance = shares("search-0", "search-1"), shares("random-0")
if abs(found - chance).max() > 0.1:
    print(f"algorithm.normal_share={found[0]:.3f} algorithm.reduction_share={found[1]:.3f}")
PY
)
    say "shares of convolutions to match: ${SHARES:-none, they are alike}"
    [ -n "$SHARES" ] && go matched-0 algorithm.name=$E/matched_chance.py:Matched $L $SHARES seed=0
fi
go printed-0 algorithm.searcher=printed $L seed=0

# Tables
seeds() { local found=; for s in 0 1; do finished $1-$s && found="$found,$R/$1-$s"; done; [ -n "$found" ] && echo "$1=${found#,}"; }
ALL=(); for name in search early tuned random matched common whole printed alone ditto fedavg; do one=$(seeds $name) && ALL+=("$one"); done
{
    echo "## Accuracies, and differences from the search"; $F compare "${ALL[@]}"
    for base in random common whole; do
        one=$(seeds $base) && seeds search > /dev/null || continue
        echo; echo "## Differences from $base"; $F compare "$one" "$(seeds search)" | sed -n '/^| minus/,$p'
    done
    echo; echo "## Sizes, memory, operations, distances"; $P $E/spider_architectures.py "${ALL[@]}"
    for one in $R/gain-*.txt; do [ -s $one ] && { echo; echo "## $one"; cat $one; }; done
    echo; echo "## Validation"; cat $R/removals.md $R/lambda.md
} > $R/tables.md 2> $R/logs/tables.log
say "tables: $R/tables.md"
