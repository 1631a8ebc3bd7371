"""Trackers watch a run and mirror its rows elsewhere. The results folder stays the truth; never imports torch."""
