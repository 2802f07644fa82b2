"""The tables of run.db."""

SCHEMA = """
CREATE TABLE device(client INTEGER PRIMARY KEY, memory_mb REAL, speed REAL, mbps REAL);
CREATE TABLE metric(round INTEGER, client INTEGER, split TEXT, model TEXT, name TEXT, value REAL,
    PRIMARY KEY (round, client, split, model, name)) WITHOUT ROWID;
CREATE TABLE architecture(round INTEGER, client INTEGER, role TEXT, arch TEXT, score REAL,
    cost TEXT, idle TEXT);
CREATE TABLE message(round INTEGER, client INTEGER, direction TEXT, bytes INTEGER);
CREATE TABLE event(round INTEGER, client INTEGER, kind TEXT, text TEXT, at REAL);
CREATE TABLE search(round INTEGER PRIMARY KEY, found TEXT);
CREATE TABLE state(round INTEGER PRIMARY KEY, server TEXT, digest TEXT, val REAL, wall_s REAL,
    modelled_s REAL);
CREATE TABLE version(client INTEGER, round INTEGER, digest TEXT,
    PRIMARY KEY (client, round)) WITHOUT ROWID;
"""
TIMING = """CREATE TABLE IF NOT EXISTS
    timing(round INTEGER, client INTEGER, part TEXT, seconds REAL, macs REAL)"""
OFFSPRING = """CREATE TABLE IF NOT EXISTS offspring(round INTEGER, client INTEGER,
    iteration INTEGER, source TEXT, predicted REAL, measured REAL, survived INTEGER,
    population REAL)"""
GAIN = """CREATE TABLE IF NOT EXISTS gain(weights TEXT, epochs INTEGER, client INTEGER,
    network INTEGER, untuned REAL, tuned REAL, digest TEXT,
    PRIMARY KEY (weights, epochs, network, client)) WITHOUT ROWID"""
# device     what was dealt to each client, new ones included; memory_mb NULL: no limit
# metric     what was measured; model: untuned, tuned or trained, '' where it is of no model
# architecture  of searched networks: role trained (in a round) or deployed; score: val accuracy, or
#            NULL where such images are trained on; idle: places of genes that make no difference
# message    content bytes of each message of training, direction down (to the client) or up; once:
#            of the files that a client needs, in the first round that it trains in
# timing     CPU seconds and multiply-adds of the parts of a step of training; client NULL: of the
#            server's own work. Runs that were made before it was kept have no such table
# offspring  what a client's search proposed: by whom, what it was thought to score (NULL: nobody
#            thought), what it scored, whether it survived, and the mean score with the same weights
#            of those it was proposed to join (NULL: theirs is of other weights). Only runs of such
#            searches have it, and none that was made before it was kept
# gain       test accuracies of one client's network on a client's data, as it came and tuned for so
#            many epochs; weights: theirs or global; digest: of the network as it came. Only runs
#            that were asked for it (`fedtailor gain`) have such a table
# search     what the server knew of the search after the last tested round: one row
# state      committed rounds; server: its file, NULL once deleted; val: mean untuned accuracy, NULL
#            where not all clients have validation images that they do not train on
# version    private states that exist: of the last round and of the best one
