"""Runs the cells of a plan: a supervisor without torch, one long-lived child process a slot, one device lease each."""
