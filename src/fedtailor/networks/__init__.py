"""What a network is: pieces, the store of weights, initialisation, cost."""
