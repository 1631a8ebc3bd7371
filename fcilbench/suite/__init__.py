"""A suite: from YAML to cells, and to a plan of what a run would do. Never imports torch."""

CHECKS = {
    "parse": "YAML 1.2 without duplicate keys; every file that the suite extends exists",
    "schema": "known keys only, each with a value of the right type and range",
    "plugins": "every plugin and board exists under one unambiguous name",
    "params": "every parameter exists and its value is valid for the plugin or the protocol; values inside timm's "
    "`args` are checked by `deep` only",
    "tasks": "every split into tasks uses each class of its data set exactly once",
    "inputs": "every backbone reads what its data sets have: images, texts, or arrays of one shape",
    "rules": "conditions and values of tuned and exclude rules exist, and every rule matches a cell",
    "cells": "labels are unique and no two cells are the same experiment",
    "deep": "one tiny round works for each combination of plugins",
}
"""The checks of `fcilbench check`, and what each of them proves when it finds nothing."""
