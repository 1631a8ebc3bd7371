"""Mathematics on flat parameter vectors `[D]` and stacks of them `[N, D]`: plain functions, no state."""
