"""How the stock pages write what is ours to decide: as our own pages do, in every language."""
