"""What is done once per search space: a supernet, a table of accuracies, a generator."""
