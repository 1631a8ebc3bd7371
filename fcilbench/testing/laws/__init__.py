"""The laws, by subject; each is a plain function in a registry."""
