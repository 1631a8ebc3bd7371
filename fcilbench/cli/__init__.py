"""The command line: one file a verb or group, options declared once in `options`, imports only where they are used."""
