"""How architectures are searched for: policies, generators, surrogates."""
