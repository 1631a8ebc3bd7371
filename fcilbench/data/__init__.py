"""The data root: data sets and weights on this machine, and their digests. Never imports torch."""
