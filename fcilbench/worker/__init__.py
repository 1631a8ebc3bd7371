"""The child process that imports plugins and trains cells, and all that is said to it and by it.

`process` is the parent's side and `main` the child's; both speak in lines (`wire`) whose meaning `events` declares. In
the child `describe` answers about plugins, `probe` about cells and data sets, and `jobs` trains.
"""
