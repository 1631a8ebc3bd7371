"""Words that every room shares: parameters, protocol, cell, row, identity. Nothing here imports torch."""
