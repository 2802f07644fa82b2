"""What everything stands on: the nouns, their serialisation, randomness, processes."""
