"""What is done to a network: training, evaluation, merging."""
